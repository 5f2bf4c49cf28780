"""Jobs from files: YAML 1.2 as it is meant, JSON, stdin, and everything that blows up."""

import io
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.ending import UsageFault
from gpuyard.cli.spec_files import read_specs
from gpuyard.small_files import MAX_BYTES


def write(folder: Path, text: str | bytes, name: str = "job.yaml") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("image: a\ngpus: 2\n", [{"image": "a", "gpus": 2}]),
        # The traps of YAML 1.1: here they are what they look like.
        ("image: a\nname: on\n", [{"image": "a", "name": "on"}]),
        ("on: yes\n", [{"on": "yes"}]),
        ("ports: [1000:10, 22:22]\n", [{"ports": ["1000:10", "22:22"]}]),
        ("max_runtime: 1:30:00\n", [{"max_runtime": "1:30:00"}]),
        ("name: 0o17\n", [{"name": 15}]),
        ("name: 017\n", [{"name": 17}]),
        ("image: a\n---\nimage: b\n---\n", [{"image": "a"}, {"image": "b"}]),
        ("{image: a, gpus: 1}", [{"image": "a", "gpus": 1}]),
        ('{"image": "a", "gpus": 1}', [{"image": "a", "gpus": 1}]),
        ("a: &x {k: v}\nb: *x\n", [{"a": {"k": "v"}, "b": {"k": "v"}}]),
    ],
)
def test_a_file_is_what_it_says(text: str, specs: list[Any], tmp_path: Path) -> None:
    assert read_specs(write(tmp_path, text)) == specs


def test_json_by_its_name(tmp_path: Path) -> None:
    assert read_specs(write(tmp_path, '{"image": "a"}', "job.json")) == [{"image": "a"}]


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfimage: a\n")))
    assert read_specs("-") == [{"image": "a"}]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(f'*{chr(97 + i)}' for _ in range(10))}]\n"
    for i in range(9)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "there is no job in it"),
        ("---\n", "there is no job in it"),
        ("- a\n- b\n", "a job is a map"),
        ("just text", "a job is a map"),
        ("a: 1\na: 2\n", 'found duplicate key "a"'),
        ('{"a": 1, "a": 2}', "stands twice"),
        ("a: [1, 2\n", "line 2"),
        ("a: \t- b\n", "line"),
        ("a: !!python/object:os.system x\n", "could not determine a constructor"),
        ("when: 2026-01-01\n", "when is a date; put it in quotes"),
        ("when: 2026-01-01T10:00:00Z\n", "when is a date with a time; put it"),
        ("s: !!set {a, b}\n", "s is a set; put it in quotes"),
        ("d: !!binary aGk=\n", "d is binary data; put it in quotes"),
        ("1: x\n", "the key 1 in the job is no text"),
        ("env: {8080: x}\n", "the key 8080 in env is no text"),
        ("a: *nowhere\n", "found undefined alias"),
        ("a: " + "[" * 40 + "]" * 40 + "\n", "nested more than 32 deep"),
        ("a: &x 1\nb: [" + ",".join(["*x"] * 101) + "]\n", "more than 100 aliases"),
        (BOMB, "its aliases refer to themselves"),
        ("a: &x [*x]\n", "its aliases refer to themselves"),
        (b"image: \xff\xfe\n", "it is not UTF-8 (byte 7)"),
        (b"image: a" + b" " * MAX_BYTES, "it has more than 1048576 bytes"),
    ],
)
def test_what_blows_up_is_refused_in_one_line(text: str | bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageFault) as caught:
        read_specs(write(tmp_path, text))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="no such file"):
        read_specs(str(tmp_path / "no.yaml"))
    with pytest.raises(UsageFault, match="is a directory"):
        read_specs(str(tmp_path))


def test_rubbish_named_json_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="it is not JSON"):
        read_specs(write(tmp_path, "image: a", "job.json"))
