"""Lines as people paste them after `docker run`, and the spec that each means."""

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gpuyard.cli.spec_options import job_options, over_file, spec_from_flags
from gpuyard.model.where_flags import from_gpu_model

ENVIRON = {"HOME": "/home/me", "TOKEN": "secret"}


@click.command(context_settings={"allow_interspersed_args": False})
@job_options
@click.pass_context
def parse(ctx: click.Context, /, **values: Any) -> None:
    """Keeps the spec for the test."""
    ctx.obj.update(spec_from_flags(values, values["image"], values["command"], ENVIRON))


def spec_of(line: str) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    outcome = CliRunner().invoke(parse, shlex.split(line), obj=spec)
    assert outcome.exit_code == 0, outcome.output
    return spec


@pytest.mark.parametrize(
    ("line", "spec"),
    [
        ("busybox", {}),
        ("busybox echo hi", {"command": ["echo", "hi"]}),
        ("busybox sh -c 'echo $X; exit 7'", {"command": ["sh", "-c", "echo $X; exit 7"]}),
        ("busybox ls --gpus all -e X", {"command": ["ls", "--gpus", "all", "-e", "X"]}),
        ("-- busybox --flag", {"command": ["--flag"]}),
        ("busybox -- ls", {"command": ["--", "ls"]}),
        ("--rm --gpus all busybox nvidia-smi", {"gpus": "all", "command": ["nvidia-smi"]}),
        ("--gpus=2 busybox", {"gpus": 2}),
        ("--gpus 0 busybox", {"gpus": 0}),
        ("""--gpus '"device=0,2"' busybox""", {"gpus": '"device=0,2"'}),
        ("--gpus device=GPU-abc busybox", {"gpus": "device=GPU-abc"}),
        ("""--gpus 'all,capabilities=utility' busybox""", {"gpus": "all"}),
        ("""--gpus '"device=0,1","capabilities=compute"' busybox""", {"gpus": "device=0,1"}),
        ("""--gpus '"device=0","capabilities=compute,utility"' busybox""", {"gpus": "device=0"}),
        ("--gpus count=2,driver=nvidia busybox", {"gpus": 2}),
        ("--gpus capabilities=gpu busybox", {"gpus": "all"}),
        ("--gpus 8GiB,50% busybox", {"gpus": "8GiB,50%"}),
        ("-e A=1 --env B=x=y -e EMPTY= busybox", {"env": {"A": "1", "B": "x=y", "EMPTY": ""}}),
        ("-eA=1 -e TOKEN -e NOT_SET busybox", {"env": {"A": "1", "TOKEN": "secret"}}),
        (
            "-v /data:/data:ro -v models:/models busybox",
            {
                "mounts": [
                    {"source": "/data", "target": "/data", "read_only": True},
                    {"source": "models", "target": "/models", "read_only": False},
                ]
            },
        ),
        (
            "--volume /a:/b:rw,z busybox",
            {"mounts": [{"source": "/a", "target": "/b", "read_only": False}]},
        ),
        (
            "--shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 busybox",
            {
                "shm_mib": 1024,
                "ulimits": [
                    {"name": "memlock", "soft": -1, "hard": -1},
                    {"name": "stack", "soft": 67108864, "hard": 67108864},
                ],
            },
        ),
        ("--ulimit nofile=1024:2048 busybox", {"ulimits": [
            {"name": "nofile", "soft": 1024, "hard": 2048}]}),
        ("-m 32g --cpus 1.5 busybox", {"memory_mib": 32768, "cpus": 1.5}),
        ("--memory=512m busybox", {"memory_mib": 512}),
        ("-m 0 busybox", {}),
        ("-w /app -u 1000:1000 busybox", {"workdir": "/app", "run_as": "1000:1000"}),
        ("--user root busybox", {"run_as": "root"}),
        ("--name web -p 8080:80 -p 9000 busybox", {"name": "web", "ports": ["8080:80", "9000"]}),
        ("--net host busybox", {"network": "host"}),
        ("--network=none busybox", {"network": "none"}),
        ("--entrypoint bash busybox -lc ls", {"entrypoint": ["bash"], "command": ["-lc", "ls"]}),
        ("--entrypoint '' busybox", {"entrypoint": []}),
        ("-l a=b --label only busybox", {"labels": {"a": "b", "only": ""}}),
        ("--tmpfs /scratch:size=1g --tmpfs /t busybox", {"tmpfs": {
            "/scratch": "size=1g", "/t": ""}}),
        ("--pull always busybox", {"pull": "always"}),
        ("--stop-timeout 5 busybox", {"stop_grace": 5.0}),
        ("-t busybox", {"tty": True}),
        ("-d busybox", {}),
        ("--time 4:00:00 busybox", {"max_runtime": "4:00:00"}),
        ("--time 90m --retries 2 busybox", {"max_runtime": "90m", "retries": {"max": 2}}),
        ("--node n1 --priority 80 --preemptible busybox", {
            "node": "n1", "priority": 80, "preemptible": True}),
        ("--gpu-model 'RTX 4090' busybox", {"where": [str(from_gpu_model("RTX 4090"))]}),
        ("--gpu-model A10 busybox", {"where": ["gpu-name=A10|A10-*|*-A10|*-A10-*"]}),
        ("--gpu-memory 24GB --gpu-memory 40 busybox", {"where": ["gpu-memory>=40"]}),
        ("--gpu-memory '<=24' busybox", {"where": ["gpu-memory<=24"]}),
        ("--tolerate cordon --tolerate cordon:maintenance busybox", {
            "tolerate": ["cordon", "cordon:maintenance"]}),
        ("--where zone!=b --where 'gpu-name=A100*|H100*' busybox", {
            "where": ["zone!=b", "gpu-name=A100*|H100*"]}),
        ("--dry-run busybox", {}),
        ("--gpu-memory 24 --cuda 12.1 busybox", {
            "where": ["gpu-memory>=24", "gpu-cuda-version>=12.1"]}),
        ("--where 'gpu-memory>=24' --where '!spot' busybox", {
            "where": ["gpu-memory>=24", "!spot"]}),
        ("--prefer zone=a busybox", {"prefer": ["zone=a"]}),
        ("--nodes 2 --array 0-9%2 --hold busybox", {"nodes": 2, "array": "0-9%2", "hold": True}),
        ("--after abcd --after efgh:ended busybox", {"after": [
            {"job": "abcd"}, {"job": "efgh", "when": "ended"}]}),
        ("--enforcement mps --id my-job busybox", {"enforcement": "mps", "id": "my-job"}),
        (
            "--rm busybox python -c 'import torch'",
            {"command": ["python", "-c", "import torch"]},
        ),
    ],
)  # fmt: skip
def test_a_line_is_its_spec(line: str, spec: dict[str, Any]) -> None:
    assert spec_of(line) == {"image": "busybox", **spec}


