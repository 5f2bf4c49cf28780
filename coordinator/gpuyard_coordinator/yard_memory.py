"""Which yard a bus had, kept in the coordinator's own folder.

A bus that lost its state looks like a new one: its folder was emptied, its disk replaced, or
servers that were never in a cluster were put into one, which makes them drop what they had. Then
nothing on the bus tells that there was a yard, and a new one must not quietly take its place.
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Final

import structlog

from gpuyard import codec, subjects
from gpuyard.bus import JetStream, NotFound
from gpuyard.errors import Unavailable

PATIENCE_S: Final = 10.0
"""Servers that start together may not have found their streams yet."""
_PAUSE_S: Final = 0.5
log = structlog.get_logger()


class YardMemory:
    """The yard last seen on a bus with one of these addresses."""

    def __init__(self, directory: Path, *, url: str) -> None:
        """`url` names the servers, separated by commas; what stands before an `@` is not kept."""
        self._path = directory / "yard.json"
        self._addresses = [part.rsplit("@", 1)[-1].split("://")[-1] for part in url.split(",")]
        self._kept: str | None = None

    def keep(self, yard: str) -> None:
        """Remember the yard; where the folder cannot be written that is told, and nothing more."""
        if yard == self._kept:
            return
        self._kept = yard
        text = json.dumps({"v": 1, "yard": yard, "bus": self._addresses})
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with fresh.open("w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as fault:
            log.warning("the yard's id is not kept", file=str(self._path), fault=str(fault))

    def require_none(self) -> None:
        """A new yard is about to be made: raises Unavailable where the bus had one. It is read
        anew each time, so that removing the file is enough."""
        yard = self._read()
        if yard is not None:
            raise Unavailable(
                f"the bus has no yard, and it had yard {yard}: start the servers with the folders "
                "that they had, or put a backup back (gpuyard restore -y FILE); to begin a new "
                f"yard instead, remove {self._path}"
            )

    def _read(self) -> str | None:
        try:
            record = json.loads(self._path.read_text())
            is_of_bus = not set(self._addresses).isdisjoint(record["bus"])
            return str(record["yard"]) if is_of_bus else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


async def check_yard(jetstream: JetStream, memory: YardMemory) -> None:
    """Before anything is made on the bus: raises Unavailable where it lost the yard that it had."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        yard = await _yard(jetstream)
        if yard is not None:
            memory.keep(yard)
            return
        try:
            memory.require_none()
            return
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE_S)


async def _yard(jetstream: JetStream) -> str | None:
    try:
        stored = await jetstream.last(subjects.STATE_STREAM, subjects.state(subjects.YARD_KEY))
    except NotFound:
        return None
    return None if stored is None else str(codec.decode(stored.data)["id"])
