"""The engines of the tests: they answer, they run the image, they leave nothing."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import docker
import docker.errors
import pytest

from tests.support.busybox import BUSYBOX
from tests.support.engine import Engine, MakePrivateEngine
from tests.support.processes import is_alive


@contextlib.contextmanager
def _container(api: docker.APIClient, *command: str, **options: object) -> Iterator[str]:
    config = api.create_host_config(**options)
    made: str = api.create_container(
        BUSYBOX, list(command), network_disabled=True, host_config=config
    )["Id"]
    try:
        api.start(made)
        yield made
    finally:
        api.remove_container(made, force=True)


def test_the_image_runs_on_the_shared_engine(docker_engine: Engine, busybox_image: str) -> None:
    assert busybox_image == BUSYBOX
    with docker_engine.api() as api, _container(api, "sh", "-c", "seq 3 | head -n 2") as made:
        assert api.wait(made)["StatusCode"] == 0
        assert api.logs(made) == b"1\n2\n"


def test_with_the_toolkit_double_a_private_engine_grants_gpus(
    private_engine: MakePrivateEngine,
) -> None:
    gpu = docker.types.DeviceRequest(device_ids=["GPU-a", "GPU-b"], capabilities=[["gpu"]])
    with (
        private_engine(toolkit=True).api() as api,
        _container(api, "env", device_requests=[gpu]) as made,
    ):
        api.wait(made)
        assert b"NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b\n" in api.logs(made)


def test_without_it_a_private_engine_says_what_is_missing(
    private_engine: MakePrivateEngine,
) -> None:
    gpu = docker.types.DeviceRequest(count=1, capabilities=[["gpu"]])
    with (
        private_engine().api() as api,
        pytest.raises(docker.errors.APIError, match="could not select device driver"),
        _container(api, "true", device_requests=[gpu]),
    ):
        pass


def test_a_container_lives_through_a_killed_engine_and_not_through_its_close(
    private_engine: MakePrivateEngine,
) -> None:
    engine = private_engine("--live-restore")
    with engine.api() as api:
        made = api.create_container(BUSYBOX, ["sleep", "600"], network_disabled=True)["Id"]
        api.start(made)
        first_process = api.inspect_container(made)["State"]["Pid"]
    engine.kill()
    assert engine.silence()

    engine.start()

    with engine.api() as api:
        assert api.inspect_container(made)["State"]["Pid"] == first_process
    root = engine.path.parent
    engine.close()
    assert not is_alive(first_process)
    assert not root.exists()
    assert str(root) not in Path("/proc/mounts").read_text()
    assert root.name not in os.listdir("/run/netns")
