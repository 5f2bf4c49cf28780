"""`gpuyard nodes` and `gpuyard node NAME`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard.cli.completing import node_names
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.job import fields
from gpuyard.cli.progress import short_id
from gpuyard.cli.render import (
    Column,
    View,
    age,
    json_object,
    local_times,
    mib,
    plain,
    table,
    terminal_width,
)
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient


NO_NODES: Final = "no nodes; start gpuyard-agent on a host"


@click.command()
@click.option("--wide", is_flag=True, help="Everything, however wide.")
@click.option("--watch", "is_watching", is_flag=True, help="Go on; show again on every change.")
@global_options
def nodes(wide: bool, is_watching: bool) -> None:
    """List the nodes and who holds their GPUs.

    \b
      gpuyard nodes
      gpuyard nodes --watch
      gpuyard nodes --json | jq '.[].gpus[].foreign'
    """
    from gpuyard.cli.watch import Watched, list_or_watch

    watched = Watched(
        fetch=lambda client: client.nodes(),
        columns=node_columns,
        identity=lambda node: str(node["name"]),
        key="name",
        empty=NO_NODES,
        wide=wide,
        # Beats bring no events, so the list is looked at as often as nodes beat.
        recheck_s=2.0,
        ignored=("last_beat_at",),
    )
    list_or_watch(watched, current(), is_watching=is_watching)


@click.command()
@click.argument("name", metavar="NAME", shell_complete=node_names)
@global_options
def node(name: str) -> None:
    """Show one node: its facts, and each GPU with its jobs and the processes of others.

    \b
      gpuyard node a100-3
      gpuyard node --json a100-3 | jq '.gpus[].health'
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> tuple[dict[str, Any], dict[str, str]]:
        view = await client.node(name)
        if settings.json or settings.quiet:
            return view, {}
        return view, await _users(client, view)

    view, users = with_yard(settings, work)
    if settings.json:
        write(json_object(view))
    elif settings.quiet:
        write(f"{view['name']}\n")
    else:
        write("\n".join(node_detail(view, users)) + "\n")


async def _users(client: "AsyncClient", view: View) -> dict[str, str]:
    """The user of each job on the node, as far as the caller may see them."""
    from gpuyard.errors import GpuyardError

    if not view["jobs"]:
        return {}
    try:
        return {job.id: job.user async for job in client.jobs(node=view["name"])}
    except GpuyardError:
        return {}


def node_columns() -> Sequence[Column]:
    now = datetime.now(UTC)
    return [
        Column("NAME", lambda node: node["name"], least=8),
        Column("STATE", state_text, least=7),
        Column("GPUS", free_of_total, is_right=True),
        Column("MODEL", lambda node: _common(node, "gpu-name"), least=8, drop=2),
        Column("MEMORY", lambda node: _common(node, "gpu-memory"), least=6, drop=3),
        Column("DRIVER", lambda node: node["driver_version"] or "-", least=6, drop=6),
        Column("CUDA", lambda node: node["cuda_version"] or "-", drop=5),
        Column("FOREIGN", foreign_text, least=7, drop=4, is_right=True),
        Column("JOBS", lambda node: str(len(node["jobs"])), drop=1, is_right=True),
        Column("AGE", lambda node: age(node["last_beat_at"], now), drop=7, is_right=True),
        Column("RUNTIME", lambda node: node["runtime"], drop=9, only_wide=True),
        Column("INJECTION", lambda node: node["gpu_injection"], drop=9, only_wide=True),
        Column("WHY", _reasons, least=8, drop=8),
    ]


def state_text(node: View) -> str:
    """The node's state, with the operator's word where there is one."""
    scheduling = node["scheduling"]
    return str(node["state"]) if scheduling == "open" else f"{node['state']},{scheduling}"


def free_of_total(node: View) -> str:
    """Whole GPUs that a job could be granted now, and how many there are; then the same of MIG
    instances, where there are any. A GPU that is split counts as neither."""
    whole = [gpu for gpu in node["gpus"] if gpu["mig"] is None]
    instances = [gpu for gpu in node["gpus"] if is_instance(gpu)]
    parts = [_free_of(whole)] if whole or not instances else []
    parts += [f"{_free_of(instances)} MIG"] if instances else []
    return " + ".join(parts)


def _free_of(gpus: Sequence[View]) -> str:
    return f"{sum(gpu['allocatable_milli'] == 1000 for gpu in gpus)}/{len(gpus)}"


def is_instance(gpu: View) -> bool:
    """True for a MIG instance, False for a GPU, split or not."""
    return gpu["mig"] is not None and gpu["mig"]["parent"] is not None


def is_split(gpu: View) -> bool:
    """True for a GPU in MIG mode: what is on it is on its instances."""
    return gpu["mig"] is not None and gpu["mig"]["parent"] is None


def _common(node: View, label: str) -> str:
    values = Counter(gpu["labels"].get(label) for gpu in node["gpus"] if not is_instance(gpu))
    values.pop(None, None)
    if len(values) > 1:
        return "mixed"
    return str(next(iter(values), None) or "-")


