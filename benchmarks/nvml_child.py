"""The agent's NVML child process at work, for hosts whose agent has none: simulated nodes are read
inside the agent, real ones by this child."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks import machine
from gpuyard_agent.gpus.fleet import default_fleet
from gpuyard_agent.gpus.prober import Prober
from gpuyard_agent.gpus.processes import OwnProcesses

EVERY_S: Final = 2.0


@contextmanager
def nvml_child() -> Iterator[int]:
    """Inside, a child reads 8 simulated GPUs every 2 s, as it does for an agent; gives its pid."""
    before = set(machine.family(os.getpid()))
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_sample(ready, done)), daemon=True)
    thread.start()
    try:
        if not ready.wait(20):
            raise RuntimeError("the NVML child does not answer")
        (child,) = set(machine.family(os.getpid())) - before
        yield child
    finally:
        done.set()
        thread.join()


async def _sample(ready: threading.Event, done: threading.Event) -> None:
    prober = Prober(simulated=default_fleet(1)[0].definition())
    try:
        while not done.is_set():
            await prober.sample(OwnProcesses())
            if prober.age_s is not None:
                ready.set()
            await asyncio.sleep(EVERY_S if ready.is_set() else 0.1)
    finally:
        await prober.close()
