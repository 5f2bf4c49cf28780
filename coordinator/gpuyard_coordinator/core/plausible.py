"""Numbers that no machine has: refused where they come in, left out where they were stored before.

Sums of them fit no document, so that a leader which reckons with one cannot commit any more, and
neither can the next.
"""

from typing import Any, Final

from gpuyard.messages import NodeDocument
from gpuyard.model.node import NO_FACTS
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Job

MOST: Final = 1 << 31
"""Of whatever a node has or has granted: as many MiB as a job may ask for. Sums over a yard stay
far below 64 bit, which no document could hold."""


def beyond(value: Any) -> int | float | None:
    """A number within `value`, at any depth, that no machine has; None where there is none."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            if (found := beyond(item)) is not None:
                return found
        return None
    # Not `abs(value) > MOST`: nothing that is compared with a number that is none is true.
    return value if isinstance(value, int | float) and not -MOST <= value <= MOST else None


def mended_node(document: NodeDocument) -> tuple[NodeDocument, str | None]:
    """A stored node, and what was wrong with it: without its facts where they cannot be. It takes
    no work until a beat tells them again, and that is stored in their place."""
    number = beyond(document["facts"])
    if number is None:
        return document, None
    # A copy, since a node that has NO_FACTS itself is one of which nothing is stored.
    mended: NodeDocument = {**document, "facts": {**NO_FACTS}, "generation": -1}
    return mended, f"its facts have the number {number:g}, they are awaited from a beat"


def mend_grants(job: Job) -> str | None:
    """Sets what a stored job holds of a GPU to the whole of it where it cannot be; returns what was
    wrong."""
    faults = []
    for attempt in job.attempts:
        for granted in attempt.gpus:
            if beyond(dict(granted)) is not None:
                faults.append(f"attempt {attempt.number} holds {granted['milli']} milli")
                granted["milli"] = WHOLE_GPU_MILLI
                granted["memory_mib"] = granted["core_percent"] = None
    return f"{faults[0]} of a GPU, which counts as a whole one" if faults else None
