"""The units as systemd reads them, and what the programs need of them."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[1] / "systemd").glob("*.[st]*[er]"))
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
DAEMONS = [unit for unit in SERVICES if unit.stem in ("gpuyard-agent", "gpuyard-coordinator")]


def service(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser["Service"]


def named(unit: Path) -> str:
    return unit.name


def test_every_unit_is_looked_at() -> None:
    assert len(SERVICES) == 5 and len(UNITS) == 6


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault_in_any_unit(tmp_path: Path) -> None:
    for unit in UNITS:
        # The programs are not installed here, and a missing one is a fault.
        text = re.sub(r"^(Exec\w+=)/opt/\S+", r"\1/bin/sh", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if "gpuyard" in line]
    assert (done.returncode, told) == (0, [])


@pytest.mark.parametrize("unit", DAEMONS, ids=named)
def test_a_daemon_is_watched_and_bad_settings_wait_for_a_person(unit: Path) -> None:
    about = service(unit)
    assert (about["Type"], about["NotifyAccess"]) == ("notify", "main")
    assert int(about["WatchdogSec"]) > 0
    assert (about["Restart"], about["RestartPreventExitStatus"]) == ("always", "2")


def test_jobs_outlive_their_agent() -> None:
    (agent,) = (unit for unit in DAEMONS if unit.stem == "gpuyard-agent")
    about = service(agent)
    assert about["KillMode"] == "process"
    assert "PrivateTmp" not in about, "systemd empties it under the jobs at every restart"
