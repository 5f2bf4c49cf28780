"""What a turn tells others once its commit is stored: acknowledgements, pushes and answers.

Bodies are packed before, while the bus stores the commit: from then on the state is what will be
committed, or nothing is told at all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from structlog.typing import FilteringBoundLogger

from gpuyard import subjects
from gpuyard.bus import Bus, Delivery, Message
from gpuyard.errors import Unavailable
from gpuyard.messages import BeatReply
from gpuyard.model.ids import JobKey
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import BeatOutcome, Effects, Outcome
from gpuyard_coordinator.core.state import Node
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.log_ledger import LogLedger

Sent = tuple[str, bytes]
"""Subject and body."""
_AT_ONCE_BYTES: Final = 256 * 1024
"""Of bodies that go out in one go: as much as is copied in a moment."""


@dataclass(slots=True)
class Packed:
    """What is sent after the commit: subjects and bodies."""

    pushes: list[Sent]
    """Wanted documents."""
    replies: list[Sent]
    """Answers to beats."""


@dataclass(slots=True)
class Teller:
    """Tells for one leadership."""

    bus: Bus
    leadership: Leadership
    cluster: Cluster
    clock: Clock
    log: FilteringBoundLogger
    logs: LogLedger
    ended: Callable[[JobKey, int], None] = lambda key, attempts: None
    """Told of every job that is over, and of its number of attempts."""
    _usual_reply: bytes = field(default=b"", init=False)
    """What nearly every beat is answered: all is well, and there is no news."""

    def pack(self, effects: Effects) -> Packed:
        """The pushes and answers to beats of a turn, as its state is now."""
        pushes = [(subjects.wanted(name), self._wanted(name)) for name in effects.wanted]
        replies = [
            (beat.ref.reply, self._answer(beat, beat.ref, is_pushed=beat.node in effects.wanted))
            for beat in effects.beats
            if isinstance(beat.ref, Message) and self._may_answer(beat.node, beat.ref)
        ]
        return Packed(pushes, replies)

    async def send(self, packed: Packed, effects: Effects, deliveries: Sequence[Delivery]) -> None:
        """All that follows a turn whose commit is stored."""
        await self._send(packed.pushes)
        for delivery in deliveries:
            delivery.ack()
        for outcome in effects.outcomes:
            _answer_request(outcome)
        for key, attempts in effects.ended:
            self.ended(key, attempts)
        # An answer renews a node's lease, so it needs a lease of our own.
        if self.leadership.is_valid(self.clock.monotonic()):
            await self._send(packed.replies)

    async def announce(self) -> None:
        """Shows every known node its document under the new token, so that it beats at once."""
        await self._send(
            (subjects.wanted(name), self._wanted(name)) for name in list(self.cluster.nodes)
        )

    async def _send(self, messages: Iterable[Sent]) -> None:
        """Pushes and answers only save time: what is lost comes with the next beat's reply."""
        some, size = list[Sent](), 0
        for message in messages:
            some.append(message)
            size += len(message[1])
            if size >= _AT_ONCE_BYTES:
                await self._publish(some)
                some, size = [], 0
        if some:
            await self._publish(some)

    async def _publish(self, messages: Sequence[Sent]) -> None:
        try:
            await self.bus.agents.publish_all(messages)
        except Unavailable:
            self.log.debug("nodes not told", messages=len(messages))

    def _may_answer(self, node: str, beat: Message) -> bool:
        return self.bus.agents.may_answer(beat, caller_prefix=subjects.agent_inbox(node))

    def _wanted(self, name: str) -> bytes:
        return documents.encode_wanted(self.cluster, self.cluster.nodes[name])

    def _answer(self, outcome: BeatOutcome, beat: Message, *, is_pushed: bool) -> bytes:
        node = self.cluster.nodes[outcome.node]
        is_wanted = outcome.needs_wanted and not is_pushed
        log_chunks = self.logs.stored(node) if node.attempts else {}
        if is_wanted or log_chunks or outcome.status != "ok" or beat.is_json:
            answer = self._beat_reply(outcome, node if is_wanted else None, log_chunks)
            return beat.encode_answer(answer) if beat.is_json else fast_codec.encode(answer)
        if not self._usual_reply:
            self._usual_reply = fast_codec.encode(self._beat_reply(None, None, {}))
        return self._usual_reply

    def _beat_reply(
        self, outcome: BeatOutcome | None, wanted: Node | None, log_chunks: dict[str, int]
    ) -> BeatReply:
        """To a node whose wanted set is to be told, or None; `outcome` None: all is well."""
        is_rival = outcome is not None and outcome.status != "ok"
        return {
            "v": 1,
            "yard": self.cluster.yard,
            "token": list(self.cluster.token),
            "lease_s": self.cluster.settings.lost_s,
            "status": "duplicate_name" if is_rival else "ok",
            "message": outcome.message if outcome is not None else None,
            "wanted": documents.wanted_document(self.cluster, wanted) if wanted else None,
            "log_chunks": log_chunks,
        }


def _answer_request(outcome: Outcome) -> None:
    ref = outcome.ref
    if ref is not None and not isinstance(ref, Delivery):
        ref.answer(outcome)  # type: ignore[attr-defined]  # every other ref is an Asker
