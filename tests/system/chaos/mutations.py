"""Defects to plant into a copy of the daemons, to see that the checker finds them."""

import shutil
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[3]
PARTS: Final = ("shared", "coordinator", "agent")


class Change(NamedTuple):
    """A text that stands once in a file, and what takes its place."""

    file: str
    text: str
    defect: str


class Mutation(NamedTuple):
    finds: str
    """The kind of violation that the checker must find."""
    changes: tuple[Change, ...]


MUTATIONS: Final = {
    "attempt_started_early": Mutation(
        "overlap",
        (
            Change(
                "coordinator/gpuyard_coordinator/core/beats.py",
                "        if state is NodeState.LOST:\n            effects.nodes.add(name)",
                "        if state:\n            effects.nodes.add(name)",
            ),
            Change(
                "coordinator/gpuyard_coordinator/core/fencing.py",
                "    since = attempt.silent_since\n    if since is None:\n",
                "    since = attempt.silent_since\n    return node.last_beat\n"
                "    if since is None:\n",
            ),
            Change(
                "coordinator/gpuyard_coordinator/core/fencing.py",
                "    if job.fence_s is None or not attempt.fenced:\n        return None\n",
                "",
            ),
        ),
    ),
    "grant_given_twice": Mutation(
        "grant",
        (
            Change(
                "coordinator/gpuyard_coordinator/core/ledger.py",
                "            _enter_on(gpu, key, granted)\n    attempt.gpu_memory_mib",
                """            _enter_on(gpu, key, granted)
            gpu.free_milli += 0 if job.submit_seq % 20 else granted["milli"]
    attempt.gpu_memory_mib""",
            ),
        ),
    ),
    "event_dropped": Mutation(
        "events",
        (
            Change(
                "coordinator/gpuyard_coordinator/outbox.py",
                "            self._lanes[_stream_of(subject)].add("
                "_Item((generation, n, index), subject, data))\n",
                """            item = _Item((generation, n, index), subject, data)
            if ".running." in subject and n % 20 == 0:
                self._note_stored([item])
                continue
            self._lanes[_stream_of(subject)].add(item)
""",
            ),
        ),
    ),
}


def mutated(name: str, directory: Path) -> Path:
    """A copy of the sources with the defect in it; raises ValueError where its text is gone."""
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / part, directory / part, ignore=ignored)
    for change in MUTATIONS[name].changes:
        file = directory / change.file
        source = file.read_text()
        if source.count(change.text) != 1:
            raise ValueError(f"{change.file} no longer holds what {name} replaces: mend it here")
        file.write_text(source.replace(change.text, change.defect))
    return directory
