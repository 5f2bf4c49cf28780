"""The agent's side of the bus: beats out, replies and wanted documents in, for all its nodes.

Rules of this file:
1. A beat goes out every `beat_s`, spread over the nodes, and at once on change; changes of one turn
   of the event loop are one beat. One timer serves all nodes.
2. Each beat has its own reply subject in the node's private inbox, so a reply tells which beat it
   answers, and the node counts its lease from the moment that beat was sent.
3. While the bus is away nothing is queued: a beat is the whole picture, the next one says it all.
"""

import asyncio
import heapq
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from gpuyard import subjects
from gpuyard.bus import Bus, Message
from gpuyard.errors import ProtocolError, Unavailable
from gpuyard.messages import Beat, LogChunk, LogsReply

log = structlog.get_logger()
_REMEMBERED_BEATS: Final = 64
_CONCURRENT_READS: Final = 16
_ROUNDS: Final = 4
"""Of the event loop that a beat lets pass: what a change has begun comes first, as the engine's
call that starts a container does, and what it changes besides is in the same beat."""


class Peer(Protocol):
    """What the link needs of a node."""

    @property
    def name(self) -> str: ...

    @property
    def can_beat_now(self) -> bool:
        """True where `beat` would not have to wait for the disk."""

    async def beat(self, seq: int) -> Beat | None:
        """The whole picture, with everything it says on disk; None before there is one."""

    def on_reply(self, reply: Mapping[str, Any], *, seq: int, sent_at: float) -> None: ...

    def on_wanted(self, document: Mapping[str, Any]) -> None: ...

    async def read_logs(self, request: Mapping[str, Any]) -> LogsReply: ...


@dataclass(slots=True)
class _Channel:
    """One node on the bus."""

    peer: Peer
    seq: int = 0
    sent: dict[int, float] = field(default_factory=dict)
    """When the last beats left, on the boot clock."""
    is_sending: bool = False
    is_due: bool = False
    is_stale: bool = False
    """Something changed while a beat was being made."""


