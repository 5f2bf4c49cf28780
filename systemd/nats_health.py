"""Restarts a nats-server that a full disk has stopped, once the disk has room again.

After a write that found no room nats-server refuses that stream until it is restarted, also when
there is room again. It says so on its monitoring port. This looks once and ends; a timer of systemd
runs it every 30 s. It needs nothing but Python.

Exit codes: 0 healthy, or restarted; 1 the disk has no room yet; 2 usage; 3 the server does not
answer, which is for its own unit to mend.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

WRITE_FAULTS = ("write error", "no space left on device")
"""What the server's health says of a stream that it has given up."""
NEEDED_MIB = 256
NEEDED_SHARE = 0.05
TIMEOUT_S = 5.0


def main() -> int:
    asked = _arguments()
    try:
        fault = read_fault(asked.url)
    except OSError as error:
        print(f"{asked.url} does not answer: {error}", file=sys.stderr)
        return 3
    if fault is None or not any(text in fault.lower() for text in WRITE_FAULTS):
        return 0
    free_mib = _free_mib(asked.store)
    needed_mib = asked.need_mib if asked.need_mib is not None else _needed_mib(asked.store)
    if free_mib < needed_mib:
        print(
            f"nats-server cannot write: {fault}; {asked.store} has {free_mib:.0f} MiB free, "
            f"and {needed_mib:.0f} MiB are needed before a restart",
            file=sys.stderr,
        )
        return 1
    print(f"restarting nats-server, its disk has {free_mib:.0f} MiB free again: {fault}")
    sys.stdout.flush()
    return subprocess.run(shlex.split(asked.restart), check=False).returncode


def read_fault(url: str) -> str | None:
    """What the server says is wrong with it, if anything; raises OSError where it is silent."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/healthz", timeout=TIMEOUT_S):
            return None
    except urllib.error.HTTPError as answer:
        body = answer.read().decode("utf-8", "replace")
    try:
        return str(json.loads(body).get("error") or body)
    except (ValueError, AttributeError):
        return body


def _free_mib(store: Path) -> float:
    volume = os.statvfs(store)
    return volume.f_bavail * volume.f_frsize / 2**20


def _needed_mib(store: Path) -> float:
    """Enough to work for a while: a twentieth of a small volume, 256 MiB of a large one."""
    volume = os.statvfs(store)
    return min(NEEDED_MIB, volume.f_blocks * volume.f_frsize * NEEDED_SHARE / 2**20)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default="http://127.0.0.1:8222", help="its monitoring port")
    parser.add_argument("--store", type=Path, default=Path("/var/lib/gpuyard-nats"))
    parser.add_argument("--need-mib", type=float, default=None, help="free before a restart")
    parser.add_argument("--restart", default="systemctl restart gpuyard-nats.service")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
