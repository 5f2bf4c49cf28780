"""Faults of NVML through the real child process: each costs a sample, never the node."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard_agent.gpus.prober import InlineProber, Prober
from gpuyard_agent.gpus.processes import OwnProcesses
from tests.agent.gpus.definitions import (
    NOBODY,
    Clock,
    facts_of,
    health_of,
    make_definition,
    sample_of,
)

Start = Callable[..., Prober]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def start(clock: Clock) -> AsyncIterator[Start]:
    probers: list[Prober] = []

    def start(**fields: Any) -> Prober:
        definition = make_definition(**fields)
        times = iter(f"2026-01-01T00:00:{second:02}Z" for second in range(60))
        probers.append(
            Prober(simulated=definition, clock=clock, utc_now=lambda: next(times), deadline_s=0.8)
        )
        return probers[-1]

    yield start
    for prober in probers:
        await prober.close()


async def test_a_sample_through_the_child(start: Start) -> None:
    prober = start()
    assert (prober.age_s, prober.generation) == (None, 0)
    result = await prober.sample(NOBODY)
    assert [gpu["index"] for gpu in result["gpus"]] == [0, 1]
    assert len(result["links"]) == 1
    assert result["error"] is None
    assert (prober.age_s, prober.generation) == (0.0, 1)


async def test_a_hang_costs_samples_and_keeps_the_last_good_one(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"at": "10s", "for": "20s", "call": "utilization", "do": "hang"}])
    good = await prober.sample(NOBODY)
    pid = prober.child_pid
    clock.now = 10
    began = time.monotonic()
    held = await prober.sample(NOBODY)
    assert time.monotonic() - began < 3
    assert held["error"] == "NVML did not answer within 0.8 s"
    assert held["error_code"] == "gpu_sample_stale"
    assert held["gpus"] == good["gpus"] and held["samples"] == good["samples"]
    assert prober.age_s == 10
    assert prober.child_pid is None and pid is not None

    clock.now = 10.5  # in the pause after a failure nothing is started
    assert (await prober.sample(NOBODY))["error_code"] == "gpu_sample_stale"
    assert prober.child_pid is None
    assert prober.age_s == 10.5

    clock.now = 31
    recovered = await prober.sample(NOBODY)
    assert recovered["error"] is None
    assert prober.age_s == 0
    assert prober.child_pid not in (None, pid)
    assert prober.generation == 1
    assert recovered["links"] == good["links"]


async def test_a_hang_at_the_start_is_not_a_node_without_gpus_for_ever(clock: Clock) -> None:
    definition = make_definition(faults=[{"for": "5s", "call": "init", "do": "hang"}])
    prober = Prober(simulated=definition, clock=clock, first_deadline_s=0.5)
    assert (await prober.sample(NOBODY))["error_code"] == "gpu_sample_stale"
    assert prober.age_s is None
    clock.now = 6
    # The first request after a failure leaves the links out, in case that they are what hangs.
    for expected_links in (0, 1):
        prober._first_deadline_s = 5
        result = await prober.sample(NOBODY)
        assert result["error"] is None
        assert len(result["links"]) == expected_links
    await prober.close()


async def test_the_event_loop_goes_on_while_nvml_hangs(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"at": "10s", "call": "power", "do": "hang"}])
    await prober.sample(NOBODY)
    clock.now = 10
    task = asyncio.create_task(prober.sample(NOBODY))
    turns = 0
    while not task.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 10


async def test_a_crash_costs_a_sample_and_the_child_is_started_again(
    start: Start, clock: Clock
) -> None:
    prober = start(faults=[{"at": "10s", "for": "1s", "gpu": 1, "call": "power", "do": "crash"}])
    await prober.sample(NOBODY)
    clock.now = 10
    held = await prober.sample(NOBODY)
    assert held["error"] == "the NVML process ended unexpectedly"
    assert len(held["gpus"]) == 2
    clock.now = 12
    assert (await prober.sample(NOBODY))["error"] is None


async def test_pauses_grow_while_it_keeps_crashing(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"at": "1s", "call": "power", "do": "crash"}])
    await prober.sample(NOBODY)
    starts = []
    for second in range(1, 17):
        clock.now = second
        held = await prober.sample(NOBODY)
        if "next try" not in (held["error"] or ""):
            starts.append(second)
    assert starts == [1, 2, 4, 8, 16]


async def test_a_lost_gpu_leaves_the_others_usable(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"at": "10s", "gpu": 1, "do": "lost", "for": "10s"}])
    before = await prober.sample(NOBODY)
    clock.now = 10
    result = await prober.sample(NOBODY)
    assert health_of(result, 1) == ("lost", "gpu_lost")
    assert health_of(result, 0) == ("healthy", None)
    assert facts_of(result, 1) == facts_of(before, 1)
    assert sample_of(result, 1)["memory_free_mib"] is None
    assert sample_of(result, 0)["memory_free_mib"] == 24564
    assert prober.generation == 1
    since = sample_of(result, 1)["health"]["since"]
    assert since != sample_of(before, 1)["health"]["since"]
    assert sample_of(await prober.sample(NOBODY), 1)["health"]["since"] == since
    clock.now = 20
    assert health_of(await prober.sample(NOBODY), 1) == ("healthy", None)


async def test_a_vanished_gpu_is_lost_not_a_smaller_node(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"at": "10s", "gpu": 0, "do": "vanish"}])
    before = await prober.sample(NOBODY)
    clock.now = 10
    result = await prober.sample(NOBODY)
    vanished = before["gpus"][0]["uuid"]
    assert [gpu["uuid"] for gpu in result["gpus"]].count(vanished) == 1
    sample = next(sample for sample in result["samples"] if sample["uuid"] == vanished)
    assert sample["health"]["state"] == "lost"
    assert sample["memory_free_mib"] is None and "memory_free_mib" in sample["missing"]
    assert result["links"] == before["links"]


async def test_a_gpu_known_from_before_is_lost_until_seen(clock: Clock) -> None:
    whole = make_definition()
    prober = Prober(simulated=whole, clock=clock)
    known = (await prober.sample(NOBODY))["gpus"]
    await prober.close()
    smaller = make_definition(faults=[{"gpu": 1, "do": "vanish"}])
    prober = Prober(simulated=smaller, clock=clock, known=known, generation=7)
    assert health_of(await prober.sample(NOBODY), 1) == ("lost", "gpu_lost")
    assert prober.generation == 8
    await prober.close()


async def test_indexes_that_change_leave_uuids_alone(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"at": "10s", "do": "renumber"}])
    before = await prober.sample(NOBODY)
    clock.now = 10
    after = await prober.sample(NOBODY)
    assert [gpu["uuid"] for gpu in after["gpus"]] == [gpu["uuid"] for gpu in before["gpus"]][::-1]
    assert prober.generation == 2


async def test_not_supported_is_missing_not_zero(start: Start, clock: Clock) -> None:
    prober = start(
        faults=[{"at": "10s", "gpu": 1, "call": "memory", "do": "not_supported", "for": "10s"}]
    )
    await prober.sample(NOBODY)
    clock.now = 10
    sample = sample_of(await prober.sample(NOBODY), 1)
    assert sample["memory_free_mib"] is None
    assert "memory_free_mib" in sample["missing"]
    assert prober.generation == 2
    clock.now = 20
    assert sample_of(await prober.sample(NOBODY), 1)["memory_free_mib"] == 24564
    assert prober.generation == 3


@pytest.mark.parametrize(
    ("do", "code"),
    [("driver_mismatch", "driver_mismatch"), ("library_missing", "nvml_unavailable")],
)
async def test_init_that_fails_is_said_and_tried_again(
    start: Start, clock: Clock, do: str, code: str
) -> None:
    prober = start(faults=[{"for": "10s", "call": "init", "do": do}])
    result = await prober.sample(NOBODY)
    assert result["error_code"] == code
    assert result["gpus"] == [] and result["error"]
    pid = prober.child_pid
    clock.now = 11
    result = await prober.sample(NOBODY)
    assert result["error"] is None and len(result["gpus"]) == 2
    assert prober.child_pid == pid


async def test_a_mismatch_later_keeps_the_inventory_and_ages_it(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"at": "10s", "call": "init", "do": "driver_mismatch"}])
    good = await prober.sample(NOBODY)
    clock.now = 12
    result = await prober.sample(NOBODY)
    assert result["error_code"] == "driver_mismatch"
    assert "reboot or reload the nvidia modules" in (result["error"] or "")
    assert result["gpus"] == good["gpus"]
    assert (prober.age_s, prober.generation) == (12, 1)


async def test_a_child_that_cannot_use_nvml_is_renewed(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"call": "init", "do": "driver_mismatch"}])
    await prober.sample(NOBODY)
    pid = prober.child_pid
    for second in (10, 31, 32):
        clock.now = second
        await prober.sample(NOBODY)
    assert prober.child_pid not in (None, pid)


async def test_a_child_that_holds_a_lost_gpu_is_renewed(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"gpu": 0, "do": "lost"}])
    await prober.sample(NOBODY)
    pid = prober.child_pid
    for second in (10, 31, 32):
        clock.now = second
        assert health_of(await prober.sample(NOBODY), 0)[0] == "lost"
    assert prober.child_pid not in (None, pid)


async def test_what_is_ours_is_not_foreign(start: Start) -> None:
    container = "ab" * 32
    prober = start(
        processes=[
            {"gpu": 0, "pid": 5, "memory_mib": 1024, "container": container},
            {"gpu": 0, "pid": 6, "memory_mib": 2048, "user": "eve"},
        ]
    )
    mine = OwnProcesses(containers=frozenset({container}))
    sample = sample_of(await prober.sample(mine), 0)
    assert [process["pid"] for process in sample["foreign"]] == [6]
    assert sample["memory_foreign_mib"] == 2048
    assert sample["memory_used_mib"] == 3072
    everyone = OwnProcesses(pids=frozenset({6}), names={container: "job-of-another"})
    sample = sample_of(await prober.sample(everyone), 0)
    assert [process["container"] for process in sample["foreign"]] == ["job-of-another"]


async def test_a_cancelled_sample_does_not_answer_the_next(start: Start, clock: Clock) -> None:
    prober = start(faults=[{"at": "10s", "for": "1s", "call": "power", "do": "hang"}])
    await prober.sample(NOBODY)
    clock.now = 10
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(prober.sample(NOBODY), 0.1)
    clock.now = 12
    assert (await prober.sample(NOBODY))["error"] is None


async def test_closing_ends_the_child(start: Start) -> None:
    prober = start()
    await prober.sample(NOBODY)
    pid = prober.child_pid
    await prober.close()
    assert pid is not None and not Path(f"/proc/{pid}").exists()
    with pytest.raises(RuntimeError):
        await prober.sample(NOBODY)


async def test_a_host_without_a_driver_says_so() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has an NVIDIA driver")
    prober = Prober()
    result = await prober.sample(NOBODY)
    assert result["error_code"] == "nvml_unavailable"
    await prober.close()


def test_the_child_never_outlives_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, 9)
    parent.wait(10)
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_alive(child)


_PARENT = """
import asyncio, json
from gpuyard_agent.gpus.fleet import parse_fleet
from gpuyard_agent.gpus.prober import Prober
from gpuyard_agent.gpus.processes import OwnProcesses
fault = {"at": 0, "call": "power", "do": "hang"}
node = {"name": "n", "gpus": [{"name": "x"}], "faults": [fault]}
async def main():
    prober = Prober(simulated=parse_fleet({"nodes": [node]})[0].definition(), first_deadline_s=60)
    task = asyncio.create_task(prober.sample(OwnProcesses()))
    while prober.child_pid is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    print(prober.child_pid, flush=True)
    await task
