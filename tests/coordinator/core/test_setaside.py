"""Nodes on which job after job fails are put aside, and images that start nowhere wait."""

import pytest

from gpuyard_coordinator import reads
from gpuyard_coordinator.core.images import NODES
from tests.support.yard import Yard


def failing_yard(count: int = 3, *, reason: str = "runtime_error", images: bool = True) -> Yard:
    """`count` jobs fail one after another on `a`; nothing else could run them."""
    yard = Yard()
    yard.node("a", gpus=2)
    for number in range(count):
        fail_one(yard, f"j{number}", reason, image=f"image-{number}" if images else "image")
    return yard


def fail_one(yard: Yard, id: str, reason: str = "runtime_error", *, image: str = "x") -> None:
    yard.submit(id, image=image, node="a")
    assert yard.plan() == 1
    yard.end(id, reason=reason, message="no such device")


def code(yard: Yard, id: str) -> str | None:
    """Of the verdict that a waiting job is told."""
    verdict = yard.why(id)["verdict"]
    return None if verdict is None else verdict["code"]


def is_aside(yard: Yard, name: str = "a") -> bool:
    return yard.core_node(name).aside is not None


@pytest.mark.parametrize("reason", ["runtime_error", "no_space", "image_pull_failed", "gpu_lost"])
def test_three_jobs_that_fail_in_a_row_put_their_node_aside(reason: str) -> None:
    yard = failing_yard(2, reason=reason)
    assert not is_aside(yard)
    fail_one(yard, "third", reason, image="third")

    assert is_aside(yard)
    (told,) = reads.show_node(yard.cluster, yard.core_node("a"))["reasons"]
    assert told["code"] == "failing"
    assert f"the last with {reason}: no such device; a trial from 2026-" in told["message"]
    assert [audit["action"] for audit in yard.story.audits] == ["node_put_aside"]
    yard.submit("next")
    assert yard.plan() == 0
    assert code(yard, "next") == "node_unready"


def test_a_job_that_goes_well_ends_the_row() -> None:
    yard = failing_yard(2)
    yard.submit("good", node="a")
    yard.plan()
    yard.start("good")
    yard.end("good", exit_code=1)
    fail_one(yard, "third", image="third")

    assert not is_aside(yard)


@pytest.mark.parametrize("reason", ["exited", "invalid", "image_not_found", "out_of_memory"])
def test_what_jobs_are_to_blame_for_puts_nothing_aside(reason: str) -> None:
    assert not is_aside(failing_yard(5, reason=reason))


def test_a_row_that_took_longer_than_its_window_puts_nothing_aside() -> None:
    yard = failing_yard(2)
    yard.spend(601)
    fail_one(yard, "third", image="third")

    assert not is_aside(yard)


def test_one_job_that_fails_again_and_again_is_no_row() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j", retries={"max": 5, "backoff": 0})
    for _ in range(5):
        yard.plan()
        yard.start()
        yard.end(reason="runtime_lost")

    assert not is_aside(yard)


def test_jobs_that_one_fault_ended_together_are_no_row() -> None:
    yard = Yard()
    yard.node("a")
    for number in range(4):
        yard.submit(f"j{number}")
    yard.plan()
    for number in range(4):
        yard.start(f"j{number}")
    for number in range(4):
        yard.end(f"j{number}", reason="runtime_restarted")

    assert not is_aside(yard)


def test_jobs_that_ran_and_were_lost_one_after_another_are_a_row() -> None:
    yard = Yard()
    yard.node("a")
    for number in range(3):
        yard.spend(1)
        yard.submit(f"j{number}")
        yard.plan()
        yard.start(f"j{number}")
        yard.spend(1)
        yard.end(f"j{number}", reason="gpu_lost")

    assert is_aside(yard)


def test_an_image_that_starts_nowhere_is_one_failure_however_many_jobs_it_has() -> None:
    assert not is_aside(failing_yard(5, images=False))


def test_an_image_that_starts_elsewhere_speaks_against_the_node() -> None:
    yard = failing_yard(2, images=False)
    yard.node("b")
    yard.submit("good", image="image", node="b")
    yard.plan()
    yard.start("good")
    fail_one(yard, "third", image="image")

    assert is_aside(yard)


def on_trial() -> Yard:
    yard = failing_yard()
    yard.spend(299)
    yard.submit("t1", gpus=1)
    yard.submit("t2", gpus=1)
    assert yard.plan() == 0
    yard.spend(1)
    assert yard.plan() == 1, "one job tries it"
    return yard


def test_a_trial_that_runs_a_minute_takes_the_node_back() -> None:
    yard = on_trial()
    yard.start("t1")
    yard.spend(59)
    assert is_aside(yard) and yard.plan() == 0
    yard.spend(1)

    assert not is_aside(yard)
    assert yard.plan() == 1
    assert [audit["action"] for audit in yard.story.audits] == ["node_put_aside", "node_taken_back"]
    yard.check_replay()


