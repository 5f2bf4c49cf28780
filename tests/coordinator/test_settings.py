"""Where a coordinator's settings come from, and what is said of one that cannot be used."""

from pathlib import Path
from typing import Any

import pytest

from gpuyard_coordinator.settings import CoordinatorSettings, SettingsError, load


def test_a_flag_goes_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text('url = "nats://file"\nca = "file"\ndir = "file"\nbeat_s = 5\n')

    found = load(
        file=file,
        environment={"GPUYARD_URL": "nats://environment", "GPUYARD_CA": "environment"},
        flags={"url": "nats://flag", "log_level": None},
    )

    assert found == CoordinatorSettings(
        url="nats://flag", ca="environment", dir="file", beat_s=5.0, log_level="info"
    )


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("beats = 2", "unknown key beats (did you mean beat_s?)"),
        ('beat_s = "2"', "beat_s must be a number from 0, not '2'"),
        ("beat_s = -1", "beat_s must be a number from 0, not -1"),
        ("insecure = 1", "insecure must be true or false, not 1"),
        ("dir = 7", "dir must be a text, not 7"),
        ('log_level = "loud"', "log_level must be one of debug, info, warning, error, not 'loud'"),
        ("log_format = 1", "log_format must be one of json, text, not 1"),
    ],
)
def test_a_setting_of_no_use_is_named_with_its_file(tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text(line)

    with pytest.raises(SettingsError) as fault:
        load(file=file, environment={}, flags={})

    assert str(fault.value) == f"{file}: {text}"


@pytest.mark.parametrize(
    ("environment", "flags", "origin"),
    [
        ({"GPUYARD_LOG_LEVEL": "loud"}, {}, "GPUYARD_LOG_LEVEL"),
        ({}, {"log_level": "loud"}, "command line"),
    ],
)
def test_and_with_its_variable_or_the_command_line(
    tmp_path: Path, environment: dict[str, str], flags: dict[str, Any], origin: str
) -> None:
    file = tmp_path / "coordinator.toml"
    file.touch()

    with pytest.raises(SettingsError, match=f"^{origin}: log_level must be one of"):
        load(file=file, environment=environment, flags=flags)