def test_a_relative_folder_is_taken_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mounts = spec_of("-v ./data:/data -v .:/here -v ../up:/up busybox")["mounts"]
    wanted = [str(tmp_path / "data"), str(tmp_path), str(tmp_path.parent / "up")]
    assert [mount["source"] for mount in mounts] == wanted


def test_an_environment_file_is_dockers(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text('# comment\n\nA=1\nB="quoted"\n  C=x # kept\nTOKEN\nMISSING\n')
    env = spec_of(f"--env-file {path} -e A=2 busybox")["env"]
    assert env == {"A": "2", "B": '"quoted"', "C": "x # kept", "TOKEN": "secret"}


def test_flags_are_laid_over_a_file() -> None:
    base = {"image": "a", "env": {"A": "1", "B": "1"}, "gpus": 1, "where": ["x=1"]}
    flags = {"env": {"B": "2"}, "gpus": 2, "where": ["y=1"]}
    merged = over_file(base, flags)
    assert merged == {"image": "a", "env": {"A": "1", "B": "2"}, "gpus": 2, "where": ["y=1"]}
    assert base["gpus"] == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("-i busybox", "-i cannot be used here"),
        ("-it busybox", "-i cannot be used here"),
        ("--runtime nvidia busybox", "use --gpus all instead"),
        ("--runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0,1 busybox", "use --gpus device=0,1 instead"),
        ("--runtime runc busybox", "--runtime runc cannot be used here"),
        ("-e NVIDIA_VISIBLE_DEVICES=all busybox", "use --gpus all instead"),
        ("-e NVIDIA_VISIBLE_DEVICES=2 busybox", "use --gpus device=2 instead"),
        ("-e NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b busybox", "use --gpus device=GPU-a,GPU-b"),
        ("-e NVIDIA_VISIBLE_DEVICES=void busybox", "leave it out"),
        ("-e =x busybox", "has no name"),
        ("-v /data busybox", "is no mount"),
        ("-v /a:/b:rshared busybox", "option 'rshared' cannot be used here"),
        ("-v a:b:c:d busybox", "is no mount"),
        ("--ulimit memlock busybox", "--ulimit 'memlock' is none"),
        ("--ulimit nofile=many busybox", "--ulimit 'nofile=many' is none"),
        ("-m 8x busybox", "'8x' is not a size"),
        ("--shm-size big busybox", "--shm-size: 'big' is not a size"),
        ("--time soon busybox", "--time: 'soon' is not a duration"),
        ("--tmpfs scratch busybox", "is no absolute path"),
        ("--where gpu-memory busybox", "quote the line"),
        ("--gpu-memory lots busybox", "--gpu-memory: 'lots' is no GPU memory"),
        ("--cuda new busybox", "--cuda: 'new' is no CUDA version"),
        ("--gpus device=0,count=2 busybox", "only one of device=0, 2"),
        ("--gpus all,options=x busybox", "options= cannot be used"),
        ("--env-file /no/such busybox", "--env-file /no/such: no such file"),
        ("-l =v busybox", "has no key"),
        ("--after :x busybox", "names no job"),
        ("--cpus many busybox", "Invalid value for '--cpus'"),
        ("--priority high busybox", "Invalid value for '--priority'"),
        ("--pull often busybox", "Invalid value for '--pull'"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(line: str, told: str) -> None:
    outcome = CliRunner().invoke(parse, shlex.split(line), obj={})
    assert outcome.exit_code == 2
    assert told in outcome.output
