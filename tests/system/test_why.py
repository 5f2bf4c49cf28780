"""`gpuyard why` on a running yard: for each code what it says, and that doing it starts the job.

The golden files stand in `why_golden`; `GPUYARD_WRITE_GOLDEN=1` writes what is said now. Of the
codes that exist, `waiting_turn` passes before it can be asked for and `gpu_dirty` needs a GPU that
is left dirty; both stand in the core's tests. One yard serves all scenes: each leaves it as it was.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuyard import Client
from tests.support.nats_server import NatsServer
from tests.support.running_yard import Daemon, RunningYard, eventually

GOLDEN = Path(__file__).parent / "why_golden"
HOUR = {"image": "none", "labels": {"sim.duration": "1h"}}
A100: dict[str, Any] = {
    "name": "a100",
    "cpus": 8,
    "memory_mib": 16384,
    "labels": {"zone": "a"},
    "gpus": [{"name": "NVIDIA A100-SXM4-80GB", "count": 2, "memory_mib": 81920}],
}
RTX: dict[str, Any] = {
    "name": "rtx",
    "cpus": 4,
    "memory_mib": 8192,
    "labels": {"zone": "b"},
    "gpus": [{"name": "NVIDIA GeForce RTX 4090", "memory_mib": 24564}],
}
PROCESSES = [
    {"gpu": gpu, "pid": 4242 + gpu, "memory_mib": 18432, "user": "bob"} for gpu in range(2)
]
DRIVER_GONE = {"call": "init", "do": "driver_not_loaded"}
LOST = {"gpu": 0, "call": "utilization", "do": "lost"}


@dataclass
class Scene:
    """A yard in which one job waits."""

    yard: RunningYard
    client: Client
    folder: Path
    tenant: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    id: str = ""

    def hold(self, id: str, **spec: Any) -> None:
        self.client.submit(HOUR | spec | {"id": id})
        eventually(lambda: self.client.job(id).state == "running", what=f"{id} runs")

    def limit(self, **document: Any) -> None:
        self.tenant = {"tenant": "default"} | document
        self.client.apply(self.tenant)

    def apply(self, **document: Any) -> None:
        """The same on the command line."""
        self.tenant |= document
        file = self.folder / "tenant.json"
        file.write_text(json.dumps(self.tenant))
        self.run("apply", "-f", str(file))

    def agent(self, *more: dict[str, Any], **of_a100: Any) -> None:
        """The agent starts anew, with `more` nodes or something amiss on `a100`."""
        if agent := self.yard.agents.get("node"):
            agent.kill()
        fleet = self.folder / "fleet.json"
        fleet.write_text(json.dumps({"nodes": [A100 | of_a100, RTX, *more]}))
        self.yard.agent(runtime="simulated", simulate=str(fleet))

    def wait(self, id: str, *flags: str, command: tuple[str, ...] = ()) -> None:
        """The job in question is submitted on the command line, and waits."""
        self.flags, self.command = list(flags), list(command)
        self.submit(id)
        assert self.client.job(id).state == "queued"

    def submit(self, id: str) -> None:
        fixed = ["submit", "--id", id, "-l", "sim.duration=1h"]
        self.run(*fixed, *self.flags, "none", *self.command)
        self.id = id

    def again(self) -> None:
        """The job's flags changed: another is submitted with them."""
        self.submit(f"{self.id}-again")

    def run(self, *arguments: str) -> str:
        done = self.yard.cli(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def with_flag(self, name: str, value: str | None) -> None:
        at = self.flags.index(name) if name in self.flags else len(self.flags)
        self.flags[at : at + 2] = [] if value is None else [name, value]
        self.again()

    def clear(self) -> None:
        for node in self.client.nodes():
            if node["scheduling"] != "open":
                self.client.uncordon(node["name"])
            for gpu in node["gpus"]:
                if gpu["cordoned"] is not None:
                    self.client.uncordon(node["name"], gpu=gpu["uuid"])
        for job in self.client.jobs():
            self.client.cancel(job.id)
        eventually(lambda: not list(self.client.jobs()), what="all jobs are over")
        if self.tenant:
            self.limit()


def ask_less(scene: Scene, change: dict[str, Any]) -> None:
    to = change["to"]
    flag, value = {
        "gpus": ("--gpus", f"{to}"),
        "gpus.memory_mib": ("--gpus", f"{to}MiB"),
        "cpus": ("--cpus", f"{to}"),
        "memory_mib": ("-m", f"{to}m"),
        "max_runtime": ("--time", f"{to}s"),
    }[change["field"]]
    scene.with_flag(flag, value)


def drop_where(scene: Scene, change: dict[str, Any]) -> None:
    at = scene.flags.index(change["line"])
    del scene.flags[at - 1 : at + 1]
    scene.again()


def raise_limit(scene: Scene, change: dict[str, Any]) -> None:
    limits, name = scene.tenant["limits"], change["limit"]
    scene.apply(limits=limits | {name: limits[name] + change["by"]})


def allow_model(scene: Scene, change: dict[str, Any]) -> None:
    scene.apply(models=[*scene.tenant["models"], change["model"]])


_TIME = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.]+Z| [\d:]+ \w+)")
DO: dict[str, Callable[[Scene, dict[str, Any]], object]] = {
    "ask_less": ask_less,
    "drop_where": drop_where,
    "drop_node": lambda scene, change: scene.with_flag("--node", None),
    "wait_for": lambda scene, change: scene.run("cancel", *(job["id"] for job in change["jobs"])),
    "raise_limit": raise_limit,
    "allow_model": allow_model,
    "uncordon": lambda scene, change: scene.run(*change["text"].split()[1:]),
    "end_foreign": lambda scene, change: scene.agent(),
}


