"""Builders for the agent's tests: everything that a test is not about has a default."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import GrantedGpu, PullProgress, StopOrder, Token, WantedDocument, WantedEntry
from gpuyard.model.node import NodeReason, RuntimeName
from gpuyard_agent.core.attempt import Attempt, Intent, Result, Started
from gpuyard_agent.core.containers import Exit, Seen, Status
from gpuyard_agent.core.document import Document, parse_document
from gpuyard_agent.core.launch import AttemptKey, Launch
from gpuyard_agent.core.steps import Here
from gpuyard_agent.core.times import rfc3339
from gpuyard_agent.runtime import Hold, LogPiece, LogPosition, Reach, unheld

MACHINE = "machine-1"
BOOT = "boot-1"
NODE = "node-1"
YARD = "abc123"
TOKEN: Token = (1000, 5)
GPU = "GPU-11111111-2222-3333-4444-555555555555"
WALL = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


def key(job: str = "job-1", attempt: int = 1) -> AttemptKey:
    return AttemptKey("team-a", job, attempt)


def gpu(uuid: str = GPU) -> GrantedGpu:
    return {"uuid": uuid, "milli": 1000, "memory_mib": None, "core_percent": None}


def stop(reason: str = "cancelled", *, signal: str = "SIGTERM", grace_s: float = 30.0) -> StopOrder:
    return {"reason": reason, "signal": signal, "grace_s": grace_s}


def entry(
    job: str = "job-1",
    *,
    attempt: int = 1,
    gpus: Sequence[GrantedGpu] = (),
    stop: StopOrder | None = None,
    fence_s: float | None = None,
    boot_id: str = BOOT,
    machine_id: str = MACHINE,
    generation: int = 1,
    **spec: Any,
) -> WantedEntry:
    """A wanted entry; keywords that are none of its own go into its spec."""
    return {
        "tenant": "team-a",
        "job": job,
        "attempt": attempt,
        "user": "alice",
        "name": None,
        "machine_id": machine_id,
        "boot_id": boot_id,
        "generation": generation,
        "gpus": list(gpus),
        "spec": {"image": "busybox", "command": ["true"], "stop_grace": "30s"} | spec,
        "spec_sha256": "0" * 64,
        "stop": stop,
        "fence_s": fence_s,
    }


def document(
    *entries: WantedEntry, revision: int = 1, token: Token = TOKEN, yard: str = YARD
) -> WantedDocument:
    return {
        "v": 1,
        "yard": yard,
        "node": NODE,
        "token": list(token),
        "revision": revision,
        "entries": list(entries),
    }


def parsed(
    *entries: WantedEntry, revision: int = 1, token: Token = TOKEN, yard: str = YARD
) -> Document:
    body = document(*entries, revision=revision, token=token, yard=yard)
    return parse_document(body, node=NODE)


def here(**changes: Any) -> Here:
    usual = Here(
        machine_id=MACHINE,
        boot_id=BOOT,
        wall=WALL,
        gpus=frozenset({GPU}),
        renewed_at=0.0,
        lease_until=float("inf"),
    )
    return replace(usual, **changes)


def seen(
    job: str = "job-1",
    status: Status = Status.RUNNING,
    *,
    attempt: int = 1,
    exit: Exit | None = None,
) -> Seen:
    return Seen(
        key=key(job, attempt),
        status=status,
        container_id=f"container-{job}",
        image_digest=None,
        started_at=rfc3339(WALL),
        spec_sha256="0" * 64,
        exit=exit,
    )


def attempt(want: WantedEntry | None = None, **changes: Any) -> Attempt:
    """An attempt that was accepted; nothing more has happened yet."""
    made = Attempt(key(want["job"], want["attempt"]) if want else key(), entry=want, accepted=True)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def running(want: WantedEntry | None = None, *, at: float = 0.0, **changes: Any) -> Attempt:
    """An attempt whose container runs since `at`."""
    return (
        attempt(
            want,
            launched=BOOT,
            started=started(at),
            container=seen(want["job"] if want else "job-1"),
        )
        if not changes
        else _with(running(want, at=at), **changes)
    )


def _with(made: Attempt, **changes: Any) -> Attempt:
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def started(at: float = 0.0, *, boot_id: str = BOOT) -> Started:
    return Started("container", None, rfc3339(WALL), at, boot_id)


def intent(reason: str = "cancelled", *, at: float = 0.0, grace_s: float = 30.0) -> Intent:
    return Intent(reason, "SIGTERM", grace_s, at, rfc3339(WALL + at))


def ended(reason: str = "exited", code: int | None = 0) -> Result:
    return Result(reason, code, None, rfc3339(WALL))


def exited(code: int | None = 0, *, after_s: float = 0.0, **facts: Any) -> Exit:
    """An exit `after_s` seconds after the tests' time began."""
    return Exit(code, rfc3339(WALL + after_s), **facts)


