"""The keeper's file outlives the keeper, and not its boot."""

import json
from pathlib import Path

import pytest

from gpuyard_agent.keeper import store
from gpuyard_agent.keeper.ledger import Fence


def test_fences_are_found_again_in_the_same_boot_alone(tmp_path: Path) -> None:
    store.save(str(tmp_path), "boot-1", {"n/t/j/1": Fence(9.0, 5.0, 1.0)})
    assert store.load(str(tmp_path), "boot-1")["n/t/j/1"].deadline == 9.0
    assert store.load(str(tmp_path), "boot-2") == {}


def test_no_file_is_no_fence(tmp_path: Path) -> None:
    assert store.load(str(tmp_path), "boot-1") == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"v": 2}', '{"v": 1, "boot": "boot-1", "fences": {"a": {}}}']
)
def test_damage_is_told_and_not_taken_for_no_fence(tmp_path: Path, text: str) -> None:
    Path(store.path_in(str(tmp_path))).write_text(text)
    with pytest.raises(store.Damaged):
        store.load(str(tmp_path), "boot-1")


def test_a_refused_write_leaves_the_old_file(tmp_path: Path) -> None:
    store.save(str(tmp_path), "boot-1", {"a": Fence(1.0, 1.0, 0.0)})
    (tmp_path / "fences.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        store.save(str(tmp_path), "boot-1", {})
    assert list(json.loads(Path(store.path_in(str(tmp_path))).read_text())["fences"]) == ["a"]