def insufficient_gpus(scene: Scene) -> None:
    scene.hold("one", gpus=1, node="a100")
    scene.wait("two", "--gpus", "2")


def insufficient_gpu_memory(scene: Scene) -> None:
    scene.hold("share", gpus="60GiB", node="a100")
    scene.hold("whole", gpus=1, node="a100")
    scene.wait("large", "--gpus", "32GiB")


def insufficient_cpu(scene: Scene) -> None:
    scene.hold("busy", cpus=5.5, node="a100")
    scene.wait("six", "--cpus", "6")


def insufficient_memory(scene: Scene) -> None:
    scene.hold("held", memory_mib=12_288, node="a100")
    scene.wait("more", "-m", "10g")


def where_mismatch(scene: Scene) -> None:
    lines = ["zone=b", "gpu-memory>=80"]
    scene.wait("picky", "--gpus", "1", *(part for line in lines for part in ("--where", line)))


def reserved_for_other(scene: Scene) -> None:
    scene.hold("limited", gpus=1, node="a100", max_runtime="7230s")
    scene.hold("endless", gpus=1, node="rtx")
    scene.client.submit(HOUR | {"id": "pair", "gpus": 2})
    eventually(lambda: scene.client.job("pair").view.get("expected_start_at"), what="reserved")
    scene.wait("slow", "--gpus", "1", "--where", "gpu-memory>=40")


def node_document_full(scene: Scene) -> None:
    for number in range(12):
        scene.client.submit(HOUR | {"id": f"l{number}", "node": "rtx", "command": ["x" * 60_000]})
    scene.wait("long", "--node", "rtx", command=("x" * 60_000,))


def node_cordoned(scene: Scene) -> None:
    scene.client.cordon("rtx", reason="fan")
    scene.client.cordon("a100", gpu="1")
    scene.hold("other", gpus=1)
    scene.wait("kept-off", "--gpus", "1")


def quota_exceeded(scene: Scene) -> None:
    scene.limit(limits={"gpus": 1})
    scene.hold("mine", gpus=1)
    scene.wait("second", "--gpus", "1")


def quota_on_model(scene: Scene) -> None:
    scene.agent(A100 | {"name": "second"})
    scene.yard.ready(3)
    scene.client.cordon("rtx")
    scene.limit(limits={"gpu_memory_gib": 30})
    scene.wait("priced", "--gpus", "1")


