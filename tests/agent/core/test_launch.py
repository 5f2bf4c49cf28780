"""What a container is made from: our environment, labels and defaults around the job's spec."""

from dataclasses import replace
from typing import Any

import pytest

from gpuyard_agent.core.launch import LaunchContext, MountPoint, UlimitValue, launch_of
from gpuyard_agent.core.stopping import told_deadline
from tests.support.agent_builders import GPU, NODE, YARD, entry, gpu

CONTEXT = LaunchContext(yard=YARD, node=NODE, epoch="1000.5", gpu_injection="toolkit")


def environment(context: LaunchContext = CONTEXT, **want: Any) -> dict[str, str]:
    return launch_of(entry(**want), context).env


def test_the_job_is_told_who_it_is() -> None:
    env = environment()
    assert env["GPUYARD_JOB_ID"] == "job-1"
    assert env["GPUYARD_TENANT"] == "team-a"
    assert env["GPUYARD_USER"] == "alice"
    assert env["GPUYARD_NODE"] == NODE
    assert env["GPUYARD_ATTEMPT"] == "1"
    assert env["GPUYARD_JOB_NAME"] == ""
    assert "GPUYARD_DEADLINE" not in env
    assert "GPUYARD_ARRAY_TASK" not in env


def test_the_deadline_and_the_array_task_are_told_where_there_are_any() -> None:
    context = replace(CONTEXT, deadline="2026-01-01T00:00:00Z")
    assert environment(context)["GPUYARD_DEADLINE"] == "2026-01-01T00:00:00Z"
    assert environment(job="sweep_17")["GPUYARD_ARRAY_TASK"] == "17"


def test_a_job_without_gpus_sees_none_whatever_its_image_says() -> None:
    env = environment()
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert env["GPUYARD_GPU_UUIDS"] == ""