class Link:
    """All nodes of one agent process on one connection, which may come and go."""

    def __init__(
        self, peers: Iterable[Peer], *, beat_s: float, boot_clock: Callable[[], float]
    ) -> None:
        self._channels = {peer.name: _Channel(peer) for peer in peers}
        self._beat_s = beat_s
        self._clock = boot_clock
        self._token = secrets.token_hex(8)
        self._bus: Bus | None = None
        self._wheel: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due: list[_Channel] = []
        self._wake = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self.replies_refused = 0
        """Replies and documents that could not be read."""

    @property
    def is_connected(self) -> bool:
        return self._bus is not None and self._bus.is_connected

    def start(self) -> None:
        """Starts the beats; they go nowhere until `attach`."""
        loop = asyncio.get_running_loop()
        step = self._beat_s / max(1, len(self._channels))
        self._wheel = [(loop.time() + i * step, name) for i, name in enumerate(self._channels)]
        heapq.heapify(self._wheel)
        self._pump = asyncio.create_task(self._run(), name="beats")
        self._turn()

    async def attach(self, bus: Bus) -> None:
        """Subscribes on a connection and beats on it from now on; raises Unavailable."""
        # Several nodes share one wildcard each, so that thousands cost three subscriptions.
        names = next(iter(self._channels)) if len(self._channels) == 1 else "*"
        inbox = f"{subjects.agent_inbox(names)}.{self._token}.*"
        await bus.agents.subscribe(inbox, self._on_reply)
        await bus.agents.subscribe(subjects.wanted(names), self._on_wanted)
        await bus.agents.serve(
            subjects.command(names, "logs"), self._on_logs, concurrency=_CONCURRENT_READS
        )
        self._bus = bus
        bus.on_reconnect(self._beat_all)
        self._beat_all()

    def beat_soon(self, node: str) -> None:
        """Lets the node's picture go out in this turn of the event loop."""
        channel = self._channels[node]
        if not channel.is_due:
            channel.is_due = True
            self._due.append(channel)
            self._wake.set()

    async def beat_now(self, node: str) -> None:
        """Returns when a beat has been handed to the connection, or could not be."""
        await self._send(self._channels[node])

    async def publish_chunk(self, subject: str, chunk: LogChunk) -> None:
        """Publishes one log chunk; raises Unavailable while the bus is away."""
        if self._bus is None:
            raise Unavailable("the bus is not connected")
        await self._bus.agents.publish(subject, chunk)

    async def close(self) -> None:
        """Ends the beats; the connection stays open."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._sending, *([self._pump] if self._pump else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _turn(self) -> None:
        """The timer: every node that is due now, then the next one's time."""
        now = asyncio.get_running_loop().time()
        while self._wheel and self._wheel[0][0] <= now:
            at, name = heapq.heappop(self._wheel)
            # From the due time, so that beats do not drift together; after a pause, from now.
            heapq.heappush(self._wheel, (max(at + self._beat_s, now), name))
            self.beat_soon(name)
        if self._wheel:
            self._timer = asyncio.get_running_loop().call_at(self._wheel[0][0], self._turn)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            self._wake.clear()
            due, self._due = self._due, []
            for channel in due:
                channel.is_due = False
                if channel.is_sending:
                    channel.is_stale = True
                elif channel.peer.can_beat_now:
                    await self._send(channel)
                else:
                    self._keep(self._send(channel))

    async def _send(self, channel: _Channel) -> None:
        if self._bus is None or not self._bus.is_connected:
            return
        channel.is_sending = True
        try:
            await self._publish(self._bus, channel)
        except Unavailable:
            return  # the next beat says everything again
        except ProtocolError as fault:
            log.error("beat not sent", node=channel.peer.name, fault=str(fault))
        finally:
            channel.is_sending = False
            if channel.is_stale:
                channel.is_stale = False
                self.beat_soon(channel.peer.name)

    async def _publish(self, bus: Bus, channel: _Channel) -> None:
        channel.seq += 1
        seq = channel.seq
        beat = await channel.peer.beat(seq)
        if beat is None:
            return
        channel.sent[seq] = self._clock()
        channel.sent.pop(seq - _REMEMBERED_BEATS, None)
        name = channel.peer.name
        reply = f"{subjects.agent_inbox(name)}.{self._token}.{seq}"
        await bus.agents.publish(subjects.beat(name), beat, reply=reply)

    def _beat_all(self) -> None:
        """After a (re)connect: every node once, over the coming interval where there are many."""
        if len(self._channels) <= 64:
            for name in self._channels:
                self.beat_soon(name)

    def _on_reply(self, message: Message) -> None:
        node, seq = _reply_parts(message.subject)
        channel = self._channels.get(node)
        sent_at = channel.sent.pop(seq, None) if channel else None
        if channel is None or sent_at is None:
            return  # for another process's node, or answered twice
        if message.headers.get("Status") == "503":
            return  # the server's own word that no leader listens now
        try:
            reply = message.body()
            channel.peer.on_reply(reply, seq=seq, sent_at=sent_at)
        except ProtocolError as fault:
            self.replies_refused += 1
            log.warning("reply refused", node=node, fault=str(fault))

    def _on_wanted(self, message: Message) -> None:
        node = message.subject.rsplit(".", 1)[1]
        channel = self._channels.get(node)
        if channel is None:
            return
        try:
            channel.peer.on_wanted(message.body())
        except ProtocolError as fault:
            self.replies_refused += 1
            log.warning("wanted document refused", node=node, fault=str(fault))

    async def _on_logs(self, message: Message) -> None:
        node = message.subject.split(".")[2]
        channel = self._channels.get(node)
        if channel is None or self._bus is None:
            return
        try:
            answer = await channel.peer.read_logs(message.body())
        except ProtocolError as fault:
            answer = {"v": 1, "pieces": [], "end": True, "message": str(fault)}
        await self._bus.agents.respond(message, answer, caller_prefix=subjects.COORDINATOR_INBOX)

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _reply_parts(subject: str) -> tuple[str, int]:
    """(node, seq) of `_INBOX.a.<node>.<token>.<seq>`; seq -1 where it is no such subject."""
    tokens = subject.split(".")
    if len(tokens) == 5 and tokens[4].isdigit():
        return tokens[2], int(tokens[4])
    return "", -1
