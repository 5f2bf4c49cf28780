"""Settings: where each comes from, and one clear line for what cannot be meant."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.memory import Memory, ended_record
from gpuyard_agent.core.policy import PERMISSIVE, NodePolicy
from gpuyard_agent.journal import FileJournal
from gpuyard_agent.loop.assembly import Assembly, assemble
from gpuyard_agent.loop.host import Clock, this_host
from gpuyard_agent.loop.keeping import NoKeeper
from gpuyard_agent.settings import AgentSettings, SettingsError, load, load_policy
from gpuyard_agent.simulated_runtime import Timers
from tests.support.agent_builders import ended


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_defaults() -> None:
    assert load(file=None, environment={}, flags={}) == AgentSettings()


def test_flag_over_environment_over_file(tmp_path: Path) -> None:
    file = written(tmp_path / "a.toml", 'url = "nats://file:1"\nname = "f"\ndir = "/f"\n')
    environment = {"GPUYARD_URL": "nats://env:1", "GPUYARD_NAME": "e", "GPUYARD_TENANT": "x"}
    settings = load(file=file, environment=environment, flags={"url": "nats://flag:1", "ca": None})
    assert (settings.url, settings.name, settings.dir) == ("nats://flag:1", "e", "/f")


def test_the_file_may_hold_everything(tmp_path: Path) -> None:
    text = """
    runtime = "process"
    gpu_injection = "device-nodes"
    simulate = 3
    beat_s = 1
    log_limit_mib = 8
    stop_jobs_on_exit = true
    labels = {zone = "a"}
    """
    settings = load(file=written(tmp_path / "a.toml", text), environment={}, flags={})
    assert (settings.runtime, settings.simulate, settings.beat_s) == ("process", "3", 1.0)
    assert settings.stop_jobs_on_exit
    assert settings.labels == {"zone": "a"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('runtme = "docker"', "unknown key runtme (did you mean runtime?)"),
        ('runtime = "podman"', "runtime must be one of docker, process, simulated"),
        ("beat_s = 0", "beat_s must be a number above 0"),
        ("beat_s = true", "beat_s must be a number above 0"),
        ('stop_jobs_on_exit = "yes"', "stop_jobs_on_exit must be true or false"),
        ("labels = {a = 1}", "labels must be a table of texts"),
        ("url = 1", "url must be a text"),
        ("url = ", "a.toml"),
    ],
)
def test_what_cannot_be_meant_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path / "a.toml", text)
    with pytest.raises(SettingsError) as caught:
        load(file=file, environment={}, flags={})
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        load(file=tmp_path / "none", environment={}, flags={})


def test_variables_have_their_keys_type() -> None:
    environment = {"GPUYARD_BEAT_S": "0.5", "GPUYARD_STOP_JOBS_ON_EXIT": "1"}
    settings = load(file=None, environment=environment, flags={})
    assert (settings.beat_s, settings.stop_jobs_on_exit) == (0.5, True)
    with pytest.raises(SettingsError, match="GPUYARD_BEAT_S"):
        load(file=None, environment={"GPUYARD_BEAT_S": "often"}, flags={})


def test_the_policy_file(tmp_path: Path) -> None:
    assert load_policy(tmp_path / "none") is PERMISSIVE
    file = written(tmp_path / "p.toml", 'allowed_mounts = ["/data"]')
    assert load_policy(file) == NodePolicy(allowed_mounts=("/data",))
    with pytest.raises(SettingsError, match=r"p\.toml: mounts: unknown key"):
        load_policy(written(tmp_path / "p.toml", "mounts = []"))


def agent(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gpuyard_agent", *words], capture_output=True, text=True, check=False
    )


def test_the_command_line_refuses_in_one_line(tmp_path: Path) -> None:
    done = agent("--config", str(tmp_path / "none"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("gpuyard-agent: ")
    assert agent("--no-such-flag").returncode == 2
    base = ("--dir", str(tmp_path), "--runtime", "process")
    for words in (("--name", "No Name"), ("--simulate", "0"), ("--simulate", "/no/file.yaml")):
        done = agent(*base, *words)
        assert done.returncode in (1, 2)
        assert done.stderr.count("\n") == 1, done.stderr


def test_it_is_light() -> None:
    program = (
        "import sys; import gpuyard_agent.__main__\n"
        "from gpuyard import telemetry\n"
        "telemetry.configure(level='info', format='text')  # first, as `main` does\n"
        "import gpuyard_agent.loop.assembly, gpuyard_agent.loop.process\n"
        "import gpuyard_agent.docker_runtime.runtime\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    heavy = {"pydantic", "docker", "pynvml", "requests", "urllib3", "rich", "ruamel", "numpy"}
    assert "structlog" in loaded
    assert not loaded & heavy


@pytest.mark.parametrize("missing", ["docker", "pynvml", "structlog"])
def test_a_package_that_is_not_installed_is_named_with_the_extra(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['gpuyard-agent']\n"
        "from gpuyard_agent.__main__ import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert missing in line and "pip install 'gpuyard[agent]'" in line


async def test_it_tells_systemd_and_stops_with_0_although_the_bus_is_away(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    told: list[str] = []

    async def until(start: str) -> None:
        while not (told and told[-1].startswith(start)):
            told.append((await asyncio.wait_for(loop.sock_recv(listener, 400), 20)).decode())

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        listener.setblocking(False)
        words = ["--dir", str(tmp_path / "d"), "--runtime", "process", "--simulate", "1"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpuyard_agent", "--url", "nats://127.0.0.1:1", *words),
            env={"NOTIFY_SOCKET": str(address), "PATH": "/usr/bin:/bin"},
            stderr=asyncio.subprocess.PIPE,
        )
        loop = asyncio.get_running_loop()
        await until("READY=1")
        assert process.stderr is not None
        found = await asyncio.wait_for(process.stderr.readuntil(b"GPUs found"), 20)
        assert b'"gpus": 8' in found, "a start that is over has looked for GPUs"
        process.terminate()
        await until("STOPPING=1")
        _, errors = await process.communicate()
    assert told[0] == "STATUS=looking for GPUs"
    assert told[-2] == "READY=1\nSTATUS=8 GPUs, 0 jobs running, the bus is away"
    assert told[-1] == "STOPPING=1"
    assert process.returncode == 0, errors


def test_one_simulated_node_has_the_name_of_its_host(tmp_path: Path) -> None:
    def names(simulate: str, name: str | None = None) -> list[str]:
        settings = AgentSettings(
            dir=str(tmp_path), runtime="simulated", simulate=simulate, name=name
        )
        shared = Assembly(settings, this_host(), Clock(), PERMISSIVE, Timers(), NoKeeper())
        return [parts.name for parts, _ in assemble(shared, host_name="gpu-07.lab.example")]

    assert names(simulate="1") == ["gpu-07"]
    assert names(simulate="1", name="mine") == ["mine"]
    assert names(simulate="2") == ["node-0", "node-1"]


def test_another_runtime_is_refused_while_jobs_of_the_last_one_may_run(tmp_path: Path) -> None:
    def start(runtime: str) -> Memory:
        settings = AgentSettings(dir=str(tmp_path), runtime=runtime, simulate="1", name="n")
        shared = Assembly(settings, this_host(), Clock(), PERMISSIVE, Timers(), NoKeeper())
        [(parts, memory)] = assemble(shared, host_name="host")
        assert isinstance(parts.journal, FileJournal)
        parts.journal.close()
        return memory

    def note(*records: dict[str, Any]) -> None:
        journal = FileJournal(tmp_path / "nodes" / "n")
        journal.open()
        journal.append(records)
        journal.close()

    key = ["default", "job", 1]
    assert start("docker").runtime == "docker"
    note({"k": "launching", "key": key, "boot": "b"})
    with pytest.raises(SettingsError, match=r"process now, and 1 job of the runtime docker may"):
        start("process")
    assert start("docker").unended == 1
    note(ended_record(AttemptKey("default", "job", 1), ended()))
    assert start("process").runtime == "process"
    assert start("process").runtime == "process"
