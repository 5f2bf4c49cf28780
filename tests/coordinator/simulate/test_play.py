"""Workloads from files, what playing them tells, and one clear line for what cannot be played."""

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpuyard.model.intake import parse_spec
from gpuyard_coordinator.simulate.command import simulate
from gpuyard_coordinator.simulate.play import play
from gpuyard_coordinator.simulate.policies import POLICIES
from gpuyard_coordinator.simulate.workload import Arrival, BadInput, Card, Machine, Workload

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,T4\nb,64000,262144,2,P100\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    "p0,1000,1024,2,1000,,0,100,0\n"
    "p1,1000,1024,1,500,T4,10,60,\n"
    "p2,1000,1024,2,1000,T4|P100,20,120,30\n"
    "p3,1000,1024,0,0,,30,40,30\n"
)


def lists(folder: Path, pods: str = PODS, nodes: str = NODES) -> str:
    (folder / "openb_node_list_gpu_node.csv").write_text(nodes)
    path = folder / "openb_pod_list_mine.csv.gz"
    path.write_bytes(gzip.compress(pods.encode()))
    return str(path)


def run(source: str, **change: Any) -> tuple[int, dict[str, Any], str]:
    documents = change.pop("documents", {})
    return simulate(source, change, lambda path: [documents[path]], lambda text: None)


def job(at: float, lasts: float, gpus: Any = 1, **spec: Any) -> Arrival:
    kept = parse_spec({"image": "trace", "gpus": gpus} | spec).normalised()
    return Arrival(at, "default", kept, lasts)


def test_waits_and_allocation_are_those_of_the_hour() -> None:
    """One GPU: the second job waits 50 s, the third 90; the GPU is free from 200 to 210."""
    arrivals = [job(0, 100), job(50, 100), job(110, 50), job(260, 10)]
    outcome = play(Workload("w", [Machine("n", 8, 1024, (Card("T4", 16000),))], arrivals), "ours")

    assert outcome.waits == [0, 0, 50, 90]
    assert (outcome.mean_wait_s, outcome.wait_s(0.5), outcome.wait_s(0.95)) == (35, 0, 90)
    assert outcome.allocation_percent == pytest.approx(100 * 250 / 260)
    assert outcome.never_started == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_starts_on_all_its_nodes_or_waits(policy: str) -> None:
    """Two nodes of one GPU: what comes second waits for both, what comes third for either."""
    machines = [Machine(name, 8, 1024, (Card("T4", 16000),)) for name in "ab"]
    arrivals = [job(0, 100), job(10, 50, nodes=2), job(20, 10, max_runtime=15)]
    outcome = play(Workload("w", machines, arrivals), policy)

    assert outcome.never_started == 0 and outcome.waits[-1] == 90
    assert outcome.allocation_percent == pytest.approx(50)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plays_the_public_form(tmp_path: Path, policy: str) -> None:
    code, answer, text = run(lists(tmp_path), policies=(policy,))

    assert code == 0 and (answer["gpus"], answer["jobs"]) == (4, 4)
    assert answer["policies"][0]["never_started"] == 0
    assert "4 jobs, 2 nodes, 4 GPUs" in text and policy in text


def test_quotas_speed_limits_load_and_another_fleet_change_what_comes_of_it(
    tmp_path: Path,
) -> None:
    source, before = lists(tmp_path), run(lists(tmp_path))[1]["policies"][0]
    fleet = {"nodes": [{"name": "x-{i}", "count": 3, "gpus": [{"name": "T4", "count": 8}]}]}

    assert run(source, quotas=("default=2",))[1]["policies"][0]["wait_max_s"] > before["wait_max_s"]
    wide = run(source, fleet="f", documents={"f": fleet})[1]
    assert wide["gpus"] == 24 and wide["policies"][0]["wait_max_s"] == 0
    assert run(source, speed=1000.0)[1]["policies"][0]["wait_mean_s"] > before["wait_mean_s"]
    drawn = run(source, load=120.0, jobs=50, limit_factor=1.5)[1]
    assert drawn["jobs"] > 50 and drawn["policies"][0]["wait_max_s"] > 0
    assert run(source, load=120.0, jobs=50, limit_factor=1.5)[1] == drawn


