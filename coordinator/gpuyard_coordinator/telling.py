"""What a turn tells others once its commit is stored: acknowledgements, pushes and answers.

Bodies are packed before, while the bus stores the commit: from then on the state is what will be
committed, or nothing is told at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Delivery, Message
from gpuyard.errors import Unavailable
from gpuyard.messages import BeatReply
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import BeatOutcome, Effects, Outcome
from gpuyard_coordinator.core.state import Node
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.log_ledger import LogLedger


@dataclass(slots=True)
class Packed:
    """Bodies of what is sent after the commit, with where they go."""

    pushes: list[tuple[str, bytes]]
    """(node, wanted document)."""
    replies: list[tuple[Message, str, BeatReply | bytes]]
    """(beat, node, answer)."""


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
        pushes = [(name, self._wanted(name)) for name in effects.wanted]
        replies = [
            (beat.ref, beat.node, self._answer(beat, is_pushed=beat.node in effects.wanted))
            for beat in effects.beats
            if isinstance(beat.ref, Message)
        ]
        return Packed(pushes, replies)

    async def send(self, packed: Packed, effects: Effects, deliveries: Sequence[Delivery]) -> None:
        """All that follows a turn whose commit is stored."""
        for name, body in packed.pushes:
            await self._push(name, body)
        for delivery in deliveries:
            delivery.ack()
        for outcome in effects.outcomes:
            _answer_request(outcome)
        for key, attempts in effects.ended:
            self.ended(key, attempts)
        # An answer renews a node's lease, so it needs a lease of our own.
        if self.leadership.is_valid(self.clock.monotonic()):
            for message, node, answer in packed.replies:
                await self._reply(message, node, answer)

    async def announce(self) -> None:
        """Shows every known node its document under the new token, so that it beats at once."""
        for name in list(self.cluster.nodes):
            await self._push(name, self._wanted(name))

    def _wanted(self, name: str) -> bytes:
        return documents.encode_wanted(self.cluster, self.cluster.nodes[name])

    async def _push(self, name: str, body: bytes) -> None:
        """A push is for latency alone: one that is lost is repaired by the next beat's reply."""
        try:
            await self.bus.agents.publish(subjects.wanted(name), body)
        except Unavailable:
            self.log.debug("push not sent", node=name)

    async def _reply(self, message: Message, node: str, answer: BeatReply | bytes) -> None:
        try:
            await self.bus.agents.respond(message, answer, caller_prefix=subjects.agent_inbox(node))
        except Unavailable:
            self.log.debug("beat not answered", node=node)

    def _answer(self, outcome: BeatOutcome, *, is_pushed: bool) -> BeatReply | bytes:
        node = self.cluster.nodes[outcome.node]
        is_wanted = outcome.needs_wanted and not is_pushed
        log_chunks = self.logs.stored(node) if node.attempts else {}
        is_json = isinstance(outcome.ref, Message) and outcome.ref.is_json
        if is_wanted or log_chunks or outcome.status != "ok" or is_json:
            return self._beat_reply(outcome, node if is_wanted else None, log_chunks)
        if not self._usual_reply:
            self._usual_reply = codec.encode(self._beat_reply(None, None, {}))
        return self._usual_reply

    def _beat_reply(
        self, outcome: BeatOutcome | None, wanted: Node | None, log_chunks: dict[str, int]
    ) -> BeatReply:
        """To a node whose wanted set is to be told, or None; `outcome` is None where all is well."""
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