def foreign_text(node: View) -> str:
    """Memory held by processes outside the yard; `-` where that cannot be known."""
    known = [gpu["memory_foreign_mib"] for gpu in node["gpus"] if not is_split(gpu)]
    measured = [number for number in known if number is not None]
    return mib(sum(measured)) if measured else "-"


def _reasons(node: View) -> str:
    codes = ", ".join(dict.fromkeys(reason["code"] for reason in node["reasons"]))
    return codes or ("" if node["gpus"] else "no GPUs")


def _gpus(node: View) -> str:
    """What is to be said of GPUs that are not there; those that are have a table."""
    if node["gpus"]:
        return ""
    driver = node["driver_version"]
    return "none found" if driver else "none found, and no NVIDIA driver"


def node_detail(view: View, users: dict[str, str]) -> Iterator[str]:
    """The lines that a person reads; `users` has the user of a job where known."""
    yield from fields(_facts(view))
    for reason in view["reasons"]:
        gpu = f" (GPU {reason['gpu']})" if reason["gpu"] else ""
        yield plain(f"! {reason['code']}{gpu}: {local_times(reason['message'])}")
    if view["gpus"]:
        yield ""
        yield from table(view["gpus"], gpu_columns(users), width=terminal_width())
    for gpu in filter(lambda gpu: not is_split(gpu), view["gpus"]):
        for process in gpu["foreign"]:
            yield plain(_foreign_line(gpu, process))


def _facts(view: View) -> list[tuple[str, str]]:
    cpus, memory = view["cpus"], view["memory_mib"]
    return [
        ("Node", view["name"]),
        ("State", state_text(view)),
        ("GPUs", _gpus(view)),
        ("Driver", view["driver_version"] or ""),
        ("CUDA", f"up to {view['cuda_version']}" if view["cuda_version"] else ""),
        ("Docker", view["docker_version"] or ""),
        ("Agent", view["agent_version"]),
        ("Runtime", f"{view['runtime']}, GPUs by {view['gpu_injection']}"),
        ("Sharing", "" if view["sharing"] == "none" else view["sharing"]),
        ("CPUs", "" if cpus is None else f"{_number(view['cpus_free'])} of {cpus:g} free"),
        (
            "Memory",
            "" if memory is None else f"{mib(view['memory_free_mib'])} of {mib(memory)} free",
        ),
        ("Last beat", f"{age(view['last_beat_at'])} ago" if view["last_beat_at"] else ""),
        ("Labels", ", ".join(f"{key}={text}" for key, text in view["labels"].items())),
        ("Unknown", ", ".join(view["missing"])),
    ]


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def gpu_columns(users: dict[str, str]) -> Sequence[Column]:
    return [
        Column("GPU", lambda gpu: str(gpu["index"]), least=3, is_right=True),
        Column("MODEL", _model, least=23, drop=3),
        Column("HEALTH", _health, least=7),
        Column("MEMORY", _memory, least=20, drop=2),
        Column("UTIL", lambda gpu: _unit(gpu["utilization_percent"], "%"), drop=5, is_right=True),
        Column("TEMP", lambda gpu: _unit(gpu["temperature_c"], "°C"), drop=6, is_right=True),
        Column("HELD BY", lambda gpu: _holders(gpu, users), least=17),
        # As narrow as a prefix that still names the GPU to --gpus device=.
        Column("UUID", lambda gpu: gpu["uuid"], least=len("GPU-6a195a81…"), drop=4),
    ]


def _model(gpu: View) -> str:
    """Of an instance, below its GPU, its profile."""
    if is_instance(gpu):
        return f"- MIG {gpu['mig']['profile'] or '?'}"
    return f"{gpu['name'] or '-'}{' (split)' if is_split(gpu) else ''}"


def _health(gpu: View) -> str:
    health = gpu["health"]
    text = f"{health['state']} ({health['reason']})" if health["reason"] else str(health["state"])
    if cordoned := gpu.get("cordoned"):
        why = f" ({cordoned['reason']})" if cordoned.get("reason") else ""
        text += f", cordoned{why}"
    return text


def _memory(gpu: View) -> str:
    return f"{mib(gpu['memory_used_mib'])} of {mib(gpu['memory_total_mib'])}"


def _unit(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:g}{unit}"


def _holders(gpu: View, users: dict[str, str]) -> str:
    """The jobs on the GPU with their users, then the processes that are none of ours."""
    held = []
    for grant in gpu["grants"]:
        user = users.get(grant["job"])
        part = "" if grant["milli"] == 1000 else f" {grant['milli'] / 10:g}%"
        held.append(f"{short_id(grant['job'])}{f' ({user})' if user else ''}{part}")
    held += [f"pid {process['pid']}" for process in gpu["foreign"]]
    return ", ".join(held) or "-"


def _foreign_line(gpu: View, process: View) -> str:
    where = f" in container {process['container']}" if process["container"] else ""
    user = f" of {process['user']}" if process["user"] else ""
    return (
        f"GPU {gpu['index']}: pid {process['pid']}{user}{where} holds "
        f"{mib(process['memory_mib'])} outside the yard"
    )
