"""The fault harness itself: its checker objects to what it should, and a short run of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.nats_server import NatsServer
from tests.system.chaos import load
from tests.system.chaos.checker import check
from tests.system.chaos.history import (
    Accepted,
    FinalDocument,
    History,
    JobEvent,
    Limits,
    Sighting,
    Trace,
)
from tests.system.chaos.mutations import MUTATIONS, mutated
from tests.system.chaos.run import Plan, Run
from tests.system.chaos.schedule import schedule

GPU = "GPU-1"


def event(kind: str, seq: int, *, job: str = "j", attempt: int | None = 1) -> JobEvent:
    return JobEvent({"tenant": "t", "job": job, "kind": kind, "seq": seq, "attempt": attempt})


def document(*, job: str = "j", state: str = "succeeded", events: int = 4) -> FinalDocument:
    gpus = [{"uuid": GPU, "milli": 1000}]
    attempts = [{"attempt": n, "gpus": gpus, "reason": "exited"} for n in (1, 2)]
    return FinalDocument(
        {"tenant": "t", "id": job, "state": state, "events": events, "attempts": attempts}
    )


def sound() -> History:
    """A job that ran once, in a tenant with one GPU, as every witness would tell it."""
    return History(
        accepted=[Accepted(1.0, "t", "j")],
        events=[
            event("accepted", 1, attempt=None),
            event("assigned", 2),
            event("running", 3),
            event("succeeded", 4),
        ],
        sightings=[Sighting("t", "j", 1, "n", "2026-01-01T00:00:01Z", "2026-01-01T00:00:03Z")],
        traces=[Trace(1.0, "start", "t", "j", 1, "n"), Trace(2.0, "end", "t", "j", 1, "n")],
        documents=[document()],
        limits=Limits({"t": 1}),
    )


def add_second_job(history: History, at: int) -> None:
    """Another job's assignment of the same GPU, after that many of the first one's events."""
    history.documents.append(document(job="k", state="running", events=1))
    history.events.insert(at, event("assigned", 1, job="k"))


def lose_document(history: History) -> None:
    history.documents.clear()


def leave_unfinished(history: History) -> None:
    history.documents[0] = document(state="running", events=3)
    del history.events[3]


def drop_event(history: History) -> None:
    del history.events[2]


def swap_events(history: History) -> None:
    history.events[1], history.events[2] = history.events[2], history.events[1]


def end_twice(history: History) -> None:
    history.events.append(event("failed", 5))
    history.documents[0] = document(events=5)


def assign_while_held(history: History) -> None:
    history.events[2] = event("assigned", 3, attempt=2)


def see_old_attempt_late(history: History) -> None:
    early = Sighting("t", "j", 2, "m", "2026-01-01T00:00:02Z", "2026-01-01T00:00:09Z")
    history.sightings.append(early)


def see_attempt_on_two_nodes(history: History) -> None:
    again = Sighting("t", "j", 1, "m", "2026-01-01T00:00:05Z", "2026-01-01T00:00:09Z")
    history.sightings.append(again)


def meet_lock(what: str) -> Callable[[History], None]:
    def change(history: History) -> None:
        history.traces.insert(1, Trace(1.5, "collision", "t", "j", 2, "m", what))

    return change


def start_twice(history: History) -> None:
    history.traces.insert(1, Trace(1.5, "start", "t", "j", 1, "n"))


def run_to_the_end_twice(history: History) -> None:
    history.traces += [Trace(3.0, "start", "t", "j", 2, "n"), Trace(4.0, "end", "t", "j", 2, "n")]


def call_success_a_failure(history: History) -> None:
    history.documents[0] = document(state="failed")
    history.events[3] = event("failed", 4)


def succeed_without_an_end(history: History) -> None:
    del history.traces[1]


def test_a_sound_history_has_nothing_to_object_to() -> None:
    assert check(sound()).violations == []


def test_a_gpu_given_to_the_next_job_after_the_end_is_sound() -> None:
    history = sound()
    add_second_job(history, 4)
    assert check(history).violations == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lose_document, "lost"),
        (leave_unfinished, "lost"),
        (drop_event, "events"),
        (swap_events, "events"),
        (end_twice, "events"),
        (assign_while_held, "overlap"),
        (see_old_attempt_late, "overlap"),
        (see_attempt_on_two_nodes, "overlap"),
        (meet_lock("job"), "overlap"),
        (meet_lock(GPU), "grant"),
        (lambda history: add_second_job(history, 3), "grant"),
        (lambda history: add_second_job(history, 3), "quota"),
        (start_twice, "double"),
        (run_to_the_end_twice, "double"),
        (call_success_a_failure, "untrue"),
        (succeed_without_an_end, "untrue"),
    ],
)
def test_a_history_with_a_defect_is_objected_to(
    change: Callable[[History], None], kind: str
) -> None:
    history = sound()
    change(history)
    assert check(history).count(kind) == 1


def test_a_history_reads_back_equal(tmp_path: Path) -> None:
    history = sound()
    history.write(tmp_path / "history")
    assert History.read(tmp_path / "history") == history


def test_a_seed_gives_one_schedule_and_one_load(tmp_path: Path) -> None:
    assert schedule(7, 600) == schedule(7, 600) != schedule(8, 600)
    assert list(load.jobs(7, 50, tmp_path)) == list(load.jobs(7, 50, tmp_path))


def test_a_kind_left_out_leaves_the_others_as_they_are() -> None:
    whole, part = schedule(7, 600), schedule(7, 600, without=frozenset({"server_killed"}))
    assert part == [fault for fault in whole if fault.kind != "server_killed"] != whole


@pytest.mark.parametrize("servers", [1, 3])
def test_no_target_has_two_faults_at_a_time(servers: int) -> None:
    faults = schedule(7, 3600, servers=servers)
    assert {f.index for f in faults if f.target == "server"} == set(range(servers))
    for n, fault in enumerate(faults):
        later = [f for f in faults[n + 1 :] if (f.target, f.index) == (fault.target, fault.index)]
        assert all(other.at_s > fault.until_s for other in later)


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_a_mutation_replaces_still_stands_in_the_code(name: str, tmp_path: Path) -> None:
    before = {file: file.read_bytes() for file in mutated(name, tmp_path).rglob("*.py")}
    assert before


@pytest.mark.timeout(150)
def test_a_short_run_on_one_server(nats_server: NatsServer, tmp_path: Path) -> None:
    # The seed has seven faults in so short a time, among them every part killed.
    plan = Plan(seed=3069, length_s=14, jobs=100, nodes=12, longest_s=10.0)
    directory = tmp_path / "run"
    directory.mkdir()
    history = asyncio.run(Run(plan, directory, [nats_server])())
    report = check(history)
    assert report.faults.total() >= 7
    assert report.jobs == plan.jobs
    assert report.violations == [], "\n".join(report.lines())
