"""All that a yard of a test has told, checked as it comes."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from gpuyard import codec, subjects
from gpuyard.model.ids import JobKey
from gpuyard.model.states import FINAL_STATES
from gpuyard_coordinator.core.effects import Effects

_SUBJECT = re.compile(r"gpuyard\.events(\.[a-z0-9_-]+){3}\.[0-9]+")


@dataclass(slots=True)
class Story:
    """Everything that was told of each job, checked as it comes."""

    events: dict[JobKey, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    rejected: list[dict[str, Any]] = field(default_factory=list)
    audits: list[dict[str, Any]] = field(default_factory=list)
    _subjects: set[str] = field(default_factory=set)

    def take(self, effects: Effects) -> None:
        for message in effects.out:
            subject, body = message["subject"], message["body"]
            if subject.startswith("gpuyard.audit."):
                assert subject == subjects.audit(body["namespace"], body["action"])
                self.audits.append(body)
                continue
            assert _SUBJECT.fullmatch(subject), subject
            assert subject not in self._subjects, f"{subject} is told twice"
            self._subjects.add(subject)
            assert codec.decode(codec.encode(body)) == body
            parts = body["tenant"], body["job"], body["kind"], body["seq"]
            assert subject == subjects.event(*parts)
            if body["kind"] == "rejected":
                self.rejected.append(body)
            else:
                self._take_event(body)

    def _take_event(self, body: dict[str, Any]) -> None:
        told = self.events[body["tenant"], body["job"]]
        assert body["seq"] == len(told) + 1, "events of a job are numbered without a gap"
        assert not told or told[-1]["state"] not in FINAL_STATES, "nothing follows an end"
        told.append(body)