def test_a_trial_that_ends_by_itself_takes_the_node_back() -> None:
    yard = on_trial()
    yard.start("t1")
    yard.end("t1", exit_code=1)

    assert not is_aside(yard)


def test_a_trial_that_fails_doubles_the_back_off() -> None:
    yard = on_trial()
    yard.end("t1", reason="no_space")
    assert yard.plan() == 0
    yard.spend(599)
    assert yard.plan() == 0
    yard.spend(1)

    assert yard.plan() == 1
    aside = yard.core_node("a").aside
    assert aside is not None and aside.backoff_s == 600


def test_a_trial_that_was_cancelled_says_nothing_and_another_job_tries() -> None:
    yard = on_trial()
    yard.cancel("t1")
    yard.end("t1", reason="cancelled")

    assert is_aside(yard)
    assert yard.plan() == 1


def test_a_new_leader_keeps_a_node_aside_for_what_is_left() -> None:
    yard = failing_yard()
    yard.spend(200)
    yard.restart()
    yard.beat("a")
    yard.beat("a")
    yard.submit("t1")
    yard.spend(99)
    assert yard.plan() == 0
    yard.spend(1)
    assert yard.plan() == 1
    yard.restart()
    yard.submit("t2")
    for _ in range(3):
        yard.spend(1)

    assert yard.plan() == 0, "the trial goes on under the next leader"


def test_an_uncordon_takes_the_node_back_at_once() -> None:
    yard = failing_yard()
    yard.uncordon("a")
    yard.submit("j")

    assert yard.plan() == 1
    yard.restart()
    assert not is_aside(yard)


def bad_image_yard() -> Yard:
    """A job of image `bad` failed on as many nodes as it may try; `spare` has failed nothing."""
    yard = Yard()
    for number in range(NODES):
        yard.node(f"n{number}")
    yard.submit("j", image="bad")
    for _ in range(NODES):
        yard.plan()
        yard.end(reason="image_pull_failed")
    yard.node("spare")
    return yard


def test_jobs_of_an_image_that_failed_on_node_after_node_wait_and_say_so() -> None:
    yard = bad_image_yard()
    assert yard.states("j") == ["failed"]
    yard.submit("k", image="bad")
    yard.submit("other", image="good")

    assert yard.plan() == 1
    verdict = yard.why("k")["verdict"]
    assert verdict is not None and verdict["code"] == "not_before"
    assert "image bad could not be started on n0, n1, n2, n3; next try" in verdict["message"]
    assert yard.events("k")[-1]["kind"] == "queued"
    assert yard.events("k")[-1]["message"] == verdict["message"]


def test_one_job_of_a_held_image_tries_and_its_start_frees_the_others() -> None:
    yard = bad_image_yard()
    for number in range(3):
        yard.submit(f"k{number}", image="bad")
    yard.spend(299)
    assert yard.plan() == 0
    yard.spend(1)
    assert yard.plan() == 1

    yard.start("k0")

    assert yard.plan() == 2


def test_a_failed_try_of_a_held_image_doubles_the_hold() -> None:
    yard = bad_image_yard()
    for number in range(2):
        yard.submit(f"k{number}", image="bad")
    yard.spend(300)
    yard.plan()
    yard.end("k0", reason="runtime_error")
    yard.spend(599)
    assert yard.plan() == 0
    yard.spend(1)

    assert yard.plan() == 1


def test_a_try_that_finds_no_room_holds_nobody_up_for_ever() -> None:
    yard = bad_image_yard()
    yard.submit("huge", image="bad", gpus=64)
    yard.submit("k", image="bad")
    yard.spend(300)
    assert yard.plan() == 0
    yard.spend(60)

    assert yard.plan() == 1
    assert yard.attempt("k").node is not None


def test_a_hold_that_nobody_waits_for_is_forgotten() -> None:
    yard = bad_image_yard()
    yard.submit("k", image="bad")
    yard.cancel("k")
    yard.spend(300)

    assert yard.cluster.images_held == set()
    yard.submit("l", image="bad")
    assert yard.plan() == 1


def test_jobs_in_line_wait_too_once_their_image_is_held() -> None:
    yard = Yard()
    for number in range(NODES):
        yard.node(f"n{number}", gpus=1)
    yard.submit("j", image="bad")
    yard.submit("k", image="bad", gpus=2)
    for _ in range(NODES):
        yard.plan()
        yard.end(reason="image_pull_failed")

    assert code(yard, "k") == "not_before"
    yard.restart()
    assert code(yard, "k") != "not_before", "a leader's own count"
