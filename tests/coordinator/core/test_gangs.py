"""The life of a gang: one start for all, one end for all."""

from gpuyard import codec
from gpuyard_coordinator.core import documents, gangs
from gpuyard_coordinator.core.effects import MOST_KIB
from gpuyard_coordinator.core.state import Attempt
from tests.coordinator.core.gang_yard import THREE, entry, gang, start, yard_of


def test_none_may_start_before_all_are_prepared() -> None:
    yard = yard_of()
    gang(yard)
    yard.report(rank=0, state="preparing", prepared=True)
    assert not entry(yard, "a")["gang"]["may_start"]
    yard.restart()  # the decision is of both, whoever leads
    yard.beat("a")
    yard.report(rank=1, state="preparing", prepared=True)

    assert entry(yard, "a")["gang"]["may_start"] and entry(yard, "b")["gang"]["may_start"]
    yard.restart()
    assert entry(yard, "a")["gang"]["may_start"], "it stands, although nobody has told again"


def test_all_exit_with_0_and_the_job_has_succeeded() -> None:
    yard = yard_of()
    gang(yard)
    start(yard)
    assert yard.states("j") == ["running"]
    yard.end(rank=0, exit_code=0)
    assert yard.states("j") == ["running"]
    assert yard.core_node("a").attempts == {} and yard.core_node("b").attempts
    assert yard.cluster.use_of("default").running_jobs == 1
    yard.restart()
    yard.end(rank=1, exit_code=0)

    assert yard.states("j") == ["succeeded"]
    assert yard.done()["exit_code"] == 0
    assert yard.cluster.use_of("default").running_jobs == 0


def test_the_first_member_that_fails_ends_all() -> None:
    yard = yard_of()
    gang(yard, nodes=3)
    start(yard)
    yard.end(rank=1, exit_code=3)

    assert yard.states("j") == ["stopping"]
    assert {entry(yard, name)["stop"]["reason"] for name in ("a", "c")} == {"cancelled"}
    yard.end(rank=0, reason="cancelled", exit_code=143)
    yard.restart()
    yard.end(rank=2, reason="cancelled", exit_code=137)
    done = yard.done()
    assert (done["state"], done["reason"], done["exit_code"]) == ("failed", "exited", 3)
    assert done["message"] == "rank 1 on node b exited with 3"
    (stopping,) = [e for e in yard.events() if e["kind"] == "stopping"]
    assert stopping["message"] == "rank 1 on node b exited with 3; the others are ended"


def test_a_member_that_could_not_begin_costs_nothing_and_is_tried_elsewhere() -> None:
    yard = yard_of(*THREE)
    gang(yard)
    yard.report(rank=0, state="preparing", prepared=True)
    yard.end(rank=1, reason="image_pull_failed", message="no route")
    assert yard.states("j") == ["stopping"]
    yard.end(rank=0, reason="cancelled")
    yard.plan()

    assert [member.node for member in yard.attempt().members] == ["a", "c"]
    assert yard.attempt().number == 2 and yard.job().not_charged == 1
    before = yard.job().attempts[0]
    assert before.message == "rank 1 on node b ended with image_pull_failed: no route"


def test_a_cancel_stops_all() -> None:
    yard = yard_of()
    gang(yard)
    start(yard)
    yard.cancel()
    assert all(entry(yard, name)["stop"] for name in ("a", "b"))
    yard.end(rank=1, reason="cancelled", exit_code=143)
    yard.end(rank=0, reason="cancelled", exit_code=143)

    assert yard.done()["state"] == "cancelled"
    assert yard.kinds()[-2:] == ["stopping", "cancelled"]


def test_a_lost_node_is_waited_for_and_a_retry_starts_all_anew() -> None:
    yard = yard_of()
    gang(yard, retries={"max": 1, "backoff": 0}, on_partition={"stop_after": "60s"})
    for rank in (0, 1):
        yard.report(rank=rank, state="preparing", prepared=True, fenced=True)
    for rank in (0, 1):
        yard.start(rank=rank)
    yard.mono += 40
    yard.beat("a")
    yard.beat("c")
    yard.tick()
    verdict = yard.job()
    assert yard.core_node("b").state == "lost" and verdict.state == "running"
    yard.mono += 90
    yard.beat("a")
    yard.beat("c")
    yard.tick()
    yard.plan()
    assert yard.states("j") == ["stopping"], "the fence is over; the other member is not"
    yard.end(rank=0, reason="cancelled", exit_code=143)
    yard.plan()

    assert [member.node for member in yard.attempt().members] == ["a", "c"]
    assert yard.job().attempts[0].reason == "node_lost"


