"""What is remembered of one container, and what is shown of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuyard_agent.core.containers import Exit, Seen, Status
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.docker_runtime import labels

PAUSED: Final = "its container is paused; 'docker unpause' on its node lets it go on"


@dataclass(frozen=True, slots=True)
class Look:
    """What an inspection of a started container tells."""

    pid: int | None
    """Its first process on the host, None when it does not run."""
    image_digest: str | None
    started_at: str | None
    mismatch: str | None
    """How the container differs from its grant, in words; None when it does not."""


@dataclass(slots=True)
class Container:
    """What is remembered of a container so that the engine need not be asked again."""

    id: str
    spec_sha256: str
    tty: bool
    started_at: str | None = None
    image_id: str | None = None
    watched: bool = False
    """Its end is sure to be told: it was watched before it began, or looked at since."""


def suffices(container: Container, status: Status, exit: Exit | None) -> bool:
    """True where a listing's word and what is remembered make an inspection needless."""
    if container.image_id is None:
        return False
    return exit is not None or (status is Status.RUNNING and container.started_at is not None)


def seen(
    key: AttemptKey,
    container: Container,
    status: Status,
    *,
    digest: str | None = None,
    exit: Exit | None = None,
    word: str = "",
) -> Seen:
    """What is shown of a container; `word` is the engine's own for its state."""
    return Seen(
        key=key,
        status=status,
        container_id=container.id,
        image_digest=digest,
        started_at=container.started_at,
        spec_sha256=container.spec_sha256,
        exit=exit,
        note=PAUSED if word == "paused" and status is Status.RUNNING else None,
    )


def not_inspected(key: AttemptKey, entry: Mapping[str, Any]) -> Seen:
    """A container that the engine lists and says no more of: it counts as running until it does."""
    spec = str((entry.get("Labels") or {}).get(labels.SPEC, ""))
    return Seen(key, Status.RUNNING, str(entry["Id"]), None, None, spec, None)
