"""The GPUs of one job are the best linked ones, by the topology that a simulated driver tells."""

from typing import Any

import pytest

from tests.agent.gpus.definitions import RTX_4090, make_definition, probe_once
from tests.support.yard import Yard

PCIE, NUMA, FAR = ({**RTX_4090, "links": kind} for kind in ("pcie", "numa", "system"))
NVLINK = {**RTX_4090, "links": "nvlink"}


@pytest.mark.parametrize(
    ("gpus", "count", "chosen"),
    [
        ([FAR, NVLINK, PCIE, NVLINK], 2, [1, 3]),
        ([FAR, NUMA, PCIE, PCIE], 2, [2, 3]),
        ([FAR, FAR, NUMA, NUMA], 2, [2, 3]),
        ([NVLINK, FAR, NVLINK, PCIE, NVLINK], 3, [0, 2, 4]),
        ([NVLINK, NVLINK, PCIE, PCIE], 4, [0, 1, 2, 3]),
    ],
)
def test_nvlink_comes_before_a_switch_a_switch_before_a_numa_node(
    gpus: list[dict[str, Any]], count: int, chosen: list[int]
) -> None:
    yard = Yard()
    agent = yard.node("a", gpus=len(gpus))
    told = probe_once(make_definition(*gpus))
    uuids = {
        real["uuid"]: known["uuid"]
        for real, known in zip(told["gpus"], agent.facts["gpus"], strict=True)
    }
    agent.facts["links"] = [
        {**link, "a": uuids[link["a"]], "b": uuids[link["b"]]} for link in told["links"]
    ]
    agent.generation += 1
    yard.beat("a")
    yard.submit("j", gpus=count)

    assert yard.plan() == 1
    assert yard.held("j") == chosen
