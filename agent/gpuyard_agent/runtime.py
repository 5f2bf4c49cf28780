"""The one face that every runtime shows the agent: docker, process, simulated.

A runtime performs; it decides nothing. Every call is idempotent: doing it again after a crash or
a timeout gives the same state. Failures are `RuntimeFailure` with an end reason of the closed list
(`gpuyard.model.reasons`) and `temporary`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuyard.messages import PullProgress
from gpuyard.model.node import NodeReason, RuntimeName
from gpuyard_agent.core.containers import Exit, Seen, Status
from gpuyard_agent.core.launch import AttemptKey, Launch

__all__ = [
    "Exit",
    "Hold",
    "LogPiece",
    "LogPosition",
    "Reach",
    "Runtime",
    "Seen",
    "Status",
    "unheld",
]


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of one stream in the order read; `offset` counts this stream's bytes before it."""

    stream: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where reading goes on: bytes of stdout and stderr already taken."""

    stdout: int = 0
    stderr: int = 0


Reach = tuple[str, str]
"""How the keeper finds an attempt's processes: ("container", its id) or ("folder", its path)."""
Hold = Callable[[Reach], Awaitable[None]]


async def unheld(reach: Reach) -> None:
    """Holds nothing: for a launch that nobody is to be told of before it starts."""


class Runtime(Protocol):
    """See the module's docstring. `yard` and `node` are fixed when a runtime is made."""

    name: RuntimeName

    async def open(self) -> None:
        """Connects; raises RuntimeFailure(temporary=True) while it cannot."""

    async def seen(self) -> Sequence[Seen]:
        """Every container whose labels carry this yard and this node, ended ones included.

        Raises RuntimeFailure when that cannot be known: an error is never an empty list.
        """

    async def prepare(self, launch: Launch, progress: Callable[[PullProgress], None]) -> None:
        """Makes the image present as `launch.pull` says; `progress` is called from the loop."""

    async def launch(self, launch: Launch, hold: Hold = unheld) -> Seen:
        """Creates and starts; adopts a container of the same name and labels that exists.

        `hold` is awaited between the two, whenever a start is about to be asked for; what it
        raises passes through, with nothing started.

        An image that is missing raises RuntimeFailure(reason="image_not_found") without a pull:
        the caller prepares and calls again.
        """

    def reach(self, seen: Seen) -> Reach | None:
        """How the processes of what was seen are found; None where they end with this process."""

    async def wait(self, key: AttemptKey) -> Exit:
        """Returns when the container has ended, or at once if it had; driven by events."""

    async def signal(self, key: AttemptKey, signal: str) -> None:
        """Sends SIGTERM, SIGKILL…; a container that is over already is no error."""

    async def remove(self, key: AttemptKey) -> None:
        """Removes it with its logs; one that is gone is no error."""

    def logs(self, key: AttemptKey, position: LogPosition) -> AsyncIterator[LogPiece]:
        """Both streams from `position` on, following until the container has ended."""

    async def problems(self) -> Sequence[NodeReason]:
        """Why no container could be started now; empty when all is well."""

    async def close(self) -> None:
        """Lets go of connections and threads; containers run on."""
