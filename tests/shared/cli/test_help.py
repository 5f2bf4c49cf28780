"""Help: examples for every command, and forty columns."""

import click
import pytest

from gpuyard.cli.app import COMMANDS, cli
from tests.shared.cli.in_process import end_of

pytestmark = pytest.mark.usefixtures("alone")
SUBCOMMANDS = [("config", name) for name in ("path", "use-context", "set")]


@pytest.mark.parametrize("path", [*((name,) for name in COMMANDS), *SUBCOMMANDS], ids=" ".join)
def test_every_command_has_examples(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = end_of(capsys, *path, "--help")
    assert (ended.code, ended.err) == (0, "")
    lines = [line.strip() for line in ended.out.splitlines()]
    assert any(f"gpuyard {' '.join(path)}" in line for line in lines if "Usage" not in line)


def test_no_command_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    asked = end_of(capsys, "--help")
    bare = end_of(capsys)
    assert (bare.code, bare.out, bare.err) == (2, "", asked.out)


@pytest.mark.parametrize("path", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_help_fits_a_narrow_terminal(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = end_of(capsys, *path, "--help").out
    # Examples stay whole, so that they can be copied.
    prose = [line for line in out.splitlines() if "gpuyard" not in line]
    assert max(map(len, prose)) <= 50


def test_the_list_of_commands_is_the_truth() -> None:
    ctx = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(ctx, name)
        assert command is not None
        assert command.name == name
