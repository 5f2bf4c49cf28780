"""The body of POST /containers/create, golden: a change of it changes every container."""

import json
from typing import Any, Final

import pytest

from gpuyard_agent.core.launch import AttemptKey, Launch, MountPoint, UlimitValue
from gpuyard_agent.docker_runtime.payload import container_payload
from tests.agent.docker_runtime.bench import gpu, make_launch

_KEY = AttemptKey("team-a", "train", 2)
_LABELS = {
    "gpuyard.yard": "yard01",
    "gpuyard.node": "node-1",
    "gpuyard.tenant": "team-a",
    "gpuyard.job": "train",
    "gpuyard.attempt": "2",
    "gpuyard.epoch": "1:1",
    "gpuyard.spec_sha256": "spec-1",
}
_LOGS = {"Type": "json-file", "Config": {"max-size": "64m", "max-file": "2"}}


def _launch(**changes: Any) -> Launch:
    return make_launch(key=_KEY, **changes)


def _plain(**host: Any) -> dict[str, Any]:
    return {
        "Image": "gpuyard-test/busybox:1",
        "Labels": _LABELS,
        "Env": [],
        "Tty": False,
        "OpenStdin": False,
        "StopTimeout": 30,
        "HostConfig": {
            "Init": True,
            "RestartPolicy": {"Name": "no"},
            "NetworkMode": "none",
            "LogConfig": _LOGS,
            **host,
        },
        "Cmd": ["true"],
    }


def test_two_gpus_through_the_toolkit_are_one_request_by_uuid() -> None:
    launch = _launch(gpus=(gpu("GPU-a"), gpu("GPU-b")))

    assert container_payload(launch) == _plain(
        DeviceRequests=[{"Driver": "", "DeviceIDs": ["GPU-a", "GPU-b"], "Capabilities": [["gpu"]]}]
    )


def test_through_cdi_each_gpu_is_a_qualified_name() -> None:
    launch = _launch(gpus=(gpu("GPU-a"), gpu("MIG-b")), gpu_injection="cdi")

    assert container_payload(launch) == _plain(
        DeviceRequests=[
            {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-a", "nvidia.com/gpu=MIG-b"]}
        ]
    )


def test_device_nodes_are_handed_over_as_they_are_named() -> None:
    devices = ("/dev/nvidia3", "/dev/nvidiactl")
    launch = _launch(gpus=(gpu("GPU-a"),), gpu_injection="device-nodes", devices=devices)

    assert container_payload(launch) == _plain(
        Devices=[
            {
                "PathOnHost": "/dev/nvidia3",
                "PathInContainer": "/dev/nvidia3",
                "CgroupPermissions": "rwm",
            },
            {
                "PathOnHost": "/dev/nvidiactl",
                "PathInContainer": "/dev/nvidiactl",
                "CgroupPermissions": "rwm",
            },
        ]
    )


def test_without_an_injection_no_gpu_is_asked_for() -> None:
    launch = _launch(gpus=(gpu("GPU-a"),), gpu_injection="none")

    assert container_payload(launch) == _plain()


def test_a_job_without_gpus_closes_what_its_image_would_open() -> None:
    launch = _launch(env={"NVIDIA_VISIBLE_DEVICES": "void", "A": "b=c"})

    wanted = _plain()
    wanted["Env"] = ["NVIDIA_VISIBLE_DEVICES=void", "A=b=c"]
    assert container_payload(launch) == wanted


_FULL: Final = {
    "Image": "team/image:2",
    "Labels": _LABELS,
    "Env": ["X=1"],
    "Tty": True,
    "OpenStdin": False,
    "StopTimeout": 8,
    "Cmd": ["python", "train.py"],
    "Entrypoint": ["/bin/sh", "-c"],
    "WorkingDir": "/work",
    "User": "1000:100",
    "ExposedPorts": {"8888/tcp": {}, "80/tcp": {}, "53/udp": {}},
    "HostConfig": {
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "NetworkMode": "bridge",
        "LogConfig": _LOGS,
        "Memory": 536870912,
        "MemorySwap": 536870912,
        "NanoCpus": 1500000000,
        "ShmSize": 67108864,
        "Mounts": [
            {"Type": "bind", "Source": "/data", "Target": "/data", "ReadOnly": True},
            {"Type": "volume", "Source": "cache", "Target": "/cache", "ReadOnly": False},
        ],
        "Tmpfs": {"/scratch": "size=16m"},
        "Ulimits": [
            {"Name": "memlock", "Soft": -1, "Hard": -1},
            {"Name": "stack", "Soft": 67108864, "Hard": 67108864},
        ],
        "DeviceRequests": [{"Driver": "", "DeviceIDs": ["GPU-a"], "Capabilities": [["gpu"]]}],
        "PortBindings": {
            "8888/tcp": [{"HostIp": "", "HostPort": ""}],
            "80/tcp": [{"HostIp": "", "HostPort": "8080"}],
            "53/udp": [{"HostIp": "", "HostPort": "53"}],
        },
    },
}


def test_everything_that_a_job_may_ask_for() -> None:
    launch = _launch(
        image="team/image:2",
        command=["python", "train.py"],
        entrypoint=["/bin/sh", "-c"],
        env={"X": "1"},
        workdir="/work",
        run_as="1000:100",
        tty=True,
        gpus=(gpu("GPU-a"),),
        mounts=(MountPoint("/data", "/data", True), MountPoint("cache", "/cache", False)),
        cpus=1.5,
        memory_mib=512,
        shm_mib=64,
        tmpfs={"/scratch": "size=16m"},
        ulimits=(UlimitValue("memlock", -1, -1), UlimitValue("stack", 67108864, 67108864)),
        network="bridge",
        ports=("8888", "8080:80", "53:53/udp"),
        stop_grace_s=7.2,
    )

    assert container_payload(launch) == _FULL


@pytest.mark.parametrize("injection", ["toolkit", "cdi", "device-nodes", "none"])
def test_no_request_ever_holds_a_count(injection: str) -> None:
    launch = _launch(gpus=(gpu("GPU-a"),), gpu_injection=injection, devices=("/dev/nvidia0",))

    assert "Count" not in json.dumps(container_payload(launch))


def test_an_empty_entrypoint_drops_the_images_own() -> None:
    assert container_payload(_launch(entrypoint=[]))["Entrypoint"] == [""]
    assert "Entrypoint" not in container_payload(_launch())


def test_without_a_command_the_images_own_runs() -> None:
    assert "Cmd" not in container_payload(_launch(command=None))