def model_not_allowed(scene: Scene) -> None:
    scene.limit(models=["NVIDIA-H100*"])
    scene.wait("modest", "--gpus", "1")


def foreign_memory(scene: Scene) -> None:
    scene.hold("working", gpus=1, node="rtx")
    scene.agent(processes=PROCESSES)
    eventually(lambda: scene.client.node("a100")["gpus"][1]["foreign"])
    scene.wait("patient", "--gpus", "1", "--where", "gpu-memory>=40")


def gpu_unhealthy(scene: Scene) -> None:
    scene.agent(faults=[LOST])
    eventually(lambda: scene.client.node("a100")["gpus"][0]["health"]["state"] == "lost")
    scene.wait("both", "--gpus", "2", "--where", "gpu-memory>=40")


def node_unready(scene: Scene) -> None:
    scene.agent(faults=[DRIVER_GONE])
    eventually(lambda: state(scene, "a100") == "unready")
    scene.wait("quiet", "--where", "zone=a")


def node_lost(scene: Scene) -> None:
    scene.yard.agents["node"].kill()
    eventually(lambda: state(scene, "a100") == state(scene, "rtx") == "lost")
    scene.wait("gone", "--gpus", "1")


def state(scene: Scene, node: str) -> str:
    return str(scene.client.node(node)["state"])


def check(scene: Scene, make: Callable[[Scene], None]) -> None:
    """What is said is as written down, and what it says first starts the job."""
    code = make.__name__
    make(scene)
    found: dict[str, Any] = {**scene.client.why(scene.id)}
    assert found["verdict"]["code"] == code, found["verdict"]["message"]
    assert_golden(code, scene.run("why", scene.id), found)
    if found["changes"]:
        change = found["changes"][0]
        DO[change["kind"]](scene, change)
    else:
        scene.agent()  # only what ails the node could change
    eventually(lambda: scene.client.job(scene.id).state == "running", what=f"{code}: it starts")
    scene.clear()


def assert_golden(code: str, as_text: str, found: dict[str, Any]) -> None:
    found["verdict"]["since"] = "-"
    as_json = json.dumps(found, indent=2) + "\n"
    for suffix, said in ((".json", as_json), (".txt", as_text)):
        said = _TIME.sub("(a time)", said)
        file = (GOLDEN / code).with_suffix(suffix)
        if os.environ.get("GPUYARD_WRITE_GOLDEN"):
            file.write_text(said)
        assert said == file.read_text(), f"{file.name} says otherwise"


@pytest.fixture(scope="module")
def scene(
    module_nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A yard that gives a silent node up after a few beats."""
    folder, server = tmp_path_factory.mktemp("yard"), module_nats_server
    settings = folder / "coordinator.toml"
    settings.write_text("suspect_s = 5.0\nlost_s = 8.0\n")
    yard = RunningYard(server, folder)
    arguments = ["--url", server.url, "--dir", str(folder), "--config", str(settings)]
    yard.coordinator = Daemon("gpuyard_coordinator", folder / "coordinator.log", arguments)
    yard.coordinator.start()
    made = Scene(yard, yard.client(), folder)
    made.agent()
    yard.ready(2)
    yield made
    yard.close()


@pytest.mark.slow
def test_what_the_request_and_others_jobs_decide(scene: Scene) -> None:
    for make in (
        insufficient_gpus,
        insufficient_gpu_memory,
        insufficient_cpu,
        insufficient_memory,
        where_mismatch,
        node_document_full,
        reserved_for_other,
    ):
        check(scene, make)


@pytest.mark.slow
def test_what_ails_nodes_and_gpus(scene: Scene) -> None:
    for make in (foreign_memory, gpu_unhealthy, node_unready, node_lost):
        check(scene, make)


@pytest.mark.slow
def test_what_operators_decide(scene: Scene) -> None:
    # The last one leaves a third node behind.
    for make in (quota_exceeded, model_not_allowed, node_cordoned, quota_on_model):
        check(scene, make)
