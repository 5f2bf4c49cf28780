"""The coordinator's start: what its extra brings, and how long it tries to reach the bus."""

import subprocess
import sys
from typing import Any

import pytest

from gpuyard.errors import Unavailable
from gpuyard_coordinator import __main__ as program
from gpuyard_coordinator.settings import CoordinatorSettings

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


async def test_the_start_tries_each_of_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    async def connect(url: str, *, timeout_s: float = 0, **_: Any) -> None:
        tried.append(timeout_s)
        raise Unavailable("nobody answers")

    monkeypatch.setattr(program, "connect", connect)
    one = "nats://127.0.0.1:4222"
    for url in (one, ",".join([one] * 3)):
        with pytest.raises(Unavailable):
            await program._run(CoordinatorSettings(url=url))

    # 2 s for a connect and 2 s for a greeting that never comes, each.
    assert tried[0] == 5
    assert tried[1] >= 3 * 4
