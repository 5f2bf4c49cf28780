"""What an agent costs its host: 8 simulated GPUs and 8 running containers, for one minute.

Memory is PSS and RSS from smaps_rollup, summed over the agent's own processes: the agent and the
child that reads NVML, which is measured beside the agent where that reads its simulated GPUs by
itself. The largest of ten readings of the minute counts. Processor time is what the scheduler
booked on those processes over the minute, as a part of one core. The floor is a bare Python that
has imported nats-py and sleeps. With an engine the containers are real and hold a GPU each, through
a private engine with the toolkit's test double where one can be started; without one they are
processes, whose own shims are shown apart.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.machine import Memory
from benchmarks.nvml_child import nvml_child
from benchmarks.report import Goal, Result, Unmeasurable, number, table
from benchmarks.yard import Yard, engine_url, wait_for_state
from tests.support import engine as engines
from tests.support.busybox import BUSYBOX, busybox_path, import_busybox

CONTAINERS: Final = 8
SECONDS: Final = 60.0
SETTLE_S: Final = 5.0
READINGS: Final = 10
PSS_GOAL_MIB: Final = 60.0
CPU_GOAL_PERCENT: Final = 1.0
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the containers run; `gpus` of each."""

    text: str
    gpus: int
    agent: dict[str, str]


@dataclass(frozen=True, slots=True)
class Cost:
    memory: Memory
    cpu_percent: float

    def __add__(self, other: "Cost") -> "Cost":
        pss = self.memory.pss_mib + other.memory.pss_mib
        rss = self.memory.rss_mib + other.memory.rss_mib
        return Cost(Memory(pss, rss), self.cpu_percent + other.cpu_percent)


def run(progress: Progress) -> Result:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuyard-bench-")))
        setting = stack.enter_context(_setting())
        progress(setting.text)
        yard = stack.enter_context(Yard(folder, agent={"GPUYARD_SIMULATE": "1"} | setting.agent))
        own = machine.family(yard.agent_pid)
        with yard.client() as client:
            jobs = [client.submit(_spec(setting)).id for _ in range(CONTAINERS)]
            for job in jobs:
                wait_for_state(client, job, "running")
            bare = stack.enter_context(_bare_python())
            # An agent of simulated GPUs reads them by itself; on a real host this child does.
            child = [] if len(own) > 1 else [stack.enter_context(nvml_child())]
            progress(f"{CONTAINERS} containers run; measures for {SECONDS:g} s")
            found = _measure({"agent": own, "child": child, "floor": [bare]})
            others = [pid for pid in machine.family(yard.agent_pid) if pid not in own]
            commands = [machine.command_of(pid) for pid in [*own, *child]]
            shims = machine.memory(others) if others else None
            for job in jobs:
                client.cancel(job)
                client.wait(job, timeout_s=60)
    return _report(setting, found, commands, shims)


def _spec(setting: Setting) -> dict[str, Any]:
    # A GPU's job has no limit of locked memory unless it says so, which an engine without the
    # right to raise limits refuses.
    ulimit = {"name": "memlock", "soft": 65536, "hard": 65536}
    spec = {"image": BUSYBOX, "command": ["sleep", "600"], "gpus": setting.gpus}
    return spec | ({} if setting.agent["GPUYARD_RUNTIME"] == "process" else {"ulimits": [ulimit]})


@contextmanager
def _setting() -> Iterator[Setting]:
    with ExitStack() as stack:
        url, gpus = _engine(stack)
        if url is None:
            text = "no engine to use: the process runtime"
            yield Setting(text, 1, {"GPUYARD_RUNTIME": "process"})
            return
        agent = {"GPUYARD_RUNTIME": "docker", "GPUYARD_DOCKER_HOST": url}
        if gpus:
            agent["GPUYARD_GPU_INJECTION"] = "toolkit"
        yield Setting(f"docker on {url}, {gpus} GPU for each container", gpus, agent)


def _engine(stack: ExitStack) -> tuple[str | None, int]:
    """(address, GPUs that its containers can have); no address where no engine is of use."""
    if busybox_path() is None:
        return None, 1
    try:
        shared = engine_url()
    except Unmeasurable:
        return None, 1
    url, gpus = shared, 0
    if _can_start_private():
        url = stack.enter_context(engines.PrivateEngine(toolkit=True)).url
        gpus = 1
    with engines.Engine(Path(url.removeprefix("unix://"))).api() as api:
        import_busybox(api)
    return url, gpus


def _can_start_private() -> bool:
    import pytest

    try:
        engines.skip_without_private_engines()
    except pytest.skip.Exception:
        return False
    return True


@contextmanager
def _bare_python() -> Iterator[int]:
    """A Python with nats-py imported that waits; its process id."""
    script = "import nats, sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if process.stdout is not None:
            process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def _measure(families: dict[str, list[int]]) -> dict[str, Cost]:
    """Each family's cost over the same minute."""
    time.sleep(SETTLE_S)
    began = time.monotonic()
    before = {name: machine.cpu_s(pids) for name, pids in families.items()}
    readings: dict[str, list[Memory]] = {name: [] for name in families}
    for reading in range(1, READINGS + 1):
        machine.wait_until(began + SECONDS * reading / READINGS)
        for name, pids in families.items():
            readings[name].append(machine.memory(pids))
    seconds = time.monotonic() - began
    return {
        name: Cost(
            max(readings[name], key=lambda memory: memory.pss_mib),
            100 * (machine.cpu_s(pids) - before[name]) / seconds,
        )
        for name, pids in families.items()
    }


def _report(
    setting: Setting, found: dict[str, Cost], commands: Sequence[str], shims: Memory | None
) -> Result:
    agent, child, floor = found["agent"], found["child"], found["floor"]
    cost = agent + child
    result = Result("footprint", f"an agent with 8 simulated GPUs, {setting.text}")
    rows = [
        ("agent", *_cells(agent)),
        ("NVML child, where it is not in the line above", *_cells(child)),
        ("both", *_cells(cost)),
        ("floor: python with nats-py imported", *_cells(floor)),
        ("both / floor", f"{cost.memory.pss_mib / floor.memory.pss_mib:.2f}", "", ""),
    ]
    result.text += table((f"over {SECONDS:g} s", "PSS MiB", "RSS MiB", "% of a core"), rows)
    result.text += [f"own processes: {len(commands)}", *(f"  {text[:90]}" for text in commands)]
    if shims is not None:
        result.text.append(
            f"beside them, for the jobs: PSS {shims.pss_mib:.1f}, RSS {shims.rss_mib:.1f} MiB"
        )
    result.figures = {
        "setting": setting.text,
        "both": _figures(cost),
        "agent": _figures(agent),
        "nvml_child": _figures(child),
        "floor": _figures(floor),
        "processes": len(commands),
    }
    result.goals = [
        Goal("PSS of the agent", cost.memory.pss_mib, PSS_GOAL_MIB, "MiB"),
        Goal("processor time of the agent", cost.cpu_percent, CPU_GOAL_PERCENT, "% of a core"),
    ]
    return result


def _cells(cost: Cost) -> tuple[str, str, str]:
    memory = cost.memory
    return f"{memory.pss_mib:.1f}", f"{memory.rss_mib:.1f}", number(cost.cpu_percent)


def _figures(cost: Cost) -> dict[str, Any]:
    return {
        "pss_mib": round(cost.memory.pss_mib, 2),
        "rss_mib": round(cost.memory.rss_mib, 2),
        "cpu_percent": round(cost.cpu_percent, 3),
    }
