"""Jobs of every kind, made of a seed, and submitters that insist: one id until it is accepted."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard import AsyncClient
from gpuyard.errors import Unavailable, UnknownThing
from tests.system.chaos.history import Accepted, Limits

TENANTS: Final = Limits({"red": 60, "blue": 150})
"""GPUs that each may hold at most; `default` has no limit."""
_NAMES: Final = ("default", "red", "blue")
_REAL_SHARE: Final = 0.08
_CANCELLED_SHARE: Final = 0.02
_SUBMITTERS: Final = 32
_AGAIN_S: Final = 0.5
# It takes a lock on its job and on each of its GPUs, which the kernel gives back when the last of
# its processes is gone: whoever meets one in use runs beside another attempt. dash has the
# descriptors 3 to 9 for them.
_SCRIPT: Final = """
cd {traces} || exit 9
me="$GPUYARD_TENANT $GPUYARD_JOB_ID $GPUYARD_ATTEMPT $GPUYARD_NODE"
say() {{ read -r up _ </proc/uptime; echo "$up $1 $me $2" >>traces; }}
exec 3>"job-$GPUYARD_TENANT-$GPUYARD_JOB_ID.lock"
flock -n 3 || say collision job
n=4
for gpu in $(echo "$GPUYARD_GPU_UUIDS" | tr , ' '); do
  eval "exec $n>gpu-$gpu.lock"
  flock -n $n || say collision "$gpu"
  n=$((n + 1))
done
say start
sleep {duration}
[ "$GPUYARD_ATTEMPT" -gt {failures} ] || exit 75
say end
"""


@dataclass(frozen=True, slots=True)
class Planned:
    tenant: str
    body: dict[str, Any]
    is_cancelled: bool


def jobs(seed: int, count: int, traces: Path, *, longest_s: float = 30.0) -> Iterator[Planned]:
    """That many jobs; the same for the same seed, whatever is done with them."""
    draw = random.Random(f"jobs {seed}")
    for number in range(count):
        retries = draw.choice([0, 0, 2])
        body: dict[str, Any] = {
            "id": f"c{seed}-{number}",
            "image": "none",
            "gpus": draw.choices([0, 1, 2, 4], weights=[1, 6, 3, 1])[0],
            "priority": draw.choice([40, 50, 60]),
            "retries": {"max": retries, "when": ["platform", "hardware", "exit:75"]},
            "stop_grace": 2,
        }
        if retries and draw.random() < 0.5:
            body["on_partition"] = {"stop_after": "20s"}
        # Most are short; some outlast a node's lease, so that what is cut off still runs after it.
        duration = round(draw.uniform(*draw.choices([(0.2, 8.0), (8.0, longest_s)], [4, 1])[0]), 2)
        if draw.random() < _REAL_SHARE:
            failures = draw.choice([0, 1]) if retries else 0
            script = _SCRIPT.format(traces=traces, duration=duration, failures=failures)
            body |= {"where": ["pool=real"], "command": ["sh", "-c", script]}
        else:
            body |= {"where": ["pool=simulated"], "labels": {"sim.duration": f"{duration}s"}}
        yield Planned(draw.choice(_NAMES), body, draw.random() < _CANCELLED_SHARE)


async def limit_tenants(client: AsyncClient) -> None:
    for tenant, gpus in TENANTS.gpus.items():
        await client.apply({"tenant": tenant, "limits": {"gpus": gpus}})


async def submit_all(
    url: str, planned: list[Planned], over_s: float, accepted: Callable[[Accepted], None]
) -> None:
    """Submits all, evenly over that time; returns once every one is accepted.

    A job that a submitter gave up on is one that nobody was promised: there are none here.
    """
    queue: asyncio.Queue[Planned] = asyncio.Queue(maxsize=64)
    async with asyncio.TaskGroup() as group:
        submitters = [
            group.create_task(_submitter(url, queue, accepted)) for _ in range(_SUBMITTERS)
        ]
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number, one in enumerate(planned):
            await asyncio.sleep(began + over_s * number / len(planned) - loop.time())
            await queue.put(one)
        await queue.join()
        for submitter in submitters:
            submitter.cancel()


async def _submitter(
    url: str, queue: "asyncio.Queue[Planned]", accepted: Callable[[Accepted], None]
) -> None:
    clients: dict[str, AsyncClient] = {}
    async with AsyncExitStack() as connections:
        while True:
            one = await queue.get()
            if one.tenant not in clients:
                clients[one.tenant] = await _connected(url, one.tenant)
                connections.push_async_callback(clients[one.tenant].close)
            client = clients[one.tenant]
            await _insist(lambda: client.submit(one.body))  # noqa: B023  # awaited before the next
            accepted(Accepted(boot_s(), one.tenant, one.body["id"]))
            if one.is_cancelled:
                await _insist(lambda: client.cancel(one.body["id"]))  # noqa: B023
            queue.task_done()


async def _connected(url: str, tenant: str) -> AsyncClient:
    client = AsyncClient(url=url, tenant=tenant, user="chaos")
    await _insist(client.connect)
    return client


async def _insist(call: Callable[[], Any]) -> None:
    """Again and again until the yard answers; a refusal is a defect of the run and raises."""
    while True:
        try:
            await call()
        except UnknownThing:
            return  # a cancel of a job that ended long ago
        except Unavailable:
            await asyncio.sleep(_AGAIN_S)
        else:
            return


def boot_s() -> float:
    """Seconds of the boot clock, as /proc/uptime has them in the jobs' traces."""
    return float(Path("/proc/uptime").read_text().split()[0])