def test_our_own_trace_has_tenants_and_nodes_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("{}")
    trace = {
        "nodes": [{"name": "n", "gpus": [{"name": "T4", "count": 2, "memory_mib": 16000}]}],
        "tenants": [{"tenant": "a", "limits": {"gpus": 1}}],
        "jobs": [
            {"at": 0, "lasts": "1m", "tenant": "a", "spec": {"gpus": 1}},
            {"at": "5s", "lasts": 60, "tenant": "a", "spec": {"gpus": 1}},
            {"at": 6, "lasts": 60, "tenant": "b", "spec": {"gpus": "50%"}},
        ],
    }
    _, answer, _ = run(str(path), documents={str(path): trace})

    assert answer["policies"][0]["wait_max_s"] == 55
    assert json.dumps(answer)


def test_the_plot_is_a_picture_with_a_line_a_policy(tmp_path: Path) -> None:
    plot = tmp_path / "use.svg"
    change = {"policies": ("ours", "spread")}
    simulate(lists(tmp_path), change, lambda path: [], lambda text: None, str(plot))
    lines = ElementTree.fromstring(plot.read_text()).findall(".//{*}polyline")

    assert len(lines) == 4


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        (PODS.replace("num_gpu", "gpus"), "line 1: there is no column num_gpu"),
        (PODS.replace("creation_time", "x"), "no column creation_time; --load draws times"),
        (PODS.replace("p1,1000", "p1,many"), "line 3, column cpu_milli: 'many' is no whole number"),
        (PODS.replace("1,500,T4", "1,1500,T4"), "line 3, column gpu_milli: 1500 is not from 0"),
        (PODS.replace("1,500,T4", "1,0,T4"), "line 3, column gpu_milli: it is 0"),
        (PODS.replace("2,1000,,", "2,500,,"), "line 2, column gpu_milli: 500 of each of 2 GPUs"),
        (PODS.replace(",T4,", ",H900,"), "line 3, column gpu_spec: no node has a H900"),
        (PODS + "p4,1\n", "line 6: it has not as many columns"),
        (PODS.splitlines()[0] + "\n", "there is no job in it that ran"),
    ],
)
def test_what_is_wrong_in_a_list_is_named_with_line_and_column(
    tmp_path: Path, pods: str, words: str
) -> None:
    with pytest.raises(BadInput) as fault:
        run(lists(tmp_path, pods))
    assert words in str(fault.value) and "openb_pod_list_mine" in str(fault.value)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"jobs": {}}, "jobs: a list is needed"),
        ({"jobs": [{"at": 0, "lasts": -1, "spec": {}}]}, "jobs[0].lasts: -1 is no number from 0"),
        ({"jobs": [{"at": "soon", "lasts": 1, "spec": {}}]}, "jobs[0].at"),
        ({"jobs": [{"at": 0, "lasts": 1, "spec": {"gpus": -2}}]}, "jobs[0].spec: gpus"),
        ({"jobs": [{"at": 0, "lasts": 1, "for": 2}]}, "unknown key 'for'"),
        ({"jobs": [], "nodes": [{"name": "a", "cpus": "x"}]}, "nodes[0].cpus: 'x' is no number"),
        ({"jobs": [], "nodes": [{"name": "a"}, {"name": "a"}]}, "nodes[1].name: a stands twice"),
        ({"jobs": [], "tenants": [{"tenant": "a", "limit": {}}]}, "tenant 1"),
        (
            {"jobs": [{"at": 0, "lasts": 1, "spec": {"hold": True}}]},
            "jobs[0].spec.hold: jobs of a trace wait for room alone; leave it out",
        ),
        ({"jobs": []}, "it has no nodes"),
        ({"nodes": []}, "a trace is one document with 'jobs'"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named_with_its_field(
    tmp_path: Path, document: dict[str, Any], words: str
) -> None:
    path = tmp_path / "trace.yaml"
    path.write_text("x")
    with pytest.raises(BadInput) as fault:
        run(str(path), documents={str(path): document})
    assert words in str(fault.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policies": ("best",)}, "--policy best: there are ours, best-fit"),
        ({"quotas": ("a",)}, "--quota a: write TENANT=GPUS"),
        ({"quotas": ("default=-1",)}, "--quota default=-1: limits.gpus"),
        ({"quotas": ("defalt=4",)}, "there is no tenant defalt; did you mean default?"),
        ({"quotas": ("x=4",)}, "there is no tenant x; there are default"),
    ],
)
def test_what_is_wrong_in_an_option_is_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput) as fault:
        run(lists(tmp_path), **change)
    assert words in str(fault.value)
