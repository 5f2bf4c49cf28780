"""The coordinator without what its extra brings says so in one line."""

import subprocess
import sys

import pytest

START = """
import sys
sys.modules[{missing!r}] = None
sys.argv = ["gpuyard-coordinator"]
from gpuyard_coordinator.__main__ import main
main()
"""


@pytest.mark.parametrize("missing", ["msgspec", "numpy", "structlog"])
def test_a_package_that_is_not_installed_is_named_with_the_extra(missing: str) -> None:
    command = [sys.executable, "-c", START.format(missing=missing)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert missing in line and "pip install 'gpuyard[coordinator]'" in line
