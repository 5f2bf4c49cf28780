"""A job's container beside the same container made by hand, and the command line on top.

Each round does three things in turn: the Engine API's own create + start + wait + remove, with the
very payload that the agent's docker runtime sends; a warm SDK `Client.run`; and the whole command
`gpuyard run`. All are timed on this process's clock from the call to its return, and each waits
until the agent has removed the container of the one before. Medians, per network option. Beside
the command's time stands its processor time, user and system: a busy machine adds less to it.
"""

import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import docker

from benchmarks.report import Goal, Result, Unmeasurable, number, table
from benchmarks.yard import Yard, engine_url
from gpuyard.client.sync_client import Client
from gpuyard.messages import WantedEntry
from gpuyard.model.intake import parse_spec
from gpuyard.model.job import spec_digest
from gpuyard_agent.core.launch import LaunchContext, launch_of
from gpuyard_agent.docker_runtime import labels
from gpuyard_agent.docker_runtime.payload import container_payload
from tests.support.busybox import BUSYBOX, busybox_path, import_busybox

ROUNDS: Final = 30
WARM: Final = 3
HELP_ROUNDS: Final = 20
NETWORKS: Final = ("bridge", "none")
RATIO_GOAL: Final = 1.15
COMMAND_GOAL_S: Final = 0.35
HELP_GOAL_S: Final = 0.25
_GONE_S: Final = 30.0
_GPUYARD: Final = (
    shutil.which("gpuyard", path=str(Path(sys.executable).parent)) or shutil.which("gpuyard") or ""
)
Progress = Callable[[str], None]
Times = dict[str, list[float]]


def run(progress: Progress) -> Result:
    url = engine_url()
    api = docker.APIClient(base_url=url, version="auto", timeout=60)
    api.trust_env = False
    with api, tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        _ensure_image(api)
        # Simulated GPUs, so that the node is the same on every host; the job asks for none.
        agent = {
            "GPUYARD_RUNTIME": "docker",
            "GPUYARD_DOCKER_HOST": url,
            "GPUYARD_SIMULATE": "1",
        }
        with Yard(Path(folder), agent=agent) as yard, yard.client() as client:
            times = {
                network: _measure(api, yard, client, network, progress) for network in NETWORKS
            }
            command = _command_times(yard.environment(), progress)
    return _report(times, command, engine=api_version(url))


def api_version(url: str) -> str:
    with docker.APIClient(base_url=url, version="auto") as api:
        return str(api.version()["Version"])


def _ensure_image(api: docker.APIClient) -> None:
    if busybox_path() is None and not api.images(name=BUSYBOX):
        raise Unmeasurable("no static busybox to make an image of: apt-get install busybox-static")
    import_busybox(api)


def _measure(
    api: docker.APIClient, yard: Yard, client: Client, network: str, progress: Progress
) -> Times:
    spec = {"image": BUSYBOX, "command": ["true"], "network": network}
    payload = _payload(spec)
    found: Times = {"engine": [], "sdk": [], "command": [], "command cpu": []}
    for number_ in range(WARM + ROUNDS):
        taken = {
            "engine": _by_hand(api, payload, found),
            "sdk": _by_client(client, spec),
        }
        _wait_until_gone(api, yard)
        taken["command"], taken["command cpu"] = _by_command(yard, network)
        _wait_until_gone(api, yard)
        if number_ >= WARM:
            for name, seconds in taken.items():
                found[name].append(seconds)
        if number_ >= WARM and (number_ + 1 - WARM) % 10 == 0:
            progress(f"network {network}: {number_ + 1 - WARM} of {ROUNDS} rounds")
    return found


