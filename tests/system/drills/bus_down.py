"""The bus is killed and comes back later; meanwhile containers run, end and fail, and jobs queue.

What must hold whatever the length: containers run on, their ends and their output are told
afterwards as they were, no attempt is doubled, and a submission that clients repeat until it is
taken makes one job.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuyard import Client
from gpuyard.errors import Unavailable
from tests.support.busybox import BUSYBOX
from tests.support.engine import Engine
from tests.support.running_yard import RunningYard, eventually

COUNT = "i=0; until [ -e /go ]; do echo $i; i=$((i+1)); sleep 0.25; done; exit 9"


@dataclass(slots=True)
class Figures:
    down_s: float
    first_result_s: float
    """From the start of the bus until the end of a container meanwhile was known."""
    queued_done_s: float
    """From there until what was queued meanwhile had run."""
    tries: int
    """Of the submission, by two clients."""
    lines: int
    """Of output, without a gap."""


def bus_down(yard: RunningYard, engine: Engine, seconds: float) -> Figures:
    """The drill; `yard` has no agent yet, and `engine` has the busybox image."""
    yard.agent(runtime="docker", docker_host=engine.url, simulate="1")
    client = yard.ready()
    client.submit(_job("runs", COUNT))
    client.submit(_job("ends", f"sleep {seconds / 2}; exit 5"))
    once = f"[ $GPUYARD_ATTEMPT -gt 1 ] && exit 0; sleep {seconds / 2}; exit 3"
    client.submit(_job("fails", once, retries={"max": 1, "when": ["exit:3"], "backoff": "1s"}))
    eventually(lambda: all(client.job(id).started_at for id in ("runs", "ends", "fails")))
    label = f"gpuyard.yard={client.version()['yard']}"
    running = _containers(engine, label)
    assert len(running) == 3

    submitters = [yard.client(), yard.client()]
    yard.server.kill()
    began = time.monotonic()
    with _insisting(submitters) as tries:
        time.sleep(seconds)
        (still,) = _containers(engine, label)  # the two others have ended
        assert still in running
        down_s = time.monotonic() - began
        back_at = datetime.now(UTC)
        yard.server.start()
        began = time.monotonic()
        ended = client.wait("ends", timeout_s=60)
        first_result_s = time.monotonic() - began
    assert (ended.state, ended.exit_code) == ("failed", 5)
    assert _attempts(client, "ends")[0]["ended_at"] < _text(back_at)
    assert client.wait("queued", timeout_s=60).exit_code == 0
    queued_done_s = time.monotonic() - began

    first, second = _retried(client)
    assert first["exit_code"] == 3
    assert first["ended_at"] < _text(back_at) <= second["started_at"]
    assert client.job("runs").state == "running"
    with engine.api() as api:
        api.exec_start(api.exec_create(still, ["touch", "/go"])["Id"])
    assert client.wait("runs", timeout_s=60).exit_code == 9
    numbers = [line.text for line in client.logs("runs")]
    assert numbers == [str(n) for n in range(len(numbers))] and len(numbers) > seconds
    attempts = {job.id: len(_attempts(client, job.id)) for job in client.jobs(all=True)}
    assert attempts == {"ends": 1, "fails": 2, "queued": 1, "runs": 1}
    return Figures(down_s, first_result_s, queued_done_s, sum(tries), len(numbers))


def _job(id: str, script: str, **fields: object) -> dict[str, object]:
    command = ["sh", "-c", script]
    return {"id": id, "image": BUSYBOX, "command": command, "network": "none", **fields}


@contextmanager
def _insisting(clients: list[Client]) -> Iterator[list[int]]:
    """All submit one job under one id, again and again until it is taken; the tries of each."""
    tries = [0] * len(clients)

    def insist(number: int, client: Client) -> None:
        while True:
            tries[number] += 1
            try:
                client.submit(_job("queued", "exit 0"))
            except Unavailable:
                time.sleep(0.2)
            else:
                return

    threads = [threading.Thread(target=insist, args=each) for each in enumerate(clients)]
    for thread in threads:
        thread.start()
    yield tries
    for thread in threads:
        thread.join()


def _attempts(client: Client, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.job(id).view["attempts"]
    return found


def _retried(client: Client) -> list[dict[str, Any]]:
    assert client.wait("fails", timeout_s=60).state == "succeeded"
    return _attempts(client, "fails")


def _containers(engine: Engine, label: str) -> list[str]:
    """Which run."""
    with engine.api() as api:
        return [container["Id"] for container in api.containers(filters={"label": label})]


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
