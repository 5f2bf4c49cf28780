"""Which ends an engine's absence is to blame for: judgements, and the process behind a socket."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpuyard_agent.core.containers import Exit
from gpuyard_agent.core.times import rfc3339
from gpuyard_agent.docker_runtime.outage import EngineProcess, Outage, is_ghost
from gpuyard_agent.docker_runtime.streams import Address

BEGAN = 1_700_000_000.0
"""Missed at 100 s, its process gone at 110, its successor begun at 140, answering at 142."""


def exit(code: int | None, at: float, *, oom: bool = False) -> Exit:
    return Exit(code, rfc3339(BEGAN + at), out_of_memory=oom)


def witnessed(*, live_restore: bool = False, seen: bool = True) -> Outage:
    return Outage(
        live_restore=live_restore,
        since=BEGAN + 100,
        gone=BEGAN + 110 if seen else None,
        back=BEGAN + 140 if seen else None,
        until=BEGAN + 142,
    )


@pytest.mark.parametrize(
    ("code", "at", "is_to_blame"),
    [
        (0, 105, True),  # SIGTERM of the engine that stops, taken well
        (137, 105, True),
        (3, 125, False),  # nobody was there to end it
        (0, 125, False),
        (137, 125, True),  # it may have been told late
        (255, 125, True),
        (None, 125, True),
        (143, 141, True),  # what its successor found running it ended
        (0, 141, True),
        (137, 50, False),
        (137, 200, False),
    ],
)
def test_a_witnessed_absence(code: int | None, at: float, is_to_blame: bool) -> None:
    assert witnessed().ended(exit(code, at)) is is_to_blame


def test_where_the_process_cannot_be_seen_the_whole_time_is_the_engines() -> None:
    assert witnessed(seen=False).ended(exit(3, 125))


@pytest.mark.parametrize(
    ("code", "is_to_blame"), [(0, False), (137, False), (143, False), (255, True), (None, True)]
)
def test_with_live_restore_only_a_lost_code_is_the_engines_doing(
    code: int | None, is_to_blame: bool
) -> None:
    assert witnessed(live_restore=True).ended(exit(code, 105)) is is_to_blame


@pytest.mark.parametrize(
    ("end", "began", "is_to_blame"),
    [
        (exit(137, 90), 10, True),
        (exit(143, 90), 10, True),
        (exit(255, 101), 10, True),
        (exit(3, 90), 10, False),
        (exit(0, 90), 10, False),
        (exit(137, 90, oom=True), 10, False),
        (exit(137, 170), 10, False),  # long after what it found running was ended
        (exit(137, 120), 110, False),  # it began under the new engine
        (exit(137, 90), None, False),
    ],
)
def test_a_restart_that_nobody_witnessed(end: Exit, began: float | None, is_to_blame: bool) -> None:
    outage = Outage(live_restore=False, until=BEGAN + 500, back=BEGAN + 100)
    start = None if began is None else BEGAN + began
    assert outage.ended(end, began=start) is is_to_blame


def test_the_process_behind_a_socket_is_known_by_its_start() -> None:
    address = Address("/tmp/some.sock", "", 0)
    with subprocess.Popen(["sleep", "60"]) as process:
        engine = EngineProcess.behind(address, process.pid)
        assert engine is not None
        assert engine.is_alive
        assert abs(engine.began - time.time()) < 5
        process.kill()
        assert process.wait() == -9
    assert not engine.is_alive
    assert EngineProcess.behind(address, process.pid) is None
    assert EngineProcess.behind(address, None) is None
    # Some other process's socket, made by the first one: it could be anybody's.
    assert EngineProcess.behind(address, 1) != EngineProcess.behind(address, os.getpid())


def test_a_killed_engine_is_dead_before_anybody_reaps_it() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        engine = EngineProcess.behind(Address("/tmp/some.sock", "", 0), process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert engine is not None and not engine.is_alive


def test_a_ghost_is_a_container_without_a_process() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    engine = EngineProcess.behind(Address("/tmp/some.sock", "", 0), os.getpid())
    gone, here = {"State": {"Pid": ended.pid}}, {"State": {"Pid": os.getpid()}}
    assert is_ghost(gone, engine)
    assert not is_ghost(here, engine)
    assert not is_ghost(gone, None)
    assert not is_ghost({"State": {"Pid": 0}}, engine)
