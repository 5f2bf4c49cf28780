"""The log shippers of one node: started with a container, ended with its last chunk."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from gpuyard import subjects
from gpuyard.errors import RuntimeFailure
from gpuyard.messages import VERSION, LogChunk, LogsReply, StoredPiece
from gpuyard_agent.core.attempt import Attempt, LogMark
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.memory import logs_record
from gpuyard_agent.logs import LogShipper
from gpuyard_agent.runtime import LogPiece, LogPosition

if TYPE_CHECKING:
    from gpuyard_agent.loop.node import NodeAgent

SETTLE_S: Final = 5.0
"""How long an end waits for log chunks that do not come while the bus is there."""
LONGEST_SETTLE_S: Final = 120.0
"""The same for chunks that do come, or go out again because the bus lost them: what an outage held
up may take its time."""
JOURNAL_EVERY_S: Final = 0.5
MAX_REPLY_BYTES: Final = 512 * 1024
_IDLE_S: Final = 0.1


class Shipping:
    """Which attempts' output is on its way to the bus."""

    def __init__(
        self, node: "NodeAgent", publish: Callable[[str, LogChunk], Awaitable[None]]
    ) -> None:
        self._node = node
        self._publish = publish
        self._shippers: dict[AttemptKey, LogShipper] = {}
        self._by_text: dict[str, LogShipper] = {}
        self._journaled: dict[AttemptKey, float] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, attempt: Attempt) -> None:
        """Starts or goes on shipping; simulated attempts have no output to ship."""
        runtime = self._node.engine.runtime
        is_followed = attempt.key in self._shippers or attempt.logs.done
        if runtime.name == "simulated" or is_followed:
            return
        key = attempt.key
        subject = subjects.logs(key.tenant, key.job, key.attempt, self._node.name)
        shipper = LogShipper(
            key,
            read=lambda position: runtime.logs(key, position),
            publish=lambda chunk: self._publish(subject, chunk),
            mark=attempt.logs,
            on_progress=lambda mark: self._on_progress(attempt, mark),
            limit_bytes=self._node.parts.log_limit_bytes,
            clock=self._node.now,
        )
        self._shippers[key] = self._by_text[str(key)] = shipper
        shipper.start()

    def resume(self) -> None:
        """At the start: ends of an earlier run wait for their output again, until the runtime has
        told what exists, and not for ever where it cannot."""
        held = [a for a in self._node.memory.attempts.values() if a.result and not a.logs.done]
        for attempt in held:
            attempt.logs_settled = False

        def give_up() -> None:
            if not self._node.engine.is_listed:
                for attempt in held:
                    attempt.logs_settled = True
                self._node.changed()

        if held:
            loop = asyncio.get_running_loop()
            self._node.parts.timers.at(loop.time() + LONGEST_SETTLE_S, give_up)

    def settle(self, attempt: Attempt) -> None:
        """An end was found: its report waits for the last chunk, for a bounded time."""
        shipper = self._shippers.get(attempt.key)
        attempt.logs_settled = shipper is None or (shipper.is_done and not shipper.is_lacking)
        if shipper is not None and not attempt.logs_settled:
            self._check_later(attempt, shipper.mark, waited_s=0.0)

    def acknowledge(self, key: str, stored: int, sent_at: float) -> None:
        shipper = self._by_text.get(key)
        if shipper is not None:
            shipper.acknowledge(stored, sent_at=sent_at)

    async def read(self, key: AttemptKey, request: Mapping[str, Any]) -> LogsReply:
        """Output that the runtime still has, from the asker's offsets on."""
        if key not in self._node.memory.attempts or not self._node.engine.is_listed:
            return _nothing("this node does not know the attempt")
        position = LogPosition(_count(request, "stdout"), _count(request, "stderr"))
        room = min(_count(request, "max_bytes") or MAX_REPLY_BYTES, MAX_REPLY_BYTES)
        reader = self._node.engine.runtime.logs(key, position)
        pieces: list[StoredPiece] = []
        try:
            return await _collect(reader, pieces, room)
        except RuntimeFailure as fault:
            return _nothing(str(fault))
        finally:
            if (close := getattr(reader, "aclose", None)) is not None:
                await close()

    async def drop(self, key: AttemptKey) -> None:
        """Stops reading, before the container goes."""
        shipper = self._shippers.get(key)
        if shipper is not None:
            await shipper.stop()

    def forget(self, key: AttemptKey) -> None:
        shipper = self._shippers.pop(key, None)
        self._by_text.pop(str(key), None)
        self._journaled.pop(key, None)
        if shipper is not None:
            task = asyncio.ensure_future(shipper.stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        shippers = list(self._shippers.values())
        for attempt in self._node.memory.attempts.values():
            self._write(attempt, attempt.logs)
        await asyncio.gather(*(shipper.stop() for shipper in shippers), *self._ending)

    def _on_progress(self, attempt: Attempt, mark: LogMark) -> None:
        """The journal need not know every chunk: what it misses is sent twice, harmlessly."""
        now = self._node.now()
        if mark.done or now - self._journaled.get(attempt.key, 0.0) >= JOURNAL_EVERY_S:
            self._journaled[attempt.key] = now
            self._write(attempt, mark)
        else:
            self._node.memory.apply(logs_record(attempt.key, mark))
        shipper = self._shippers.get(attempt.key)
        is_lacking = shipper is not None and shipper.is_lacking
        if mark.done and not is_lacking and not attempt.logs_settled:
            attempt.logs_settled = True
            self._node.changed()

    def _write(self, attempt: Attempt, mark: LogMark) -> None:
        if mark != LogMark() and not self._node.write(logs_record(attempt.key, mark)):
            self._node.memory.apply(logs_record(attempt.key, mark))

    def _check_later(self, attempt: Attempt, before: LogMark, *, waited_s: float) -> None:
        loop = asyncio.get_running_loop()

        def check() -> None:
            shipper = self._shippers.get(attempt.key)
            if attempt.logs_settled or shipper is None:
                return
            comes = shipper.is_lacking or shipper.mark != before
            if shipper.is_blocked:
                # The bus is away, and with it whoever could read a report.
                self._check_later(attempt, shipper.mark, waited_s=0.0)
            elif comes and waited_s + SETTLE_S < LONGEST_SETTLE_S:
                self._check_later(attempt, shipper.mark, waited_s=waited_s + SETTLE_S)
            else:
                attempt.logs_settled = True
                self._node.changed()

        self._node.parts.timers.at(loop.time() + SETTLE_S, check)


async def _collect(
    reader: AsyncIterator[LogPiece], pieces: list[StoredPiece], room: int
) -> LogsReply:
    """Pieces until the room is full, the end is reached, or nothing more is there for now."""
    while room > 0:
        try:
            piece = await asyncio.wait_for(anext(reader), _IDLE_S)
        except TimeoutError:
            break
        except StopAsyncIteration:
            return {"v": VERSION, "pieces": pieces, "end": True, "message": None}
        data = piece.data[:room]
        stream: Literal[1, 2] = 1 if piece.stream == 1 else 2
        pieces.append({"stream": stream, "offset": piece.offset, "data": data})
        room -= len(data)
    return {"v": VERSION, "pieces": pieces, "end": False, "message": None}


def _nothing(message: str) -> LogsReply:
    return {"v": VERSION, "pieces": [], "end": True, "message": message}


def _count(request: Mapping[str, Any], name: str) -> int:
    value = request.get(name)
    return value if type(value) is int and value > 0 else 0
