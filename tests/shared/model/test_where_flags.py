"""What the flags `--gpu-model`, `--gpu-memory` and `--cuda` stand for, as conditions."""

import pytest

from gpuyard.model.where import holds, parse
from gpuyard.model.where_flags import check_command_line, from_cuda, from_gpu_memory, from_gpu_model


@pytest.mark.parametrize(
    ("name", "found", "passed_over"),
    [
        ("NVIDIA-H100-80GB-HBM3", ["H100", "h100", "A100|H100", "A100 | H100", "H100*"], ["H10"]),
        ("NVIDIA-GH200-480GB", ["GH200"], ["H200", "H100"]),
        (
            "NVIDIA-GeForce-RTX-4090",
            ["RTX 4090", "rtx4090", "4090", "NVIDIA GeForce RTX 4090", "*4090", "geforce"],
            ["RTX 4080", "RTX 409", "090"],
        ),
        ("NVIDIA-GeForce-GTX-1080-Ti", ["GTX 1080 Ti", "gtx1080ti", "1080 Ti", "1080"], ["108"]),
        ("NVIDIA-GeForce-GTX-1080", ["GTX 1080"], ["GTX 1080 Ti"]),
        ("NVIDIA-A100-SXM4-80GB", ["A100", "NVIDIA-A100*", "A100*80GB"], ["A10", "A1000"]),
        ("A100-SXM4-40GB", ["A100"], ["V100"]),
        ("NVIDIA-RTX-A1000", ["A1000", "RTX A1000"], ["A100"]),
        ("NVIDIA-L40S", ["L40S", "L4*"], ["L4", "L40"]),
        ("Tesla-V100-SXM2-16GB", ["V100"], ["100"]),
    ],
)
def test_gpu_models_are_found_by_their_words(
    name: str, found: list[str], passed_over: list[str]
) -> None:
    labels = {"gpu-name": name}
    assert [text for text in found if not holds(parse(from_gpu_model(text)), labels)] == []
    assert [text for text in passed_over if holds(parse(from_gpu_model(text)), labels)] == []


def test_the_line_of_a_gpu_model() -> None:
    assert from_gpu_model("A10") == "gpu-name=A10|A10-*|*-A10|*-A10-*"


@pytest.mark.parametrize("text", ["", " ", "|", "A100|", "A100,H100", "*", "---", "機", "a" * 4096])
def test_no_gpu_model(text: str) -> None:
    with pytest.raises(ValueError, match=r"GPU model|longer than"):
        from_gpu_model(text)


def test_gpu_memory() -> None:
    pairs = """24 >=24, 24G >=24G, 24GB+ >=24GB, >=24 >=24, >24 >24, <=24 <=24, =24 =24,
        24576MiB >=24576MiB, 39.5 >=39.5"""
    for text, end in (pair.split() for pair in pairs.split(",")):
        assert from_gpu_memory(text) == f"gpu-memory{end}"
    assert from_gpu_memory(" >= 24 GiB") == "gpu-memory>=24GiB"


@pytest.mark.parametrize(
    "text", ["", "+", ">=", "big", "-24", "0", "24+GB", ">=24+", "==24", "!=24", "1.2.3", "24|40"]
)
def test_no_gpu_memory(text: str) -> None:
    with pytest.raises(ValueError, match="write 24"):
        from_gpu_memory(text)


def test_cuda() -> None:
    pairs = "12.1 >=12.1, 12 >=12, 12.1+ >=12.1, >=12.1 >=12.1, =12 =12, <13 <13, 12.4.1 >=12.4"
    for text, end in (pair.split() for pair in pairs.split(",")):
        assert from_cuda(text) == f"gpu-cuda-version{end}"


@pytest.mark.parametrize("text", ["", "cuda", "12.x", "-12", "12GB", "12,1", "==12", ">="])
def test_no_cuda(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        from_cuda(text)


def test_a_bare_key_on_the_command_line_is_an_unquoted_condition() -> None:
    with pytest.raises(ValueError, match="quote the line, as 'gpu-memory>=24'") as caught:
        check_command_line("zone")
    assert "'zone=*'" in str(caught.value)
    assert check_command_line("gpu-memory>=24") == parse("gpu-memory>=24")
    assert check_command_line("!zone").op == "lacks"
    with pytest.raises(ValueError, match="not =="):
        check_command_line("zone==a")
