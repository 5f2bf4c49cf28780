"""The fleet file: what it may say, and one clear line for what it may not."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import GpuyardError
from gpuyard_agent.gpus.fleet import FleetError, default_fleet, load_fleet, parse_fleet
from gpuyard_agent.gpus.prober import InlineProber
from tests.agent.gpus.definitions import NOBODY, Clock, make_definition, probe_once

FLEET = """
nodes:
  - name: a100-{i}
    count: 3
    cpus: 64
    memory_mib: 524288
    labels: {zone: a}
    driver_version: 535.183.01
    cuda_version: "12.2"
    gpus:
      - {name: NVIDIA A100-SXM4-80GB, count: 8, memory_mib: 81920, compute_capability: "8.0"}
      - {name: NVIDIA A100-SXM4-80GB, uuids: []}
    faults: [{at: 30s, gpu: 3, call: memory, do: not_supported, for: 10s}]
  - name: plain
"""


def test_the_example_of_the_interface(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    nodes = load_fleet(file)
    assert [node.name for node in nodes] == ["a100-0", "a100-1", "a100-2", "plain"]
    node = nodes[1]
    assert (node.cpus, node.memory_mib, node.labels) == (64.0, 524288, {"zone": "a"})
    assert (node.driver_version, node.cuda_version) == ("535.183.01", "12.2")
    assert len(node.gpus) == 9 and node.gpus is nodes[0].gpus
    assert node.faults[0] == {
        "at_s": 30.0,
        "for_s": 10.0,
        "gpu": 3,
        "call": "memory",
        "do": "not_supported",
    }
    assert nodes[3].gpus == ()


def test_json_is_read_as_well(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"nodes": [{"name": "n", "gpus": [{"name": "X"}]}]}))
    assert load_fleet(file)[0].name == "n"


def test_a_definition_survives_json() -> None:
    definition = make_definition(
        faults=[{"at": "1m30s", "do": "lost"}], processes=[{"gpu": 1, "pid": 4}]
    )
    again = json.loads(json.dumps(definition))
    assert probe_once(again, at_s=5.0) == probe_once(definition, at_s=5.0)
    assert again["faults"][0]["at_s"] == 90


def test_given_uuids_are_kept() -> None:
    gpus = {"name": "X", "count": 2, "uuids": ["GPU-b", "GPU-a"]}
    result = probe_once(make_definition(gpus, faults=[{"gpu": "GPU-a", "do": "lost"}]))
    assert [gpu["uuid"] for gpu in result["gpus"]] == ["GPU-b", "GPU-a"]
    assert result["samples"][1]["health"]["state"] == "lost"


def entry(**changes: Any) -> dict[str, Any]:
    return {"name": "n", **changes}


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ([], "the file: a mapping is expected, not []"),
        ({"node": []}, "node: there is no such field (did you mean nodes?)"),
        ({"nodes": {}}, "nodes: a list is expected, not {}"),
        ({}, "nodes: a list is expected, not nothing"),
        ({"nodes": [3]}, "nodes[0]: a mapping is expected, not 3"),
        ({"nodes": [{}]}, "nodes[0].name: is missing"),
        (
            {"nodes": [entry(), entry(gpus=[{}, {"memory_mib": "24G"}])]},
            "nodes[1].gpus[1].memory_mib: a whole number is expected, not '24G'",
        ),
        (
            {"nodes": [entry(gpus=[{"memory_mb": 3}])]},
            "nodes[0].gpus[0].memory_mb: there is no such field (did you mean memory_mib?)",
        ),
        (
            {"nodes": [entry(count=2)]},
            "nodes[0].name: needs {i} in it where count is above 1",
        ),
        ({"nodes": [entry(), entry()]}, "nodes[1].name: n is taken by nodes[0]"),
        (
            {"nodes": [entry(name="N_A")]},
            "nodes[0].name: 'N_A' is no node name (lower-case letters, digits and hyphens, 63)",
        ),
        (
            {"nodes": [entry(cuda_version=12.1)]},
            'nodes[0].cuda_version: a version in quotes is expected, as "12.2", not 12.1',
        ),
        (
            {"nodes": [entry(labels={"zone": 1})]},
            "nodes[0].labels.zone: text is expected, not 1",
        ),
        (
            {"nodes": [entry(faults=[{"do": "not_suported"}])]},
            "nodes[0].faults[0].do: 'not_suported' is not known (did you mean not_supported?)",
        ),
        ({"nodes": [entry(faults=[{"call": "memory"}])]}, "nodes[0].faults[0].do: is missing"),
        (
            {"nodes": [entry(faults=[{"do": "hang", "at": "soon"}])]},
            "nodes[0].faults[0].at: a duration is expected, as 30s or 5m, not 'soon'",
        ),
        (
            {"nodes": [entry(gpus=[{"name": "X"}], faults=[{"do": "hang", "gpu": 1}])]},
            "nodes[0].faults[0].gpu: there is no GPU 1, the node has 1",
        ),
        (
            {"nodes": [entry(gpus=[{"count": 2, "uuids": ["GPU-a"]}])]},
            "nodes[0].gpus[0].uuids: 1 of them for 2 GPUs",
        ),
        (
            {"nodes": [entry(name="n{i}", count=2, gpus=[{"uuids": ["GPU-a"]}])]},
            "nodes[0].gpus: the UUID GPU-a stands for another GPU already",
        ),
        (
            {"nodes": [entry(gpus=[{"memory_mib": 10, "reserved_mib": 11}])]},
            "nodes[0].gpus[0].reserved_mib: must be at most 10, not 11",
        ),
        ({"nodes": [entry(cpus=0)]}, "nodes[0].cpus: a number above 0 is expected, not 0"),
        ({"nodes": [entry(count=True)]}, "nodes[0].count: a whole number is expected, not True"),
        (
            {"nodes": [entry(processes=[{"gpu": "GPU-z", "pid": 0}])]},
            "nodes[0].processes[0].pid: must be at least 1, not 0",
        ),
    ],
)
def test_a_fault_is_one_line_with_the_path(document: object, line: str) -> None:
    with pytest.raises(FleetError) as caught:
        parse_fleet(document)
    assert str(caught.value) == line
    assert isinstance(caught.value, GpuyardError)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("nodes: [", "line 1, column "),
        ("nodes: []\nnodes: []\n", 'found duplicate key "nodes"'),
        ("{", "Expecting property name"),
        ("\x00", "special characters are not allowed"),
    ],
)
def test_a_file_that_is_no_yaml_is_one_line(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(FleetError) as caught:
        load_fleet(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="No such file"):
        load_fleet(tmp_path / "fleet.yaml")


def test_the_default_fleet() -> None:
    nodes = default_fleet(2)
    assert [node.name for node in nodes] == ["node-0", "node-1"]
    assert len(nodes[0].gpus) == 8
    assert nodes[0].gpus[0]["memory_mib"] == 24564
    assert (nodes[0].driver_version, nodes[0].cuda_version) == ("550.54.15", "12.4")
    assert (nodes[0].cpus, nodes[0].memory_mib) == (64.0, 262144)
    assert default_fleet(1, name="this-host")[0].name == "this-host"


async def test_ten_thousand_nodes_are_read_once_and_not_again() -> None:
    clock = Clock()
    nodes = default_fleet(10_000)
    probers = [InlineProber(node.definition(), clock=clock, utc_now=lambda: "t") for node in nodes]
    assert sum(prober.calls for prober in probers) == 0
    for prober in probers[:50]:
        await prober.sample(NOBODY)
    after_first = [prober.calls for prober in probers[:50]]
    assert max(after_first) < 200
    for beat in range(20):
        clock.now = beat * 2.0
        for prober in probers[:50]:
            first = await prober.sample(NOBODY)
            assert first is await prober.sample(NOBODY)
            assert prober.age_s == 0
    assert [prober.calls for prober in probers[:50]] == after_first
    assert all(node.gpus is nodes[0].gpus for node in nodes)
