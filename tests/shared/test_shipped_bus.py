"""The server's configuration that is shipped: what nats-server makes of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "systemd" / "examples"


@pytest.mark.parametrize("is_cluster", [False, True])
def test_the_server_takes_it(tmp_path: Path, is_cluster: bool) -> None:
    for file in EXAMPLES.glob("nats-*.conf"):
        shutil.copy(file, tmp_path)
    (tmp_path / "nats-token.conf").write_text('authorization { token: "secret" }\n')
    config = tmp_path / "nats-server.conf"
    text = config.read_text().replace("/var/lib/gpuyard-nats", str(tmp_path / "store"))
    config.write_text(text + ('include "nats-cluster.conf"\n' if is_cluster else ""))

    server = Path(sys.executable).with_name("nats-server")
    done = subprocess.run(
        [server, "-t", "-c", config], capture_output=True, text=True, timeout=20, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "is valid" in done.stderr


def test_it_stores_each_write_before_it_confirms_it() -> None:
    lines = [line.strip() for line in (EXAMPLES / "nats-server.conf").read_text().splitlines()]

    assert "sync_interval: always" in lines
    assert any(line.startswith("max_file_store:") for line in lines)
    assert 'http: "127.0.0.1:8222"' in lines
