"""Defects to plant into a copy of the daemons, to see that the checker finds them."""

import shutil
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[3]
PARTS: Final = ("shared", "coordinator", "agent")


class Mutation(NamedTuple):
    """A text of one file that stands there once, and what takes its place."""

    file: str
    text: str
    defect: str
    finds: str
    """The kind of violation that must be found."""


MUTATIONS: Final = {
    "grant_given_twice": Mutation(
        "coordinator/gpuyard_coordinator/core/ledger.py",
        """            gpu.grants[key] = granted["milli"]
            gpu.free_milli -= granted["milli"]
    attempt.gpu_memory_mib""",
        """            gpu.grants[key] = granted["milli"]
            gpu.free_milli -= granted["milli"] if job.submit_seq % 20 else 0
    attempt.gpu_memory_mib""",
        finds="grant",
    ),
    "event_dropped": Mutation(
        "coordinator/gpuyard_coordinator/outbox.py",
        "            self._lanes[_stream_of(item.subject)].add(item)\n",
        """            if ".running." in item.subject and n % 20 == 0:
                self._note_stored(item)
                continue
            self._lanes[_stream_of(item.subject)].add(item)
""",
        finds="events",
    ),
}


def mutated(name: str, directory: Path) -> Path:
    """A copy of the sources with the defect in it; raises ValueError where its text is gone."""
    mutation = MUTATIONS[name]
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / part, directory / part, ignore=ignored)
    file = directory / mutation.file
    source = file.read_text()
    if source.count(mutation.text) != 1:
        raise ValueError(f"{mutation.file} no longer holds what {name} replaces: mend it here")
    file.write_text(source.replace(mutation.text, mutation.defect))
    return directory
