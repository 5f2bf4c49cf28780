"""The keeper's file: every fence it holds, for one boot of one host."""

import json
import os

from gpuyard_agent.keeper import ledger

VERSION = 1
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Damaged(ValueError):
    """The file cannot be read; whoever knows of fences has to tell them anew."""


def boot_id() -> str:
    """The kernel's name for this boot."""
    with open(BOOT_ID) as file:
        return file.readline().strip()


def path_in(directory: str) -> str:
    return os.path.join(directory, "fences.json")


def load(directory: str, boot: str) -> dict[str, ledger.Fence]:
    """The fences of this boot; those of another one are void, with the processes they were for.

    Raises Damaged where there is a file that tells nothing.
    """
    try:
        with open(path_in(directory), encoding="utf-8") as file:
            body = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as fault:
        raise Damaged(str(fault)) from fault
    try:
        if body["v"] != VERSION:
            raise ValueError(f"version {body['v']!r:.20}")
        if body["boot"] != boot:
            return {}
        return {key: ledger.parse(record) for key, record in body["fences"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        raise Damaged(str(fault)) from fault


def save(directory: str, boot: str, fences: dict[str, ledger.Fence]) -> None:
    """Returns once they are on the disk; raises OSError with the old file in place."""
    path = path_in(directory)
    records = {key: fence.as_record() for key, fence in fences.items()}
    body = json.dumps({"v": VERSION, "boot": boot, "fences": records}).encode()
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if os.write(fd, body) != len(body):
            raise OSError(None, "the disk is full")
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(path + ".new", path)
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
