"""Conditions that can never hold together."""

import pytest

from gpuyard.model.contradictions import contradiction
from gpuyard.model.where import parse

NEVER = """
gpu-memory>=80 gpu-memory<40
gpu-memory>=80GB gpu-memory<40960MiB
gpu-memory>24 gpu-memory<=24
gpu-memory>=24G gpu-memory<24
gpu-memory=24 gpu-memory>=40
gpu-memory=24 gpu-memory=40
gpu-memory=24|40 gpu-memory=80|141
gpu-memory=24GB gpu-memory=40GB
gpu-cuda-version>=12.10 gpu-cuda-version<12.9 gpu-cuda-version<9
gpu-cuda-version=12.1 gpu-cuda-version>=12.4
gpu-cuda-version=11 gpu-cuda-version>=12
zone=a zone!=a
zone=a zone=b
zone=a|b zone=c|d
zone=a|b zone!=a zone!=b
zone=a zone>=3
zone=a zone=b*
zone=a* zone!=a*
zone=12 zone!=12
zone !zone
!zone zone=a
!zone zone>1
zone zone!=*
gpu-name=A100 gpu-name!=a100
rack=1 zone=a zone!=a
"""
SOMETIMES = """
zone=a
zone=a zone=a
zone=a zone!=b
zone=a|b zone=b|c
zone=a|b zone!=a
zone=a* zone=*b
zone!=a !zone
zone!=* !zone
zone!=a zone!=b
gpu-memory>=24 gpu-memory<=24
gpu-memory>=24 gpu-memory=24GiB
gpu-memory=24 gpu-memory!=24GiB
v=12 v>12
v=12 v=12.4
v=12 v!=12.4
v>12 v<12.1
v=12 v>=12.5G
v=a|1 v=1
zone=a rack!=a
"""


@pytest.mark.parametrize("lines", NEVER.strip().splitlines())
def test_what_can_never_hold(lines: str) -> None:
    text = contradiction(map(parse, lines.split()))
    assert text is not None
    assert text.endswith("can never hold together")
    assert contradiction(map(parse, reversed(lines.split()))) is not None


@pytest.mark.parametrize("lines", SOMETIMES.splitlines())
def test_what_may_hold(lines: str) -> None:
    assert contradiction(map(parse, lines.split())) is None


def test_a_contradiction_names_the_pair() -> None:
    lines = ["zone=a", "gpu-memory>=80", "gpu-memory<=100", "gpu-memory<40"]
    said = contradiction(map(parse, lines))
    assert said == "gpu-memory>=80 and gpu-memory<40 can never hold together"


def test_long_lists_are_left_unsearched() -> None:
    many = "|".join(f"a{i}" for i in range(500))
    assert contradiction([parse(f"k={many}"), parse(f"k!={many}")]) is None
