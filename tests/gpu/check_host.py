"""Runs a whole yard on this host's real GPUs and checks what a user would rely on.

    python -m tests.gpu.check_host [--python PROGRAM]

Needs a Docker Engine, nats-server on the PATH, an NVIDIA driver, and a Python with torch, whose
folders are mounted read-only into containers made from busybox alone. Prints a line per check and
ends 0 if all hold; what needs more GPUs than there are is skipped with that reason. It changes no
setting of a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import docker

from gpuyard import Client
from gpuyard.client.jobs import Job
from tests.support.busybox import BUSYBOX, import_busybox
from tests.support.checks import close, holds
from tests.support.nats_server import NatsServer
from tests.support.running_yard import RunningYard, eventually

HOST_FOLDERS: Final = ("/usr", "/lib", "/lib64", "/opt", "/etc")
FOREIGN: Final = (
    "import torch, time; x = torch.zeros(2**28, device='cuda:{index}'); "
    "print('holding', flush=True); time.sleep(600)"
)
TENSOR: Final = (
    "import torch; print(torch.cuda.device_count()); "
    "x = torch.tensor([1.0, 2.0], device='cuda'); print(repr(x @ x))"
)
PAIR: Final = (
    "import torch; n = torch.cuda.device_count(); a = torch.ones(1 << 20, device='cuda:0'); "
    "b = a.to('cuda:1') * 2; c = (a + b.to('cuda:0')).sum().item(); "
    "print(n, torch.cuda.can_device_access_peer(0, 1), c == 3.0 * (1 << 20))"
)


class Host:
    """The yard of this host with the words of the checks."""

    def __init__(self, yard: RunningYard, client: Client, python: str) -> None:
        self.yard = yard
        self.client = client
        self.python = python
        self.node: dict[str, Any] = client.nodes()[0]
        self.gpus: list[dict[str, Any]] = self.node["gpus"]

    def spec(self, *command: str, **fields: object) -> dict[str, Any]:
        mounts = [
            {"source": folder, "target": folder, "read_only": True}
            for folder in HOST_FOLDERS
            if Path(folder).exists()
        ]
        base = {"image": BUSYBOX, "command": list(command), "network": "none", "mounts": mounts}
        return base | {"stop_grace": "2s"} | fields

    def torch(self, code: str, **fields: object) -> tuple[Job, list[str]]:
        """Runs Python with torch in a container and gives its end and its lines."""
        lines: list[str] = []
        job = self.client.run(
            self.spec(self.python, "-c", code, **fields),
            on_log=lambda line: lines.append(line.text) if line.stream == "stdout" else None,
        )
        return job, lines

    def sleeper(self, id: str, **fields: object) -> list[str]:
        """Starts a job that waits, and gives the UUIDs it holds."""
        self.client.submit(self.spec("sleep", "300", id=id, **fields))
        eventually(lambda: self.client.job(id).state == "running")
        return [gpu["uuid"] for gpu in self.client.job(id).view["gpus"]]

    def inside(self, id: str, script: str) -> str:
        """What a shell prints inside the running container of a job."""
        with docker.APIClient(version="auto") as api:
            (container,) = api.containers(filters={"label": f"gpuyard.job={id}"})
            command = api.exec_create(container["Id"], ["sh", "-c", script])
            output: bytes = api.exec_start(command["Id"])
        return output.decode(errors="replace").strip()

    def end(self, *ids: str) -> None:
        for id in ids:
            self.client.cancel(id)
        for id in ids:
            self.client.wait(id, timeout_s=60)
        eventually(self.all_free, within_s=60, what="all GPUs free again")

    def all_free(self) -> bool:
        gpus = self.client.nodes()[0]["gpus"]
        return all(gpu["free_milli"] == 1000 and not gpu["foreign"] for gpu in gpus)

    @contextmanager
    def foreign(self, index: int) -> Iterator[int]:
        """A process of the host that holds 1 GiB of a GPU; gives its pid."""
        process = subprocess.Popen(
            [self.python, "-c", FOREIGN.format(index=index)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None and process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()
            process.wait()


def check_facts(host: Host) -> str:
    """Every GPU with what nvidia-smi says of it."""
    query = "--query-gpu=uuid,name,memory.total,driver_version"
    told = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [[cell.strip() for cell in line.split(",")] for line in told.strip().splitlines()]
    assert [row[0] for row in rows] == [gpu["uuid"] for gpu in host.gpus]
    for row, gpu in zip(rows, host.gpus, strict=True):
        assert row[1] == gpu["name"] and int(row[2]) == gpu["memory_total_mib"]
        assert row[3] == host.node["driver_version"]
    assert host.node["labels"]["gpu-count"] == str(len(rows))
    shown = {key: host.node[key] for key in ("driver_version", "cuda_version", "gpu_injection")}
    gpu = host.gpus[0]
    return f"{len(rows)} x {gpu['name']}, {gpu['memory_total_mib']} MiB, {shown}, " + json.dumps(
        host.node["labels"]
    )


def check_tensor(host: Host) -> str:
    """A container computes on the one GPU it was given."""
    began = time.monotonic()
    job, lines = host.torch(TENSOR, gpus=1)
    assert job.exit_code == 0, (job.message, lines)
    assert lines == ["1", "tensor(5., device='cuda:0')"], lines
    return f"{lines[1]} in {time.monotonic() - began:.1f} s"


def check_no_gpu(host: Host) -> str:
    """A job that asked for none sees none."""
    job, lines = host.torch("import torch; print(torch.cuda.device_count())")
    assert (job.exit_code, lines) == (0, ["0"]), (job.message, lines)
    host.sleeper("bare")
    nodes = host.inside("bare", "ls /dev | grep -c nvidia")
    host.end("bare")
    assert nodes == "0"
    return "torch counts 0, no /dev/nvidia* inside"


def check_foreign(host: Host) -> str:
    """A process outside the yard is named and keeps jobs off its GPU alone."""
    last = len(host.gpus) - 1
    with host.foreign(last) as pid:
        gpu = eventually(
            lambda: (gpu := host.client.nodes()[0]["gpus"][last])["foreign"] and gpu, within_s=30
        )
        (process,) = gpu["foreign"]
        assert process["pid"] == pid and process["memory_mib"] > 1000
        id = host.client.submit(host.spec("sleep", "60", id="all-of-it", gpus=len(host.gpus))).id
        job = host.client.job(id)
        assert job.state == "queued" and job.view["verdict"]["code"] == "foreign_memory", job.view
        if last > 0:
            held = host.sleeper("beside", gpus=last)
            assert host.gpus[last]["uuid"] not in held
            host.client.cancel("beside")
        host.client.cancel(id)
    eventually(host.all_free, within_s=60)
    return f"{process} waits as: {job.view['verdict']['message']}"


def check_two_apart(host: Host) -> str:
    """Two jobs at once on different GPUs, each seeing one; a third waits for a release."""
    count = len(host.gpus)
    ids = [f"one-{n}" for n in range(count)]
    held = {id: host.sleeper(id, gpus=1) for id in ids}
    assert sorted(uuid for uuids in held.values() for uuid in uuids) == sorted(
        gpu["uuid"] for gpu in host.gpus
    )
    for id, uuids in held.items():
        listed = host.inside(id, "nvidia-smi -L || /usr/local/nvidia/bin/nvidia-smi -L")
        assert listed.count("UUID") == 1 and uuids[0] in listed, listed
        code = "import torch; print(torch.cuda.device_count())"
        assert host.inside(id, f'{host.python} -c "{code}"') == "1"
    fault = foreign_node(host, ids[0], held)
    host.client.submit(host.spec("true", id="third", gpus=1))
    assert host.client.job("third").state == "queued"
    host.client.cancel(ids[0])
    began = time.monotonic()
    assert host.client.wait("third", timeout_s=60).state == "succeeded"
    waited = time.monotonic() - began
    host.end(*ids[1:])
    return f"{held}; the waiting one ended {waited:.1f} s after the cancel; other's node: {fault}"


def foreign_node(host: Host, id: str, held: dict[str, list[str]]) -> str:
    """What a container gets that makes itself a node of a GPU it does not hold."""
    other = next(gpu for gpu in host.gpus if gpu["uuid"] not in held[id])
    minor = int(other["index"])
    present = host.inside(id, f"ls /dev/nvidia{minor} 2>&1; mknod /tmp/n c 195 {minor}; cat /tmp/n")
    assert "Operation not permitted" in present, present
    return present.splitlines()[-1]


def check_pair(host: Host) -> str:
    """Two GPUs in NVML's order, both by count and by index, and a computation over both."""
    for asked in (2, "device=0,1"):
        job, lines = host.torch(PAIR, gpus=asked)
        assert job.exit_code == 0 and lines == ["2 True True"], (asked, job.message, lines)
    held = host.sleeper("pair", gpus="device=0,1")
    listed = host.inside("pair", "nvidia-smi -L || /usr/local/nvidia/bin/nvidia-smi -L")
    host.end("pair")
    assert held == [host.gpus[0]["uuid"], host.gpus[1]["uuid"]]
    order = [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines() if "UUID" in line]
    assert order == held
    return f"{lines[0]}; order {order}"