def test_a_grant_is_named_by_uuid() -> None:
    env = environment(gpus=[gpu("GPU-b"), gpu("GPU-a")])
    assert env["NVIDIA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert env["GPUYARD_GPU_UUIDS"] == "GPU-b,GPU-a"


def test_with_cdi_the_variable_must_not_add_devices() -> None:
    context = replace(CONTEXT, gpu_injection="cdi")
    assert environment(context, gpus=[gpu()])["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_of_ours_only_the_order_of_devices_is_the_users() -> None:
    assert environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    env = environment(env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "A": "b", "GPUYARD_NODE": "x"})
    assert (env["CUDA_DEVICE_ORDER"], env["A"], env["GPUYARD_NODE"]) == ("FASTEST_FIRST", "b", NODE)


def test_names_and_labels() -> None:
    launch = launch_of(entry(labels={"team": "x", "sim.duration": "3s"}), CONTEXT)
    assert launch.container_name == "gpuyard-abc123-team-a-job-1-1"
    assert launch.labels == {
        "team": "x",
        "sim.duration": "3s",
        "gpuyard.yard": YARD,
        "gpuyard.node": NODE,
        "gpuyard.tenant": "team-a",
        "gpuyard.job": "job-1",
        "gpuyard.attempt": "1",
        "gpuyard.epoch": "1000.5",
        "gpuyard.spec_sha256": "0" * 64,
    }
    assert launch.sim == {"sim.duration": "3s"}


def test_a_job_cannot_take_our_labels() -> None:
    launch = launch_of(entry(labels={"gpuyard.yard": "other"}), CONTEXT)
    assert launch.labels["gpuyard.yard"] == YARD


@pytest.mark.parametrize(
    ("spec", "has_gpus", "shm_mib"),
    [
        ({}, False, None),
        ({}, True, 8192),
        ({"memory_mib": 32768}, True, 16384),
        ({"memory_mib": 1024}, False, 512),
        ({"memory_mib": 1024, "shm_mib": 64}, True, 64),
    ],
)
def test_shared_memory(spec: dict[str, Any], has_gpus: bool, shm_mib: int | None) -> None:
    want = entry(gpus=[gpu()] if has_gpus else [], **spec)
    assert launch_of(want, CONTEXT).shm_mib == shm_mib


def test_gpu_jobs_get_the_limits_they_need_unless_they_say_otherwise() -> None:
    memlock = UlimitValue("memlock", -1, -1, is_default=True)
    stack = UlimitValue("stack", 67108864, 67108864, is_default=True)
    assert launch_of(entry(), CONTEXT).ulimits == ()
    assert launch_of(entry(gpus=[gpu()]), CONTEXT).ulimits == (memlock, stack)
    asked = [{"name": "stack", "soft": 1, "hard": 2}]
    launch = launch_of(entry(gpus=[gpu()], ulimits=asked), CONTEXT)
    assert launch.ulimits == (UlimitValue("stack", 1, 2), memlock)


def test_device_nodes_only_with_gpus() -> None:
    context = replace(CONTEXT, gpu_injection="device-nodes", devices=("/dev/nvidia0",))
    assert launch_of(entry(gpus=[gpu(GPU)]), context).devices == ("/dev/nvidia0",)
    assert launch_of(entry(), context).devices == ()


def test_the_rest_of_the_spec_is_passed_on() -> None:
    launch = launch_of(
        entry(
            command=["a", "b"],
            entrypoint=["e"],
            workdir="/w",
            run_as="1000:1000",
            tty=True,
            mounts=[{"source": "/d", "target": "/t", "read_only": True}],
            cpus=2.5,
            memory_mib=100,
            tmpfs={"/x": "size=1m"},
            network="none",
            ports=["80"],
            pull="never",
            stop_grace="90s",
        ),
        CONTEXT,
    )
    assert (launch.command, launch.entrypoint, launch.workdir) == (["a", "b"], ["e"], "/w")
    assert (launch.run_as, launch.tty, launch.cpus, launch.memory_mib) == (
        "1000:1000",
        True,
        2.5,
        100,
    )
    assert (launch.network, launch.ports, launch.pull) == ("none", ("80",), "never")
    assert launch.stop_grace_s == 90
    assert launch.tmpfs == {"/x": "size=1m"}
    (mount,) = launch.mounts
    assert (mount.source, mount.target, mount.read_only) == ("/d", "/t", True)


def test_equal_entries_give_equal_launches() -> None:
    assert launch_of(entry(gpus=[gpu()]), CONTEXT) == launch_of(entry(gpus=[gpu()]), CONTEXT)


def test_driver_mounts_go_to_gpu_jobs_and_leave_room_for_the_jobs_own() -> None:
    driver = MountPoint("/usr/local/nvidia", "/usr/local/nvidia", True)
    given = replace(
        CONTEXT,
        gpu_injection="device-nodes",
        driver_mounts=(driver,),
        driver_env={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"},
    )
    with_gpu = launch_of(entry(gpus=[gpu(GPU)]), given)
    assert with_gpu.mounts == (driver,)
    assert with_gpu.prepend_env == {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
    without = launch_of(entry(), given)
    assert (without.mounts, without.prepend_env) == ((), {})
    own = {"source": "/usr", "target": "/usr", "read_only": True}
    covering = launch_of(entry(gpus=[gpu(GPU)], mounts=[own]), given)
    assert covering.mounts == (MountPoint("/usr", "/usr", True),)


def test_a_container_is_told_the_earlier_of_its_time_limit_and_its_jobs_deadline() -> None:
    deadline = "2026-01-01T00:01:00.000Z"
    start = 1767225600.0  # 2026-01-01T00:00:00Z
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({}, None),
        ({"deadline": deadline}, deadline),
        ({"max_runtime": "30s", "deadline": deadline}, "2026-01-01T00:00:30.000Z"),
        ({"max_runtime": "90s", "deadline": deadline}, deadline),
    ]
    for spec, told in cases:
        assert told_deadline(entry(**spec), start) == told
