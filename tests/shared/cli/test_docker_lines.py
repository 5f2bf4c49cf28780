"""`docker run` lines as READMEs have them: with `gpuyard run` they work, or name what cannot."""

import shlex
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gpuyard.cli.docker_flags import REFUSED
from gpuyard.cli.spec_options import job_options, spec_from_flags
from gpuyard.model.job import JobSpec
from tests.shared.cli.in_process import end_of

ENVIRON = {"HOME": "/home/me", "PWD": "/home/me/work", "HF_TOKEN": "hf_x", "USER": "me"}


@click.command(context_settings={"allow_interspersed_args": False})
@job_options
@click.pass_context
def parse(ctx: click.Context, /, **values: Any) -> None:
    """Keeps the spec for the test."""
    ctx.obj.update(spec_from_flags(values, values["image"], values["command"], ENVIRON))


def words_of(line: str) -> list[str]:
    """What a shell with that environment passes on after `docker run`."""
    line = line.replace("\\\n", " ").replace("$(pwd)", "$PWD")
    for name, value in ENVIRON.items():
        line = line.replace(f"${name}", value)
    words = shlex.split(line)
    assert words[:2] == ["docker", "run"]
    return words[2:]


WORK = r"""
docker run --rm --gpus all nvidia/cuda:12.2.0-base-ubuntu22.04 nvidia-smi

docker run --gpus 1 --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 --rm \
    -v $PWD:/workspace nvcr.io/nvidia/pytorch:24.05-py3 python train.py --epochs 3

docker run --gpus all -v $HOME/.cache/huggingface:/root/.cache/huggingface \
    --env HUGGING_FACE_HUB_TOKEN=$HF_TOKEN -p 8000:8000 \
    vllm/vllm-openai:latest --model mistralai/Mistral-7B-v0.1

docker run --gpus all --shm-size 1g -p 8080:80 -v $PWD/data:/data \
    ghcr.io/huggingface/text-generation-inference:2.0 --model-id HuggingFaceH4/zephyr-7b-beta

docker run -d --gpus=all -v ollama:/root/.ollama -p 11434:11434 --name ollama ollama/ollama

docker run --gpus all -d --name triton -p 8000:8000 -p 8001:8001 -p 8002:8002 \
    -v $(pwd)/models:/models nvcr.io/nvidia/tritonserver:24.05-py3 \
    tritonserver --model-repository=/models

docker run --gpus '"device=0,1"' --rm -e NCCL_DEBUG=INFO \
    pytorch/pytorch:2.3.1-cuda12.1-cudnn8-runtime torchrun --nproc_per_node=2 train.py

docker run --rm --gpus device=0 -u 1000:1000 -w /src -v $PWD:/src:ro \
    tensorflow/tensorflow:2.16.1-gpu python -c 'import tensorflow as tf; print(tf.__version__)'

docker run -t --rm --gpus all -v $PWD:/usr/src/datasets ultralytics/ultralytics:latest yolo train

docker run --rm --network host --gpus 2 -m 64g --cpus 16 -e OMP_NUM_THREADS=8 \
    nvcr.io/nvidia/jax:24.04-py3 python -m train
""".strip().split("\n\n")
REFUSED_LINES = r"""
--ipc
docker run --rm -it --gpus all --ipc=host --ulimit memlock=-1 -v $PWD:/workspace \
    -p 8888:8888 nvcr.io/nvidia/pytorch:24.05-py3

-i
docker run --gpus all -it --rm -v $PWD:/w nvcr.io/nvidia/tensorflow:24.05-tf2-py3

--runtime nvidia
docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all nvidia/cuda:12.2.0-base-ubuntu22.04

--restart
docker run -d --gpus all --restart always -p 11434:11434 ollama/ollama

--privileged
docker run --gpus all --privileged -v /dev:/dev nvcr.io/nvidia/isaac-sim:4.0.0

--cap-add
docker run --gpus all --cap-add=SYS_ADMIN --security-opt seccomp=unconfined nsight:latest nsys

--device
docker run --device=/dev/nvidia0 --device=/dev/nvidiactl nvidia/cuda:12.2.0-base-ubuntu22.04

--mount
docker run --gpus all --mount type=bind,source=$PWD,target=/app pytorch/pytorch:latest

--pid
docker run --pid=host --gpus all -p 9400:9400 nvcr.io/nvidia/k8s/dcgm-exporter:3.3.5

--add-host
docker run -d --add-host=host.docker.internal:host-gateway -v open-webui:/app/backend/data \
    --gpus all ghcr.io/open-webui/open-webui:cuda

--init
docker run --gpus all --init --hostname lab jupyter/pytorch-notebook

NVIDIA_VISIBLE_DEVICES
docker run --rm -e NVIDIA_VISIBLE_DEVICES=0,1 nvidia/cuda:12.2.0-base-ubuntu22.04 nvidia-smi
""".strip().split("\n\n")


@pytest.mark.parametrize("line", WORK)
def test_a_line_works_unchanged(line: str) -> None:
    spec: dict[str, Any] = {}
    outcome = CliRunner().invoke(parse, words_of(line), obj=spec)
    assert outcome.exit_code == 0, outcome.output
    job = JobSpec.model_validate(spec)
    asked = job.gpus.requested()
    assert asked["all"] or asked["count"] or asked["ids"]
    assert job.image and "$" not in str(spec)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("case", REFUSED_LINES, ids=lambda case: case.split("\n")[0])
def test_a_line_is_refused_by_the_flags_name(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag, line = case.split("\n", 1)
    ended = end_of(capsys, "run", *words_of(line))
    assert (ended.code, ended.out, ended.err.count("\n")) == (125, "", 1)
    assert flag in ended.err
    assert "; " in ended.err


def test_twenty_lines_are_tried() -> None:
    assert len(WORK) + len(REFUSED_LINES) >= 20


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_every_other_flag_of_docker_is_refused_by_name(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = end_of(capsys, "run", flag, "busybox")
    assert ended.code == 125
    assert f"{flag} cannot be used here; " in ended.err
