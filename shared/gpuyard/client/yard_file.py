"""`gpuyard.env`: how the yard of a folder is found by the commands run inside it.

It holds a secret, so it is believed only when it belongs to the caller, nobody else can read or
write it, and the process that wrote it still lives.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

YARD_FOLDER: Final = ".gpuyard"
YARD_FILE: Final = "gpuyard.env"
_MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class YardFile:
    """What a running yard says of itself; `url` holds its token."""

    path: Path
    url: str
    pid: int
    started: str
    """Start of that process in the kernel's ticks, so that a reused pid is not taken for it."""


def find_yard(folder: Path, environ: Mapping[str, str]) -> YardFile | None:
    """The yard of `GPUYARD_DIR`, else the nearest one of `folder` and the folders above it."""
    named = environ.get("GPUYARD_DIR")
    if named:
        return read_yard(Path(named) / YARD_FILE)
    here = folder.absolute()
    for above in (here, *here.parents):
        if yard := read_yard(above / YARD_FOLDER / YARD_FILE):
            return yard
    return None


def read_yard(path: Path) -> YardFile | None:
    """The file's content; None where it is missing, not the caller's alone, or its yard is gone."""
    try:
        # Not through a link, and checked on what was opened: the file may be swapped meanwhile.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(descriptor)
        is_private = info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) == 0o600
        if not stat.S_ISREG(info.st_mode) or not is_private:
            return None
        text = os.read(descriptor, _MAX_BYTES).decode("utf-8", errors="replace")
    finally:
        os.close(descriptor)
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    url, pid = values.get("GPUYARD_URL"), values.get("GPUYARD_PID", "")
    if not url or not pid.isdigit():
        return None
    yard = YardFile(path, url, int(pid), values.get("GPUYARD_PID_STARTED", ""))
    return yard if lives(yard.pid, yard.started) else None


def write_yard(path: Path, *, url: str, pid: int) -> None:
    """Writes the file in one step, readable by the caller alone."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(
            f"GPUYARD_URL={url}\nGPUYARD_PID={pid}\nGPUYARD_PID_STARTED={started_ticks(pid)}\n"
        )
    fresh.replace(path)


def started_ticks(pid: int) -> str:
    """When the process started, in ticks since boot; empty where the system does not tell."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = content.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def lives(pid: int, started: str) -> bool:
    """Whether the process with this pid and this start still runs."""
    if started:
        return started_ticks(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