def check_links(host: Host) -> str:
    """The link matrix is in the node's facts, and a pair is one with the best link."""
    links = host.node["links"]
    count = len(host.gpus)
    assert len(links) == count * (count - 1) // 2, links
    held = set(host.sleeper("linked", gpus=2))
    host.end("linked")
    rank = {"nvlink": 3, "pcie": 2, "numa": 1, "system": 0}
    value = {frozenset((link["a"], link["b"])): rank[link["kind"]] for link in links}
    assert value[frozenset(held)] == max(value.values())
    return f"{links}"


ONE: Final = (check_facts, check_tensor, check_no_gpu, check_foreign)
SEVERAL: Final = (check_two_apart, check_pair, check_links)


@contextmanager
def whole_yard(python: str) -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as folder, docker.APIClient(version="auto") as api:
        import_busybox(api)
        directory = Path(folder)
        with NatsServer(directory) as server:
            yard = RunningYard(server, directory)
            yard.coordinator.start()
            yard.agent("gpu-host", runtime="docker")
            try:
                yield Host(yard, yard.ready(within_s=60), python)
            except Exception:
                print(yard.tails(), file=sys.stderr)
                raise
            finally:
                yard.close()
                remove_left(api)


def remove_left(api: "docker.APIClient") -> None:
    for container in api.containers(all=True, filters={"label": "gpuyard.node=gpu-host"}):
        api.remove_container(container["Id"], force=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    arguments = parser.parse_args()
    os.environ["PATH"] += os.pathsep + "/usr/local/nvidia/bin"
    with whole_yard(arguments.python) as host:
        results = [holds(check, host) for check in ONE]
        if len(host.gpus) > 1:
            results += [holds(check, host) for check in SEVERAL]
        else:
            for check in SEVERAL:
                print(f"skip {check.__name__}: this host has one GPU")
    return close(results)


if __name__ == "__main__":
    sys.exit(main())
