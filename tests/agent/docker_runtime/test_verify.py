"""A container is compared with its grant, whichever way the GPUs came in."""

from typing import Any

import pytest

from gpuyard_agent.core.launch import Launch
from gpuyard_agent.docker_runtime.payload import container_payload
from gpuyard_agent.docker_runtime.verify import check_grant
from tests.agent.docker_runtime.bench import gpu, make_launch

_TWO = (gpu("GPU-a"), gpu("GPU-b"))
_NODES = ("/dev/nvidia0", "/dev/nvidiactl")


def _made(launch: Launch, **host: Any) -> dict[str, Any]:
    """What an engine shows of a container made as asked, changed by `host`."""
    payload = container_payload(launch)
    return {"Config": {"Env": payload["Env"]}, "HostConfig": payload["HostConfig"] | host}


@pytest.mark.parametrize(
    "launch",
    [
        make_launch(gpus=_TWO),
        make_launch(gpus=_TWO, gpu_injection="cdi"),
        make_launch(gpus=_TWO[:1], gpu_injection="device-nodes", devices=_NODES),
        make_launch(),
        make_launch(env={"NVIDIA_VISIBLE_DEVICES": "void"}),
    ],
    ids=["toolkit", "cdi", "device-nodes", "no-gpu", "void"],
)
def test_what_was_asked_for_is_right(launch: Launch) -> None:
    assert check_grant(_made(launch), launch) is None


def _request(*ids: str, **more: Any) -> dict[str, Any]:
    return {"Driver": "", "Count": 0, "DeviceIDs": list(ids), "Capabilities": [["gpu"]], **more}


@pytest.mark.parametrize(
    ("launch", "host", "said"),
    [
        (
            make_launch(gpus=_TWO),
            {"DeviceRequests": [_request("GPU-a")]},
            "the container has GPU-a",
        ),
        (make_launch(gpus=_TWO), {"DeviceRequests": None}, "the container has none"),
        (make_launch(gpus=_TWO), {"DeviceRequests": [_request(Count=-1)]}, "a number of GPUs"),
        (make_launch(), {"DeviceRequests": [_request("GPU-c")]}, "asks the engine for GPU-c"),
        (make_launch(gpus=_TWO, gpu_injection="none"), {}, "GPU-a, GPU-b granted"),
        (make_launch(), {"Privileged": True}, "privileged"),
        (make_launch(), {"Devices": [{"PathOnHost": "/dev/nvidia1"}]}, "/dev/nvidia1"),
        (
            make_launch(gpus=_TWO, gpu_injection="cdi"),
            {"DeviceRequests": [_request("nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b")]},
            "through cdi",
        ),
        (
            make_launch(gpus=_TWO, gpu_injection="device-nodes", devices=_NODES),
            {"Devices": [{"PathOnHost": "/dev/nvidia0"}]},
            "granted devices /dev/nvidia0, /dev/nvidiactl",
        ),
    ],
)
def test_a_difference_is_named(launch: Launch, host: dict[str, Any], said: str) -> None:
    assert said in str(check_grant(_made(launch, **host), launch))


def test_an_image_that_opens_every_gpu_is_noticed() -> None:
    launch = make_launch(env={"NVIDIA_VISIBLE_DEVICES": "void"})
    made = _made(launch)
    made["Config"]["Env"] = ["NVIDIA_VISIBLE_DEVICES=all"]

    assert (
        check_grant(made, launch) == "NVIDIA_VISIBLE_DEVICES is all in the container and not void"
    )
