"""Random interleavings of documents, exits, losses and restarts against the agent's core.

Safety, after every event: no attempt is started twice, no reported state goes back, nothing is
started for a stop, nothing that ended runs on. Liveness, at the end of every history: each stop
ends, and once the coordinator has taken every end in, nothing is left.
"""

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuyard.messages import Token, WantedEntry
from gpuyard_agent.core.attempt import Attempt
from gpuyard_agent.core.containers import Exit, Seen, Status
from gpuyard_agent.core.document import Document, entry_key
from gpuyard_agent.core.intake import (
    Refused,
    adoption_records,
    confirm,
    document_records,
    take_listing,
)
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.memory import (
    Memory,
    Record,
    ended_record,
    intent_record,
    key_list,
    started_record,
)
from gpuyard_agent.core.report import is_reported, is_unexpected, report
from gpuyard_agent.core.stepping import ABSENCES, next_step
from gpuyard_agent.core.steps import Accept, End, Forget, Here, Launch, Remove, Signal, Step
from gpuyard_agent.core.stopping import CONFIRMATIONS, KILL_AGAIN_S
from gpuyard_agent.core.times import rfc3339
from tests.support.agent_builders import (
    NODE,
    TOKEN,
    WALL,
    YARD,
    entry,
    exited,
    here,
    key,
    seen,
    started,
    stop,
)

JOBS = [f"job-{i}" for i in range(4)]
RANKS = ["accepted", "preparing", "running", "stopping", "ended"]


