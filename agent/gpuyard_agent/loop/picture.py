"""What a node's beats tell: the whole of what is, each time anew."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuyard.messages import VERSION, AttemptReport, Beat
from gpuyard.model.node import NodeFacts, NodeReason
from gpuyard_agent.core.attempt import Attempt
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.report import is_reported, is_unexpected, keep_within_a_beat, report
from gpuyard_agent.core.times import rfc3339

if TYPE_CHECKING:
    from gpuyard_agent.loop.node import NodeAgent


class Picture:
    """See the module's docstring; it remembers which attempts it told as unexpected."""

    def __init__(self, node: "NodeAgent") -> None:
        self._node = node
        self._unexpected_since: dict[AttemptKey, int] = {}

    def beat(self, seq: int, facts: NodeFacts) -> Beat:
        """Beat number `seq`; the caller has seen to it that what it claims is on the disk."""
        node, memory = self._node, self._node.memory
        applied = memory.applied
        return {
            "v": VERSION,
            "yard": memory.yard,
            "node": node.name,
            "machine_id": node.parts.host.machine_id,
            "boot_id": node.parts.host.boot_id,
            "instance": node.instance,
            "started_ns": node.started_ns,
            "seq": seq,
            "ts": rfc3339(node.parts.clock.wall()),
            "applied": (
                None if applied is None else {"token": list(applied[0]), "revision": applied[1]}
            ),
            "adopting": memory.adopting,
            "generation": node.inventory.generation,
            "facts": facts,
            "sample_age_s": node.inventory.age_s,
            "samples": node.inventory.samples,
            "reasons": list(self._reasons()),
            "attempts": self._reports(seq),
            "stopping": node.is_stopping,
            "self_stop": node.fences.answers,
        }

    def unexpected(self, seq: int) -> list[Attempt]:
        """Those that beat `seq` reported as unexpected, and each one since."""
        attempts = self._node.memory.attempts
        return [
            attempts[key]
            for key, since in self._unexpected_since.items()
            if since <= seq and key in attempts
        ]

    def _reports(self, seq: int) -> list[AttemptReport]:
        reports = []
        unexpected: dict[AttemptKey, int] = {}
        for attempt in self._node.memory.attempts.values():
            if not is_reported(attempt):
                continue
            if is_unexpected(attempt):
                unexpected[attempt.key] = self._unexpected_since.get(attempt.key, seq)
            reports.append(report(attempt, self._node.actions.usage(attempt)))
        keep_within_a_beat(reports)
        self._unexpected_since = unexpected
        return reports

    def _reasons(self) -> Iterable[NodeReason]:
        yield from self._node.engine.reasons
        yield from self._node.inventory.reasons()
        if self._node.journal_fault is not None:
            yield {
                "code": "disk_low",
                "message": self._node.journal_fault,
                "gpu": None,
                "since": None,
            }
        if self._node.memory.adopting and self._node.memory.applied is not None:
            message = "attempts are being taken over after a restart"
            yield {"code": "adopting", "message": message, "gpu": None, "since": None}