def _payload(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the docker runtime would send for this job; its labels are those of no yard."""
    normalised = parse_spec(spec).normalised()
    entry: WantedEntry = {
        "tenant": "default",
        "job": "0123456789abcdef",
        "attempt": 1,
        "user": "bench",
        "name": None,
        "machine_id": "",
        "boot_id": "",
        "generation": 1,
        "gpus": [],
        "spec": normalised,
        "spec_sha256": spec_digest(normalised),
        "stop": None,
    }
    context = LaunchContext(
        yard="byhand", node="bench-node", epoch="1700000000000.1", gpu_injection="none"
    )
    return container_payload(launch_of(entry, context))


def _by_hand(api: docker.APIClient, payload: dict[str, Any], found: Times) -> float:
    name = f"gpuyard-bench-{secrets.token_hex(5)}"
    began = time.perf_counter()
    container = api.create_container_from_config(payload, name)["Id"]
    created = time.perf_counter()
    try:
        api.start(container)
        started = time.perf_counter()
        api.wait(container)
        ended = time.perf_counter()
    finally:
        api.remove_container(container, v=True, force=True)
    removed = time.perf_counter()
    for step, seconds in (
        ("create", created - began),
        ("start", started - created),
        ("wait", ended - started),
        ("remove", removed - ended),
    ):
        found.setdefault(f"engine {step}", []).append(seconds)
    return removed - began


def _by_client(client: Client, spec: Mapping[str, Any]) -> float:
    began = time.perf_counter()
    job = client.run(spec)
    seconds = time.perf_counter() - began
    if not job.is_succeeded:
        raise RuntimeError(f"job {job.id} {job.state}: {job.reason} {job.message}")
    return seconds


def _by_command(yard: Yard, network: str) -> tuple[float, float]:
    """(seconds, processor seconds)."""
    before = _children_cpu_s()
    line = [_GPUYARD, "run", "--network", network, BUSYBOX, "true"]
    seconds = _timed(line, yard.environment())
    return seconds, _children_cpu_s() - before


def _children_cpu_s() -> float:
    """Of children that have ended and were waited for; the yard's own go on all the while."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _timed(command: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said}")
    return seconds


def _wait_until_gone(api: docker.APIClient, yard: Yard) -> None:
    """Returns once no container of the yard's node is left: removal goes on after a job's end."""
    filters = {"label": [f"{labels.NODE}={yard.node}", f"{labels.YARD}"]}
    deadline = time.monotonic() + _GONE_S
    while api.containers(all=True, filters=filters):
        if time.monotonic() > deadline:
            raise RuntimeError("the agent does not remove a container whose job is over")
        time.sleep(0.02)
    time.sleep(0.05)


def _command_times(environment: dict[str, str], progress: Progress) -> Times:
    found: Times = {"gpuyard --help": [], "python -c pass": []}
    for number_ in range(HELP_ROUNDS + 1):
        floor = _timed([sys.executable, "-c", "pass"], environment)
        ours = _timed([_GPUYARD, "--help"], environment)
        if number_:  # the first one writes byte code
            found["python -c pass"].append(floor)
            found["gpuyard --help"].append(ours)
    progress(f"{HELP_ROUNDS} rounds of gpuyard --help")
    return found


def _report(times: dict[str, Times], command: Times, *, engine: str) -> Result:
    result = Result(
        "container", f"a no-op in a container of engine {engine}, {ROUNDS} rounds, medians"
    )
    rows = []
    for network, found in times.items():
        hand, sdk, whole = (median(found[name]) for name in ("engine", "sdk", "command"))
        cpu = median(found["command cpu"])
        rows.append((network, _ms(hand), _ms(sdk), f"{sdk / hand:.3f}", _ms(whole), _ms(cpu)))
        result.figures[network] = {
            "engine_api_ms": round(hand * 1000, 1),
            "client_run_ms": round(sdk * 1000, 1),
            "gpuyard_run_ms": round(whole * 1000, 1),
            "gpuyard_run_cpu_ms": round(cpu * 1000, 1),
            "ratio": round(sdk / hand, 4),
            "command_above_client_s": round(whole - sdk, 4),
        }
        result.goals += [
            Goal(f"{network}: Client.run / Engine API", sdk / hand, RATIO_GOAL, "times"),
            Goal(f"{network}: gpuyard run above Client.run", whole - sdk, COMMAND_GOAL_S, "s"),
        ]
    head = ("network", "Engine API ms (floor)", "Client.run ms", "ratio", "command ms", "cpu ms")
    result.text += table(head, rows)
    result.text += ["", *_steps(times), ""]
    shown, floor = median(command["gpuyard --help"]), median(command["python -c pass"])
    result.text.append(
        f"gpuyard --help {number(shown)} s, floor python -c pass {number(floor)} s, "
        f"ratio {shown / floor:.1f}"
    )
    result.figures["help_s"] = {"ours": round(shown, 4), "floor": round(floor, 4)}
    result.goals.append(Goal("gpuyard --help", shown, HELP_GOAL_S, "s"))
    return result


def _steps(times: dict[str, Times]) -> list[str]:
    steps = ("create", "start", "wait", "remove")
    rows = [
        (network, *(_ms(median(found[f"engine {step}"])) for step in steps))
        for network, found in times.items()
    ]
    return table(("of the Engine API, ms", *steps), rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