@dataclass
class Coordinator:
    """Names attempts, orders stops, and takes an entry away only after its reported end."""

    token: Token = TOKEN
    revision: int = 1
    entries: dict[AttemptKey, WantedEntry] = field(default_factory=dict)
    next_attempt: dict[str, int] = field(default_factory=dict)

    def assign(self, job: str) -> None:
        if any(held.job == job for held in self.entries):
            return
        number = self.next_attempt.get(job, 1)
        self.next_attempt[job] = number + 1
        self.entries[key(job, number)] = entry(job, attempt=number, max_runtime="50s")
        self.revision += 1

    def order_stop(self, job: str) -> None:
        for held, want in self.entries.items():
            if held.job == job and want["stop"] is None:
                self.entries[held] = want | {"stop": stop(grace_s=5)}
                self.revision += 1

    def commit(self, which: AttemptKey) -> None:
        if self.entries.pop(which, None) is not None:
            self.revision += 1

    def document(self) -> Document:
        return Document(YARD, NODE, self.token, self.revision, dict(self.entries))


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.coordinator = Coordinator()
        self.containers: dict[AttemptKey, Seen] = {}
        self.obeys: dict[AttemptKey, bool] = {}
        self.starts: dict[AttemptKey, int] = {}
        self.ranks: dict[AttemptKey, int] = {}
        self.journal: list[Record] = []
        self.memory = Memory()
        self.is_listed = False
        self.dies_in_launch = False
        self.write({"k": "yard", "yard": YARD})
        self.list_containers()
        self.deliver()  # the first document of a fresh node is empty

    # The agent's shell, in miniature.

    def here(self) -> Here:
        return here(wall=WALL + self.now, listed=self.is_listed, adopting=self.memory.adopting)

    def write(self, *records: Record) -> None:
        for record in records:
            self.journal.append(record)
            self.memory.apply(record)

    def settle(self) -> None:
        """Every attempt takes its steps until none is due."""
        for attempt in list(self.memory.attempts.values()):
            for _ in range(12):
                step = next_step(attempt.entry, attempt, self.here(), self.now)
                if step is None or attempt.key not in self.memory.attempts:
                    break
                if not self.perform(attempt, step):
                    return
            else:
                raise AssertionError(f"{attempt.key} never comes to rest")

    def perform(self, attempt: Attempt, step: Step) -> bool:
        """False where the agent died in the middle."""
        held = key_list(attempt.key)
        match step:
            case Accept():
                self.write({"k": "accepted", "key": held, "gpus": []})
            case Launch():
                assert attempt.entry is not None
                assert attempt.entry["stop"] is None, "a stopped attempt was started"
                self.write({"k": "launching", "key": held, "boot": "boot-1"})
                return self.launch(attempt)
            case Signal(name, intent):
                self.write(intent_record(attempt.key, intent))
                self.signal(attempt.key, name)
                self.notice(attempt)
            case End(result):
                self.write(ended_record(attempt.key, result))
                self.write(*adoption_records(self.memory))
            case Remove():
                self.containers.pop(attempt.key, None)
                self.write({"k": "forgotten", "key": held})
            case Forget():
                self.write({"k": "forgotten", "key": held})
            case _:
                raise AssertionError(f"unexpected step {step}")
        return True

    def launch(self, attempt: Attempt) -> bool:
        which = attempt.key
        if which not in self.containers:
            self.starts[which] = self.starts.get(which, 0) + 1
            self.containers[which] = replace(seen(which.job, attempt=which.attempt), key=which)
        if self.dies_in_launch:
            self.dies_in_launch = False
            self.restart(keeps_journal=True)
            return False
        attempt.container, attempt.absences = self.containers[which], 0
        if attempt.started is None:
            self.write(started_record(which, started(self.now)))
        self.notice(attempt)
        return True

    def signal(self, which: AttemptKey, name: str) -> None:
        container = self.containers.get(which)
        if container is None or container.status is not Status.RUNNING:
            return
        if name == "SIGKILL":
            self.end_container(which, 137)
        elif self.obeys.get(which, True):
            self.end_container(which, 143)

    def end_container(self, which: AttemptKey, code: int) -> None:
        over = Exit(code, rfc3339(WALL + self.now))
        self.containers[which] = replace(self.containers[which], status=Status.EXITED, exit=over)

    def notice(self, attempt: Attempt) -> None:
        """The exit event of a container that this agent follows."""
        shown = self.containers.get(attempt.key)
        if shown is not None and shown.exit is not None and attempt.exit is None:
            attempt.exit, attempt.container = shown.exit, shown

    def restart(self, *, keeps_journal: bool) -> None:
        if not keeps_journal:
            self.journal = []
        self.memory = Memory()
        for record in self.journal:
            self.memory.apply(record)
        if not keeps_journal:
            self.write({"k": "yard", "yard": YARD})
        self.is_listed = False
        self.list_containers()

    # Events.

    @rule()
    def list_containers(self) -> None:
        absent = [
            attempt
            for attempt in self.memory.attempts.values()
            if attempt.key not in self.containers
            and attempt.exit is None
            and attempt.result is None
            and (attempt.container is not None or attempt.launched is not None)
        ]
        take_listing(self.memory, list(self.containers.values()), absent=absent)
        for attempt in self.memory.attempts.values():
            shown = attempt.container
            if shown is None or attempt.absences or attempt.started is not None:
                continue
            if shown.status is not Status.CREATED:
                self.write(started_record(attempt.key, started(self.now)))
        self.is_listed = True
        self.settle()

    @rule(job=st.sampled_from(JOBS))
    def assign(self, job: str) -> None:
        self.coordinator.assign(job)

    @rule(job=st.sampled_from(JOBS))
    def order_stop(self, job: str) -> None:
        self.coordinator.order_stop(job)

    @rule()
    def deliver(self) -> None:
        records = document_records(self.memory, self.coordinator.document(), self.here())
        if not isinstance(records, Refused):
            self.write(*records)
            for which in self.coordinator.entries:
                self.memory.attempts[which].confirmations = 0
        self.settle()

    @rule(job=st.sampled_from(JOBS))
    def deliver_a_stale_document(self, job: str) -> None:
        """An older leader's word, or an older document of this one: both must change nothing."""
        before = dict(self.memory.attempts)
        applied = self.memory.applied
        if applied is None:
            return
        named = {key(job, 9): entry(job, attempt=9)}
        for old in (
            Document(YARD, NODE, (TOKEN[0], 1), 99, named),
            Document(YARD, NODE, applied[0], applied[1], named),
            Document(YARD, NODE, applied[0], applied[1] - 1, {}),
        ):
            assert isinstance(document_records(self.memory, old, self.here()), Refused)
        assert dict(self.memory.attempts) == before

    @rule(job=st.sampled_from(JOBS), code=st.sampled_from([0, 1, 137]))
    def container_exits(self, job: str, code: int) -> None:
        for which, container in list(self.containers.items()):
            if which.job == job and container.status is Status.RUNNING:
                self.end_container(which, code)
                if which in self.memory.attempts:
                    self.notice(self.memory.attempts[which])
        self.settle()

    @rule(job=st.sampled_from(JOBS))
    def container_vanishes(self, job: str) -> None:
        for which in [w for w in self.containers if w.job == job]:
            del self.containers[which]

    @rule(job=st.sampled_from(JOBS), obeys=st.booleans())
    def choose_obedience(self, job: str, obeys: bool) -> None:
        for which in self.containers:
            if which.job == job:
                self.obeys[which] = obeys

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0, 20.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    @rule(keeps_journal=st.sampled_from([True, True, True, False]))
    def agent_restarts(self, keeps_journal: bool) -> None:
        self.restart(keeps_journal=keeps_journal)

    @rule()
    def agent_dies_in_the_next_launch(self) -> None:
        self.dies_in_launch = True

    @rule()
    def coordinator_changes(self) -> None:
        self.coordinator.token = (self.coordinator.token[0], self.coordinator.token[1] + 1)
        self.coordinator.revision = 1

    @rule()
    def yard_is_restored(self) -> None:
        self.coordinator.token = (self.coordinator.token[0] + 1, 1)
        self.coordinator.revision = 1

    @rule()
    def beat(self) -> None:
        """A beat and its answer: ends are committed, strays are confirmed."""
        is_current = self.memory.applied == (self.coordinator.token, self.coordinator.revision)
        strays = []
        for attempt in list(self.memory.attempts.values()):
            if not is_reported(attempt):
                continue
            told = report(attempt, None)
            rank = RANKS.index(told["state"])
            if told["state"] == "ended":
                self.coordinator.commit(attempt.key)
            if is_unexpected(attempt):
                strays.append(attempt)
            assert rank >= 0
        if is_current:
            confirm(strays)
        self.settle()

    # Safety.

    @invariant()
    def no_attempt_is_started_twice(self) -> None:
        assert all(count == 1 for count in self.starts.values()), self.starts

    @invariant()
    def no_report_goes_back(self) -> None:
        """Within one memory; a lost journal may only know less."""
        for attempt in self.memory.attempts.values():
            if is_reported(attempt):
                before = attempt.rank
                assert RANKS.index(report(attempt, None)["state"]) >= before

    @invariant()
    def the_journal_rebuilds_the_memory(self) -> None:
        again = Memory()
        for record in self.journal:
            again.apply(record)
        for which, attempt in self.memory.attempts.items():
            known = again.attempts.get(which, Attempt(which))
            assert (known.entry, known.former, known.accepted, known.launched) == (
                attempt.entry,
                attempt.former,
                attempt.accepted,
                attempt.launched,
            )
            assert (known.intent, known.result) == (attempt.intent, attempt.result)
        assert (again.applied, again.token, again.adopting) == (
            self.memory.applied,
            self.memory.token,
            self.memory.adopting,
        )

    # Liveness.

    def teardown(self) -> None:
        """The coordinator stops everything it knows; then all of it must come to its end."""
        self.dies_in_launch = False
        for job in JOBS:
            self.coordinator.order_stop(job)
        for _ in range(ABSENCES + CONFIRMATIONS + 6):
            self.deliver()
            self.list_containers()
            self.time_passes(KILL_AGAIN_S + 60)
            self.beat()
            self._refuse_strays_by_name()
        assert not self.coordinator.entries, "a stop never ended"
        assert not any(c.status is Status.RUNNING for c in self.containers.values())
        assert not self.memory.attempts, "something was never forgotten"
        assert not self.containers

    def _refuse_strays_by_name(self) -> None:
        """What a coordinator does about an adopting node's attempts that it does not know."""
        for attempt in self.memory.attempts.values():
            if self.memory.adopting and attempt.entry is None and is_reported(attempt):
                which = attempt.key
                self.coordinator.entries[which] = entry(
                    which.job, attempt=which.attempt, stop=stop(grace_s=1)
                )
                self.coordinator.revision += 1


Interleavings.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestInterleavings = Interleavings.TestCase


def test_entry_keys_and_exits_are_what_the_builders_say() -> None:
    assert entry_key(entry("a", attempt=3)) == key("a", 3)
    assert exited(1).code == 1