def test_what_a_gang_that_ends_waits_for_is_told_with_what_ended_it() -> None:
    yard = yard_of("a", "b", "c")
    gang(yard, nodes=3)
    start(yard)
    yard.end(rank=0, exit_code=1)
    yard.mono += 40
    yard.beat("a")
    yard.tick()

    verdict = yard.why()["verdict"]

    assert verdict is not None and verdict["code"] == "node_lost_waiting"
    begins = (
        "rank 0 on node a exited with 1; node b is silent and nothing proves rank 1 of it over; "
    )
    assert verdict["message"].startswith(begins)
    assert verdict["message"].endswith("'gpuyard forget b'; and so for 1 more rank")


def test_a_lost_node_is_the_cause_of_what_the_others_died_of() -> None:
    yard = yard_of()
    gang(yard, retries={"max": 1, "backoff": 0}, on_partition={"stop_after": "60s"})
    for rank in (0, 1):
        yard.report(rank=rank, state="preparing", prepared=True, fenced=True)
    for rank in (0, 1):
        yard.start(rank=rank)
    yard.mono += 40
    yard.end(rank=0, exit_code=1, message="connection reset by peer")
    assert yard.states("j") == ["stopping"]
    for _ in range(3):
        yard.mono += 40
        yard.beat("a")
        yard.beat("c")
        yard.tick()
    yard.plan()
    before = yard.job().attempts[0]
    assert (before.reason, before.ended_by) == ("node_lost", 1)
    assert str(before.message).startswith(
        "rank 1 on node b ended with node_lost: node b was silent"
    )
    assert [member.node for member in yard.attempt().members] == ["a", "c"]


def test_a_preempted_gang_is_stopped_whole_and_waits_again() -> None:
    yard = yard_of("a", "b", gpus=1)
    gang(yard, "j", preemptible=True, priority=10)
    start(yard)
    yard.spend(100)
    yard.submit("high", gpus=1, priority=90, node="a")
    yard.plan()
    assert all(entry(yard, name)["stop"]["reason"] == "preempted" for name in ("a", "b"))
    for rank in (1, 0):
        yard.end(rank=rank, reason="preempted", exit_code=143)
    yard.plan()
    assert yard.states("j", "high") == ["queued", "assigned"]
    assert yard.job().attempts[0].reason == "preempted"


def test_a_gang_of_200_fits_a_commit_however_often_it_is_tried() -> None:
    yard = yard_of("a", "b")
    gang(yard)
    job = yard.job()
    whole = job.attempts[0]
    job.attempts = []
    for number in range(1, 101):
        members = [
            Attempt(
                number, f"node-{n}", "m" * 32, "b" * 36, 1, whole.members[0].gpus * 8, "", rank=n
            )
            for n in range(200)
        ]
        job.attempts.append(gangs.whole_of(members, whole.meeting))
        job.attempts[-1].ended_by = 7
        gangs.trim(job)
    size = len(codec.encode(documents.job_document(job)))
    assert size < 1024 * 1024 < MOST_KIB * 1024
    assert [len(a.members) for a in job.attempts[-4:]] == [1, 200, 200, 200]
    assert job.attempts[0].members[0].rank == 7


def test_what_came_after_a_backup_begins_anew_once_all_of_it_is_over() -> None:
    yard = yard_of("a", "b")
    backup = yard.back_up()
    gang(yard)
    start(yard)
    yard.restore(backup)
    for name in ("a", "b", "a", "b"):
        yard.beat(name)
    yard.plan()
    assert yard.states("j") == ["stopping"]
    assert all(entry(yard, name)["stop"]["reason"] == "preempted" for name in ("a", "b"))
    yard.end(rank=0, reason="preempted", exit_code=143)
    yard.plan()
    assert yard.states("j") == ["stopping"], "the other one is not over"
    yard.end(rank=1, reason="preempted", exit_code=143)
    yard.plan()
    assert yard.states("j") == ["assigned"] and yard.attempt().number == 2
