"""Lines of the log on the way to the journal of systemd, and elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, structlog
from gpuyard import telemetry
telemetry.configure(level='info', format={format!r})
structlog.get_logger().info("calm")
structlog.get_logger().warning("odd")
try:
    raise OSError("broken")
except OSError:
    logging.getLogger("gpuyard").exception("bad")
"""


def lines(path: Path, *, format: str, journal: bool) -> list[str]:
    """What a process logs into a file, which is the journal where `journal`."""
    with path.open("w") as file:
        found = os.fstat(file.fileno())
        inode = found.st_ino if journal else found.st_ino + 1
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(format=format)],
            stderr=file,
            check=True,
            env={**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{inode}"},
        )
    return path.read_text().splitlines()


def test_the_journal_is_told_how_grave_each_line_is(tmp_path: Path) -> None:
    logged = lines(tmp_path / "log", format="json", journal=True)
    assert [line[:3] for line in logged] == ["<6>", "<4>", "<3>"]
    assert [json.loads(line[3:])["event"] for line in logged] == ["calm", "odd", "bad"]


def test_each_line_of_a_traceback_is_as_grave_as_its_event(tmp_path: Path) -> None:
    logged = lines(tmp_path / "log", format="text", journal=True)
    assert len(logged) > 4 and {line[:3] for line in logged[2:]} == {"<3>"}


def test_a_file_in_the_place_of_the_journal_gets_plain_lines(tmp_path: Path) -> None:
    logged = lines(tmp_path / "log", format="json", journal=False)
    assert [json.loads(line)["level"] for line in logged] == ["info", "warning", "error"]