asyncio.run(main())
"""


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_child_loads_no_heavy_library() -> None:
    program = (
        "import sys, gpuyard_agent.gpus.child as child\n"
        "child._binding()\n"
        "print(*sorted(name.split('.')[0] for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    heavy = {
        *("asyncio", "pydantic", "nats", "docker", "structlog", "msgpack", "gpuyard"),
        *("typing_extensions", "ruamel", "ast"),
        *("dataclasses", "inspect", "subprocess", "argparse", "logging", "pathlib", "shutil"),
    }
    assert "pynvml" in loaded
    assert loaded & heavy == set()


async def test_inline_gives_what_the_child_gives(start: Start, clock: Clock) -> None:
    fields: dict[str, Any] = {"processes": [{"gpu": 1, "pid": 3, "memory_mib": 10}]}
    inline = InlineProber(make_definition(**fields), clock=clock, utc_now=lambda: "t")
    through_child = await start(**fields).sample(NOBODY)
    result = await inline.sample(NOBODY)
    for sample in [*result["samples"], *through_child["samples"]]:
        sample["health"]["since"] = None
    assert result == through_child


async def test_inline_holds_the_last_reading_through_a_hang(clock: Clock) -> None:
    faults = [{"at": "10s", "for": "5s", "call": "memory", "do": "hang"}]
    inline = InlineProber(make_definition(faults=faults), clock=clock)
    good = await inline.sample(NOBODY)
    clock.now = 12
    held = await inline.sample(NOBODY)
    assert held["error_code"] == "gpu_sample_stale"
    assert held["samples"] == good["samples"]
    assert inline.age_s == 12
    clock.now = 15
    assert (await inline.sample(NOBODY))["error"] is None
    assert (inline.age_s, inline.generation) == (0, 1)
