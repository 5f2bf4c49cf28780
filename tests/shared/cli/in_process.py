"""Command lines that end before any yard is asked, run in this process: many, and quickly."""

from dataclasses import dataclass

import pytest

from gpuyard.cli.app import cli


@dataclass(frozen=True)
class Ended:
    code: object
    out: str
    err: str


def end_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    """How a command ends and what it says; no exception gets out of it."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    told = capsys.readouterr()
    return Ended(caught.value.code, told.out, told.err)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No settings, no yard of a folder, and a bus that nobody answers on."""
    import os

    for name in [name for name in os.environ if name.startswith("GPUYARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GPUYARD_URL", "nats://127.0.0.1:1")
    monkeypatch.chdir(tmp_path_factory.mktemp("folder"))
