"""`config`: each value with its origin, and changes that leave the rest of the file alone."""

import json
import os
from pathlib import Path

import pytest

from tests.shared.cli.in_process import end_of

FILE = """\
# ours
context = "lab"   # the usual one

[contexts.lab]
url = "nats://t0ken@lab.example:4222"  # by the door
tenant = "team-a"

[contexts."home"]
url = "nats://127.0.0.1:4222"
"""


@pytest.fixture
def file(alone: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GPUYARD_URL")
    path = Path(os.environ["HOME"]) / ".config" / "gpuyard" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    return path


def test_each_value_comes_with_its_origin(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_USER", "alice")
    shown = end_of(capsys, "--tenant", "team-b", "config")
    rows = [line.split(maxsplit=2) for line in shown.out.splitlines()]
    lab = f"{file} [contexts.lab]"
    assert (shown.code, rows) == (
        0,
        [
            ["KEY", "VALUE", "ORIGIN"],
            ["url", "nats://***@lab.example:4222", lab],
            ["tenant", "team-b", "argument"],
            ["user", "alice", "GPUYARD_USER"],
            ["credentials", "-", "default"],
            ["ca", "-", "default"],
            ["context", "lab", "config.toml"],
        ],
    )
    assert "t0ken" not in shown.out
    as_json = json.loads(end_of(capsys, "config", "--json").out)
    assert as_json["tenant"] == {"value": "team-a", "origin": lab}


def test_the_path_is_told_even_without_a_file(
    alone: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(os.environ["HOME"])
    assert end_of(capsys, "config", "path").out == f"{home}/.config/gpuyard/config.toml\n"
    monkeypatch.setenv("GPUYARD_CONFIG", "/nowhere/config.toml")
    told = json.loads(end_of(capsys, "config", "path", "--json").out)
    assert told == {"v": 1, "path": "/nowhere/config.toml", "exists": False}


def test_a_context_is_chosen(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert end_of(capsys, "config", "use-context", "home").code == 0
    assert file.read_text() == FILE.replace('context = "lab"   # the usual one', 'context = "home"')
    unknown = end_of(capsys, "config", "use-context", "moon")
    assert (unknown.code, "known contexts: home, lab" in unknown.err) == (2, True)


def test_a_value_is_set_in_the_context_in_use(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_of(capsys, "config", "set", "tenant", "team-b").code == 0
    assert file.read_text() == FILE.replace("team-a", "team-b")
    assert end_of(capsys, "config", "set", "tenant", "x", "--context", "home").code == 0
    assert 'tenant = "x"\nurl = "nats://127.0.0.1:4222"' in file.read_text()
    assert end_of(capsys, "config", "set", "url", "nats://new", "--context", "new").code == 0
    assert file.read_text().endswith('\n\n[contexts.new]\nurl = "nats://new"\n')


def test_the_first_value_makes_a_private_file(
    alone: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUYARD_URL")
    assert end_of(capsys, "config", "set", "url", "nats://t0ken@yard:4222").code == 0
    path = Path(end_of(capsys, "config", "path").out.strip())
    assert path.read_text() == '[contexts.default]\nurl = "nats://t0ken@yard:4222"\n'
    assert path.stat().st_mode & 0o777 == 0o600
    assert "nats://***@yard:4222" in end_of(capsys, "config").out


def test_what_cannot_be_edited_safely_is_left(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('contexts = {lab = {url = "nats://x"}}\n')
    refused = end_of(capsys, "config", "set", "tenant", "t", "--context", "lab")
    assert refused.code == 2
    assert "cannot be changed here; edit it" in refused.err
    assert file.read_text() == 'contexts = {lab = {url = "nats://x"}}\n'
    file.write_text("not toml")
    assert "is not TOML" in end_of(capsys, "config", "set", "tenant", "t").err


def test_a_link_stays_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = file.with_name("real.toml")
    file.rename(real)
    file.symlink_to(real)
    assert end_of(capsys, "config", "set", "tenant", "team-c").code == 0
    assert file.is_symlink() and "team-c" in real.read_text()
