"""What an operator does on the machine, as words for the checks."""

import json
import re
import time
from typing import Any, Final

from tests.support.busybox import BUSYBOX
from tests.support.running_yard import eventually
from tests.systemd.machine import ADDRESS, Failed, Machine

UNITS: Final = ("gpuyard-nats", "gpuyard-keeper", "gpuyard-coordinator", "gpuyard-agent")
TOKEN: Final = "token=$(sed -n 's/.*token: \"\\(.*\\)\".*/\\1/p' /etc/gpuyard/nats-token.conf)\n"
"""As the page reads it again."""


class Operator:
    """Whoever has the token and is root on the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def cli(self, line: str) -> str:
        """What `gpuyard` with these words prints."""
        return self.machine.sh(
            f'{TOKEN}export GPUYARD_URL="nats://$token@{ADDRESS}:4222"\ngpuyard {line}'
        )

    def submit(self, id: str, script: str, *flags: str, on_partition: str = "") -> None:
        """Submits a job that runs a shell script."""
        spec: dict[str, Any] = {
            "id": id,
            "image": BUSYBOX,
            "command": ["sh", "-c", script],
            "network": "none",
        }
        if on_partition:
            spec["on_partition"] = {"stop_after": on_partition}
        self.machine.write(f"/root/{id}.json", json.dumps(spec))
        self.cli(f"submit {' '.join(flags)} -f /root/{id}.json")

    def job(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cli(f"job {id} --json"))
        return found

    def await_job(self, id: str, *states: str, within_s: float = 30) -> dict[str, Any]:
        """The job, once it is in one of these states; a bus or leader away is waited for."""

        def look() -> dict[str, Any] | None:
            try:
                job = self.job(id)
            except Failed:
                return None
            return job if job["state"] in states else None

        found = eventually(look, within_s=within_s, what=f"{id} is {' or '.join(states)}")
        assert found is not None
        return found

    def container(self, id: str) -> str:
        """The container of a job, which runs."""
        filters = f"--filter label=gpuyard.job={id} --filter status=running"
        found = self.machine.sh(f"docker ps -q --no-trunc {filters}").split()
        assert len(found) == 1, f"{id} has {len(found)} running containers"
        return found[0]

    def pid(self, unit: str) -> int:
        return int(self.machine.show(unit, "MainPID")[0])

    def signal(self, unit: str, name: str) -> int:
        """Sends a signal to a unit's own process, and gives its pid."""
        pid = self.pid(unit)
        self.machine.sh(f"kill -s {name} {pid}")
        return pid

    def back(self, unit: str, old: int, *, within_s: float = 20) -> float:
        """Seconds until the unit is active with another process than `old`."""
        began = time.monotonic()
        eventually(
            lambda: (
                self.machine.show(unit, "ActiveState")[0] == "active"
                and self.pid(unit) not in (0, old)
            ),
            within_s=within_s,
            what=f"{unit} with another pid than {old}",
        )
        return time.monotonic() - began

    def timed(self, script: str) -> float:
        """Seconds that a script takes."""
        began = time.monotonic()
        self.machine.sh(script)
        return time.monotonic() - began

    def status(self, unit: str, part: str, *, within_s: float = 15) -> str:
        """The line of status of a unit, once `part` is in it."""

        def look() -> str:
            (text,) = self.machine.show(unit, "StatusText")
            return text if part in text else ""

        return eventually(look, within_s=within_s, what=f"{unit} says '{part}'")

    def set(self, file: str, key: str, value: str) -> None:
        """Sets a key of a settings file in /etc/gpuyard, above its tables."""
        path = f"/etc/gpuyard/{file}"
        text = self.machine.sh(f"cat {path}")
        kept = re.sub(rf"^{key} = .*\n", "", text, flags=re.MULTILINE)
        # Into the file that is there, which keeps its owner and mode.
        self.machine.write(path, f"{key} = {value}\n{kept}")

    def drop_in(self, unit: str, *lines: str) -> None:
        """Settings of `[Service]` over a unit's own; without lines they are taken back."""
        folder = f"/etc/systemd/system/{unit}.service.d"
        if lines:
            self.machine.write(f"{folder}/check.conf", "\n".join(["[Service]", *lines]))
        else:
            self.machine.sh(f"rm -r {folder}")
        self.machine.sh("systemctl daemon-reload")
