"""What policies make of a fleet, by the benchmark's protocols; the public traces where they are.

`GPUYARD_TRACES` names the folder with the `openb` lists.
"""

import os
from pathlib import Path

import pytest

from benchmarks.packing import Run, make_placer, measure
from benchmarks.packing_protocol import churn, fill
from benchmarks.packing_trace import BadTrace, Machine, made_up_tasks, read_machines, read_tasks
from gpuyard_coordinator.core.state import Shape

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
    with pytest.raises(BadTrace, match="no column memory_mib"):
        read_machines(tmp_path)
    with pytest.raises(BadTrace, match="has no openb_pod_list_other"):
        read_tasks(tmp_path, "other")


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