@dataclass(slots=True)
class FakeContainer:
    seen: Seen
    ended: asyncio.Event
    output: list[LogPiece]


class FakeRuntime:
    """An engine in memory that outlives the agents using it; tests end, lose and break things."""

    name: RuntimeName = "docker"

    def __init__(self, *, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.containers: dict[AttemptKey, FakeContainer] = {}
        self.starts: list[AttemptKey] = []
        self.signals: list[tuple[AttemptKey, str]] = []
        self.removed: list[AttemptKey] = []
        self.prepared: list[AttemptKey] = []
        self.images: set[str] = {"busybox"}
        self.down: RuntimeFailure | None = None
        self.refusal: RuntimeFailure | None = None
        self.obeys = True
        """Containers end with 143 at SIGTERM; SIGKILL always ends them."""
        self.pull_s = 0.0
        """How long a pull takes, before it tells of itself and after."""
        self._clock = clock

    def end(self, which: AttemptKey, code: int | None = 0, **facts: Any) -> None:
        container = self.containers[which]
        exit = Exit(code, rfc3339(WALL + self._clock()), **facts)
        container.seen = replace(container.seen, status=Status.EXITED, exit=exit)
        container.ended.set()

    def lose(self, which: AttemptKey) -> None:
        """Someone removed the container behind the yard's back."""
        del self.containers[which]

    def say(self, which: AttemptKey, data: bytes, stream: int = 1) -> None:
        output = self.containers[which].output
        offset = sum(len(piece.data) for piece in output if piece.stream == stream)
        output.append(LogPiece(stream, offset, data))

    async def open(self) -> None:
        self._check()

    async def seen(self) -> Sequence[Seen]:
        self._check()
        return [container.seen for container in self.containers.values()]

    async def prepare(self, launch: Launch, progress: Callable[[PullProgress], None]) -> None:
        self._check()
        await asyncio.sleep(self.pull_s)
        progress({"done_bytes": 1, "total_bytes": 2})
        await asyncio.sleep(self.pull_s)
        self.prepared.append(launch.key)
        self.images.add(launch.image)

    def reach(self, seen: Seen) -> Reach | None:
        return "container", str(seen.container_id)

    async def launch(self, launch: Launch, hold: Hold = unheld) -> Seen:
        self._check()
        if self.refusal is not None:
            raise self.refusal
        found = self.containers.get(launch.key)
        if found is None or found.seen.status is Status.CREATED:
            if launch.image not in self.images:
                raise RuntimeFailure("no such image", temporary=False, reason="image_not_found")
            made = replace(seen(), key=launch.key, container_id=launch.container_name)
            created = replace(made, status=Status.CREATED)
            self.containers[launch.key] = FakeContainer(created, asyncio.Event(), [])
            await hold(("container", launch.container_name))
            self.starts.append(launch.key)
            made = replace(made, started_at=rfc3339(WALL + self._clock()))
            self.containers[launch.key] = FakeContainer(made, asyncio.Event(), [])
        return self.containers[launch.key].seen

    async def wait(self, which: AttemptKey) -> Exit:
        self._check()
        container = self.containers.get(which)
        if container is None:
            raise RuntimeFailure("no such container", temporary=False, reason="runtime_lost")
        await container.ended.wait()
        exit = container.seen.exit
        assert exit is not None
        return exit

    async def signal(self, which: AttemptKey, signal: str) -> None:
        self._check()
        self.signals.append((which, signal))
        container = self.containers.get(which)
        if container is None or container.ended.is_set():
            return
        if signal == "SIGKILL":
            self.end(which, 137)
        elif self.obeys:
            self.end(which, 143)

    async def remove(self, which: AttemptKey) -> None:
        self._check()
        self.removed.append(which)
        self.containers.pop(which, None)

    async def logs(self, which: AttemptKey, position: LogPosition) -> AsyncIterator[LogPiece]:
        container = self.containers.get(which)
        if container is None:
            return
        taken, begin = 0, {1: position.stdout, 2: position.stderr}
        while True:
            is_over = container.ended.is_set()
            for piece in container.output[taken:]:
                taken += 1
                if piece.offset >= begin[piece.stream]:
                    yield piece
            if is_over and taken == len(container.output):
                return
            await asyncio.sleep(0.05)

    async def problems(self) -> Sequence[NodeReason]:
        return ()

    async def close(self) -> None:
        return None

    def _check(self) -> None:
        if self.down is not None:
            raise self.down
