"""Completion: words for the shell, quickly, and nothing at all where something is wrong."""

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shared.cli.command import environment
from tests.shared.cli.in_process import end_of
from tests.shared.cli.test_imports import HEAVY, modules_after
from tests.shared.cli.test_render import node
from tests.shared.client.fake_operations import tenant_view
from tests.shared.client.fake_yard import FakeJob, FakeYard
from tests.support.nats_server import NatsServer


async def words(url: str | None, line: str, **env: str) -> list[str]:
    """What bash would be told for a line whose last word is being written."""
    parts = line.split(" ")
    more = {"COMP_WORDS": line, "COMP_CWORD": str(len(parts) - 1)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuyard.cli"),
        env=environment(url, _GPUYARD_COMPLETE="bash_complete", **more, **env),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
    )
    out, err = await process.communicate()
    assert err == b""
    return [word.partition(",")[2] for word in out.decode().splitlines() if word]


async def test_commands_and_flags() -> None:
    assert await words(None, "gpuyard can") == ["cancel"]
    assert await words(None, "gpuyard config ") == ["path", "set", "use-context"]
    assert "--gpu-model" in await words(None, "gpuyard run --gpu-")
    assert await words(None, "gpuyard run --pull ") == ["missing", "always", "never"]


async def test_names_that_the_yard_knows(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        for id in ("train-1", "train-2", "other"):
            yard.jobs[id] = FakeJob({"id": id, "image": "i"}, "default", "alice")
        yard.jobs["train-2"].state = "failed"
        yard.nodes = [node(name="n1"), node(name="n2")]
        yard.tenants = {"team-a": tenant_view("team-a")}
        url = nats_server.url
        assert await words(url, "gpuyard logs train") == ["train-1", "train-2"]
        assert await words(url, "gpuyard cancel train") == ["train-1"]
        assert await words(url, "gpuyard cordon n") == ["n1", "n2"]
        assert await words(url, "gpuyard run --node n") == ["n1", "n2"]
        assert await words(url, "gpuyard tenant ") == ["team-a"]
        assert await words(None, f"gpuyard --url {url} drain n1") == ["n1"]


async def test_it_is_silent_and_quick_where_nobody_answers(nats_server: NatsServer) -> None:
    assert await words("nats://127.0.0.1:1", "gpuyard job ") == []
    began = time.monotonic()
    async with FakeYard(nats_server.url, leads=False):
        assert await words(nats_server.url, "gpuyard node ") == []
    assert time.monotonic() - began < 5
    assert await words("http://no", "gpuyard job ") == []
    assert await words(None, "gpuyard no-such-command x") == []
    assert await words(None, "gpuyard run --no-such x ") == []


async def test_contexts_come_from_the_files(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[contexts.lab]\n[contexts.home]\n")
    env = {"GPUYARD_CONFIG": str(path)}
    assert await words(None, "gpuyard config use-context ", **env) == ["home", "lab"]
    path.write_text("rubbish")
    assert await words(None, "gpuyard --context ", **env) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(
    shell: str, alone: None, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = end_of(capfd, "completion", shell)
    assert ended.code == 0
    assert f"_GPUYARD_COMPLETE={shell}_complete" in ended.out
    if program := shutil.which(shell):
        done = subprocess.run(
            [program, "-n"], input=ended.out, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_completing_a_command_loads_nothing_heavy() -> None:
    code = (
        "import os\n"
        "os.environ.update(_GPUYARD_COMPLETE='bash_complete', COMP_WORDS='gpuyard jo', "
        "COMP_CWORD='1')\n"
        "from gpuyard.cli.app import cli\n"
        "try: cli.main([])\n"
        "except SystemExit: pass"
    )
    assert not modules_after(code) & HEAVY
