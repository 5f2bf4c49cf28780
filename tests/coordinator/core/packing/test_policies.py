"""What policies make of a fleet, by the benchmark's protocols; the public traces where they are.

`GPUYARD_TRACES` names the folder with the `openb` lists.
"""

import os
from pathlib import Path

import pytest

from benchmarks.packing import Run, make_placer, measure, verdict
from benchmarks.packing_protocol import churn, fill
from benchmarks.packing_trace import BadInput, Machine, made_up_tasks, read_machines, read_tasks
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Placement
from gpuyard_coordinator.core.packing.rival_placers import RIVALS
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.simulate.policies import AnyPlace
from tests.coordinator.core.packing.builders import SETTINGS, node, share
from tests.support.agents import A100_80, gpu_uuid

MACHINES = [Machine(96_000, 393_216, 8, "G1")] * 30 + [Machine(64_000, 262_144, 4, "G2")] * 20
CAPACITY = 320_000
TASKS = made_up_tasks(400, seed=3)


def filled(policy: str, seed: int = 42) -> float:
    placer = make_placer(policy, MACHINES, TASKS, seed)
    return fill(placer, TASKS, CAPACITY, seed).percent[130]


def test_the_yards_own_policy_uses_more_of_a_fleet_than_the_others() -> None:
    used = {policy: filled(policy) for policy in ("pfs", "fgd", "bestfit", "spread", "random")}

    assert used["pfs"] == max(used.values())
    assert used["pfs"] <= 100
    assert min(used["fgd"], used["bestfit"]) > max(used["spread"], used["random"])


@pytest.mark.parametrize("policy", ["pfs", "fgd", "random"])
def test_the_same_seed_gives_the_same_figure(policy: str) -> None:
    assert filled(policy, 7) == filled(policy, 7)


def test_with_departures_a_fleet_stays_full_and_empties_in_the_end() -> None:
    placer = make_placer("pfs", MACHINES, TASKS, 42)
    outcome = churn(placer, TASKS, CAPACITY, 42, count=1500)

    assert 80 < outcome.percent[0] <= 100
    assert outcome.placed + outcome.rejected == 1500


def test_a_list_is_read_as_shapes_and_a_bad_one_is_named(tmp_path: Path) -> None:
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    rows = "a,4000,1024,1,460,\nb,8000,2048,2,1000,T4|P100\nc,1000,512,0,0,\n"
    (tmp_path / "openb_pod_list_mine.csv").write_text(pods + rows)
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("sn,cpu_milli,gpu,model\nx,1,1,T4\n")

    assert read_tasks(tmp_path, "mine") == [
        Shape(share_core_percent=46.0, cpu_milli=4000, memory_mib=1024),
        Shape(gpus=2, cpu_milli=8000, memory_mib=2048, models=("T4", "P100")),
        Shape(cpu_milli=1000, memory_mib=512),
    ]
    with pytest.raises(BadInput, match="no column memory_mib"):
        read_machines(tmp_path)
    with pytest.raises(BadInput, match="has no openb_pod_list_other"):
        read_tasks(tmp_path, "other")


def test_the_verdict_names_the_lists_on_which_the_goal_is_missed() -> None:
    def row(name: str, policy: str, percent: float) -> dict[str, object]:
        return {"list": name, "policy": policy, "allocation_130_percent": percent}

    good = [row("a", "pfs", 96.0), row("a", "fgd", 95.0)]
    bad = [row("b", "pfs", 94.0), row("b", "fgd", 94.0)]

    assert verdict(good, departures=False)[0] == []
    below, line = verdict(good + bad, departures=False)
    assert below == ["b"]
    assert "MISSED" in line and "+0.50" in line
    assert verdict(good[:1], departures=False)[0] == []


def test_of_equal_devices_fgd_takes_the_lowest_index() -> None:
    """Where the score is the same whichever is taken: not the tightest one, as others do."""
    first: dict[str, int] = {}
    for policy in ("fgd", "bestfit"):
        mix = Mix()
        mix.observe(share(10))
        placer = RIVALS[policy](SETTINGS, mix)
        placer.node_changed(node("a", [A100_80] * 2))
        placer.place(Shape(gpus=1))
        placer.place(share(50))
        placer.release(Shape(gpus=1), Placement("a", (gpu_uuid("a", 0),)))
        placed = placer.place(share(10))
        assert placed is not None
        first[policy] = int(placed.gpus[0] == gpu_uuid("a", 1))
    assert first == {"fgd": 0, "bestfit": 1}


def test_random_takes_every_node_and_device_that_a_job_fits() -> None:
    """Each node has a GPU of which a part is taken and one that is free."""
    placer = AnyPlace(SETTINGS, seed=1)
    seen = set()
    for name in "ab":
        placer.node_changed(node(name, [A100_80] * 2))
        assert placer.place(share(60, node=name)) is not None
    for _ in range(60):
        placement = placer.place(share(30))
        assert placement is not None
        seen.add(placement)
        placer.release(share(30), placement)
    assert len(seen) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "gpuspec10"])
def test_more_of_the_public_fleet_is_used_than_by_fgd(name: str) -> None:
    folder = os.environ.get("GPUYARD_TRACES")
    if folder is None:
        pytest.skip("GPUYARD_TRACES names no folder with the public traces")
    run = Run(Path(folder), [name], [42], ["pfs", "fgd"], departures=False)
    ours, theirs = measure(run, lambda text: None)

    for point in (100, 110, 130):
        key = f"allocation_{point}_percent"
        assert ours[key] > theirs[key]
