"""Jobs stopped for one of higher priority: which, how many, and that it comes to an end."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core.reserving import COOL_DOWN_S, OVERDUE_S
from gpuyard_coordinator.core.state import Job
from tests.support.yard import TENANT, Yard

GRACE_S = 30


def run(yard: Yard, id: str, *, priority: int = 10, preemptible: bool = True, **spec: Any) -> None:
    """A job that has its node since now."""
    yard.submit(id, priority=priority, preemptible=preemptible, **({"gpus": 1} | spec))
    yard.plan()
    yard.start(id)


def full(*priorities: int, gpus: int | None = None) -> Yard:
    """A node whose GPUs are held by preemptible jobs `j0` and so on, a minute each and longer."""
    yard = Yard()
    yard.node("a", gpus=gpus or len(priorities))
    for number, priority in enumerate(priorities):
        run(yard, f"j{number}", priority=priority)
        yard.spend(5)
    yard.spend(60)
    return yard


def stopping(yard: Yard) -> list[str]:
    return sorted(id for (_, id), job in yard.cluster.jobs.items() if job.state == "stopping")


def stop(yard: Yard, id: str) -> None:
    """The victim ends as it was told."""
    yard.end(id, reason="preempted", exit_code=143)


def test_a_job_of_higher_priority_stops_one_and_has_its_gpu() -> None:
    yard = full(10)
    yard.submit("urgent", gpus=1, priority=90)
    yard.submit("other", gpus=1, priority=50)
    yard.plan()
    order = yard.attempt("j0").stop
    assert order is not None and (order["reason"], order["signal"]) == ("preempted", "SIGTERM")
    (told,) = [event for event in yard.events("j0") if event["kind"] == "stopping"]
    assert told["message"] == "job urgent has a higher priority and takes its place"
    stop(yard, "j0")
    yard.plan()

    assert yard.states("urgent", "j0", "other") == ["assigned", "queued", "queued"]
    assert yard.kinds("j0")[-2:] == ["requeued", "queued"]


def test_the_least_harm_is_done() -> None:
    yard = full(20, 10, 10, 30)
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()
    assert stopping(yard) == ["j2"], "the lowest priority, of that the youngest"
    yard.submit("more", gpus=2, priority=90)
    yard.plan()

    assert stopping(yard) == ["j0", "j1", "j2"]


def test_no_more_are_stopped_than_needed() -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    run(yard, "small", gpus=1, priority=5)
    run(yard, "large", gpus=3, priority=10)
    yard.spend(60)
    yard.submit("urgent", gpus=3, priority=90)
    yard.plan()

    assert stopping(yard) == ["large"]


def test_the_node_where_fewer_are_stopped_is_taken() -> None:
    yard = Yard()
    for name in ("a", "b"):
        yard.node(name, gpus=2)
    for id in ("a0", "a1"):
        run(yard, id, node="a")
    run(yard, "b0", node="b", gpus=2)
    yard.spend(60)
    yard.submit("urgent", gpus=2, priority=90)
    yard.plan()

    assert stopping(yard) == ["b0"]


def test_spared_are_equals_those_not_preemptible_and_those_that_just_began() -> None:
    yard = Yard()
    yard.node("a", gpus=3)
    run(yard, "equal", priority=90)
    run(yard, "firm", preemptible=False)
    yard.spend(60)
    run(yard, "fresh")
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()
    assert stopping(yard) == []
    yard.spend(60)
    yard.plan()

    assert stopping(yard) == ["fresh"]


def test_a_tenant_that_goes_first_preempts_whatever_the_jobs_say() -> None:
    yard = Yard()
    yard.tenant("vip", priority=60)
    yard.node("a", gpus=1)
    run(yard, "j0", priority=90)
    yard.spend(60)
    yard.submit("j", tenant="vip", gpus=1, priority=0)
    yard.plan()

    assert stopping(yard) == ["j0"]
    (told,) = [event for event in yard.events("j0") if event["kind"] == "stopping"]
    assert told["message"].startswith("a job of tenant vip has"), "its id is its tenant's matter"


def test_jobs_of_one_shape_are_all_helped_at_once() -> None:
    yard = full(10, 10, 10, 10)
    for number in range(6):
        yard.submit(f"u{number}", gpus=1, priority=90)
    yard.plan()
    assert stopping(yard) == ["j0", "j1", "j2", "j3"]
    for id in stopping(yard):
        stop(yard, id)
        yard.plan()

    assert yard.states("u0", "u1", "u2", "u3", "u4") == ["assigned"] * 4 + ["queued"]


def test_one_plan_per_claim_and_nothing_else_meanwhile() -> None:
    yard = full(10, 10)
    yard.submit("urgent", gpus=2, priority=90)
    yard.plan()
    assert stopping(yard) == ["j0", "j1"]
    stop(yard, "j0")
    yard.submit("small", gpus=1, priority=50, max_runtime="10h")
    yard.plan()
    assert yard.states("urgent", "small") == ["queued", "queued"], "what is free is kept"
    verdict = yard.why("small")["verdict"]
    assert verdict is not None and verdict["code"] == "reserved_for_other"
    stop(yard, "j1")
    yard.plan()

    assert yard.states("urgent") == ["assigned"]


def test_a_new_leader_goes_on_with_what_is_stopping() -> None:
    yard = full(10, 10)
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()
    victims = stopping(yard)
    yard.restart()
    yard.beat("a")
    yard.beat("a")
    yard.plan()

    assert len(victims) == 1 and stopping(yard) == victims
    held = yard.cluster.reservations.by_job[TENANT, "urgent"]
    assert held.is_claim and held.node == "a"


def test_a_claim_that_comes_to_nothing_cools_down() -> None:
    yard = full(10, 10)
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()
    (victim,) = stopping(yard)
    yard.agents["a"].change_sample(
        yard.held(victim)[0], health={"state": "dirty", "reason": None, "since": None}
    )
    stop(yard, victim)
    yard.plan()
    yard.spend(GRACE_S + OVERDUE_S + 10)
    yard.plan()
    assert stopping(yard) == []
    yard.spend(COOL_DOWN_S)
    yard.plan()

    assert len(stopping(yard)) == 1


def claimants(yard: Yard) -> list[str]:
    return [id for (_, id), held in yard.cluster.reservations.by_job.items() if held.is_claim]


def test_a_claim_ends_when_one_who_comes_before_takes_the_room() -> None:
    yard = full(10, 10)
    yard.submit("claims", gpus=1, priority=20)
    yard.plan()
    (first,) = stopping(yard)
    stop(yard, first)
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()
    assert yard.states("urgent", "claims") == ["assigned", "queued"]
    assert claimants(yard) == [] and stopping(yard) == []
    yard.spend(COOL_DOWN_S)
    yard.plan()

    assert claimants(yard) == ["claims"] and len(stopping(yard)) == 1


def test_of_several_claims_the_last_ends_when_one_place_is_taken() -> None:
    yard = full(10, 10)
    for id in ("first", "last"):
        yard.submit(id, gpus=1, priority=20)
    yard.plan()
    assert claimants(yard) == ["first", "last"]
    stop(yard, "j1")
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()
    assert claimants(yard) == ["first"]
    stop(yard, "j0")
    yard.plan()

    assert yard.states("urgent", "first", "last") == ["assigned", "assigned", "queued"]


def test_a_claim_of_a_gang_ends_when_the_room_of_one_member_is_taken() -> None:
    yard = Yard()
    for node in ("a", "b"):
        yard.node(node, gpus=1)
        run(yard, f"on-{node}", node=node)
    yard.spend(60)
    yard.submit("gang", gpus=1, nodes=2, priority=20)
    yard.plan()
    assert claimants(yard) == ["gang"]
    stop(yard, "on-b")
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()

    assert yard.states("urgent") == ["assigned"] and claimants(yard) == []


def test_a_claim_stays_where_one_who_comes_before_leaves_it_room() -> None:
    yard = Yard()
    yard.node("a", gpus=3, cpus=8)
    run(yard, "large", gpus=2, cpus=8)
    yard.spend(60)
    yard.submit("claims", gpus=1, cpus=8, priority=20)
    yard.plan()
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()

    assert yard.states("urgent") == ["assigned"] and claimants(yard) == ["claims"]


specs = st.lists(
    st.fixed_dictionaries(
        {
            "gpus": st.integers(1, 4),
            "priority": st.sampled_from([10, 20, 50, 90]),
            "preemptible": st.booleans(),
            "tenant": st.sampled_from(["t1", "t2"]),
            "lasts": st.integers(10, 900),
            "comes_s": st.integers(0, 600),
        }
    ),
    min_size=3,
    max_size=12,
)


class Day:
    """A yard in which jobs come, last their time, and take their whole grace when stopped."""

    def __init__(self, todo: list[dict[str, Any]]) -> None:
        self.yard = Yard()
        self.yard.node("a", gpus=4)
        self.yard.node("b", gpus=2)
        self.specs = {f"j{number}": dict(spec) for number, spec in enumerate(todo)}
        self.lasts = {id: spec.pop("lasts") for id, spec in self.specs.items()}
        begin = self.yard.mono
        self.comes = {id: begin + s.pop("comes_s") for id, s in self.specs.items()}
        self.since: dict[JobKey, float] = {}
        self.stopped: dict[JobKey, float] = {}

    def step(self) -> None:
        yard = self.yard
        yard.spend(5)
        for id in [id for id, at in self.comes.items() if at <= yard.mono]:
            del self.comes[id]
            yard.submit(id, **self.specs[id])
        self._end_what_is_due()
        yard.plan()
        for key, job in sorted(yard.cluster.jobs.items()):
            if job.state == "assigned":
                yard.start(job.id, tenant=job.tenant)
                self.since[key] = yard.mono
                self.stopped.pop(key, None)
            elif job.state == "stopping" and key not in self.stopped:
                self.stopped[key] = yard.mono
                self._check_victim(job)

    def _end_what_is_due(self) -> None:
        for key, job in sorted(self.yard.cluster.jobs.items()):
            if job.state == "running" and self.yard.mono >= self.since[key] + self.lasts[job.id]:
                self.yard.end(job.id, tenant=job.tenant, exit_code=0)
            elif job.state == "stopping" and self.yard.mono >= self.stopped[key] + GRACE_S:
                self.yard.end(job.id, tenant=job.tenant, reason="preempted", exit_code=143)

    def _check_victim(self, job: Job) -> None:
        held = self.yard.cluster.reservations.by_job.values()
        assert job.is_preemptible
        assert max(claim.rank.job for claim in held if claim.is_claim) > job.priority
        assert self.yard.mono >= self.since[job.key] + self.yard.cluster.settings.min_runtime_s


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(todo=specs)
def test_every_preemption_ends_and_who_claims_waits_no_longer_than_the_grace(
    todo: list[dict[str, Any]],
) -> None:
    """In the end every job has run; none is stopped for one of its own priority or a lower."""
    day = Day(todo)
    for _ in range(4000):
        if not day.comes and not day.yard.cluster.jobs:
            break
        day.step()
        for held in day.yard.cluster.reservations.by_job.values():
            assert not held.is_claim or held.start is None or day.yard.mono <= held.start + 5

    assert not day.yard.cluster.jobs
