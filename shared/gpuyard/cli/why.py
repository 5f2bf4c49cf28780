"""`gpuyard why ID`: why a job waits, and the smallest change that starts it."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard.cli.completing import live_job_ids
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.render import View, json_object, local_time, local_times, plain, terminal_width
from gpuyard.cli.streams import write
from gpuyard.model.quantities import counted

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.views.why import WhyView

_COUNTED: Final = re.compile(r"\d+(/| of )\d+ nodes fit")


@click.command()
@click.argument("id", metavar="ID", shell_complete=live_job_ids)
@click.option("--all", "shows_all", is_flag=True, help="Every node, however many.")
@global_options
def why(id: str, shows_all: bool) -> None:
    """Say why a job waits: the nodes counted by cause, the limit that binds, each node's reasons.

    Below them stand when it starts, as time limits stand, and the smallest changes that would start
    it now.

    \b
      gpuyard why 7k3m
      gpuyard why --all train
      gpuyard why --json 7k3m | jq .verdict.counts
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> "tuple[WhyView, View | None]":
        found = await client.why(id)
        # An array may run and have tasks that wait.
        is_waiting = found["state"] == "queued" or bool(found["verdict"] and found["nodes"])
        job = None if is_waiting or settings.json else (await client.job(id)).view
        return found, job

    found, job = with_yard(settings, work)
    if settings.json:
        write(json_object(found))
    elif job is not None:
        write(f"{plain(not_waiting(job))}\n")
    else:
        room = None if shows_all else terminal_rows()
        width = terminal_width()
        write("".join(f"{plain(line)}\n" for line in text(found, rows=room, width=width)))


def terminal_rows() -> int | None:
    """Rows of the terminal that stdout is; None where it is none, so nothing is left out."""
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or 24
    except OSError:
        return 24


def not_waiting(job: View) -> str:
    """What there is to say of a job that is not queued."""
    from gpuyard.cli.jobs import node_text, state_text, why_text
    from gpuyard.cli.progress import short_id

    name = short_id(job["id"])
    on = f" on {node_text(job)}" if job["node"] else ""
    if job["ended_at"] is None:
        began = job["stop_requested_at" if job["state"] == "stopping" else "started_at"]
        since = f" since {local_time(began)}" if began else ""
        if job["verdict"]:
            return f"job {name} is {state_text(job)}{on}{since}: {why_text(job)}"
        return f"job {name} does not wait: it is {state_text(job)}{on}{since}"
    told = f": {why_text(job)}" if why_text(job) else ""
    return f"job {name} does not wait: it {_ended(job['state'])}{on} at {_at(job)}{told}"


def _ended(state: str) -> str:
    return "was cancelled" if state == "cancelled" else state


def _at(job: View) -> str:
    return local_time(job["ended_at"])


def text(found: Mapping[str, Any], *, rows: int | None, width: int | None) -> Iterator[str]:
    """The lines for a job that waits; with `rows`, nodes beyond a screenful are only counted."""
    verdict = found["verdict"] or {}
    head = list(_head(verdict, found["nodes"]))
    if forecast := found.get("forecast"):
        head.append(local_times(forecast["text"]))
    changes = [f"  {change_text(change)}" for change in found["changes"]]
    tail = ["to start it:", *changes] if changes else []
    nodes = list(_node_lines(found["nodes"]))
    yield from head
    if rows is None:
        yield from nodes
    else:
        # One row is for the shell's next prompt, one for the line that counts the rest.
        taken = sum(_rows(line, width) for line in head + tail) + 2
        yield from _bounded(nodes, max(rows - taken, 3), width)
    yield from tail


def _head(verdict: View, nodes: Sequence[View]) -> Iterator[str]:
    message = local_times(verdict.get("message") or verdict.get("code") or "it waits for its turn")
    is_counted = bool(_COUNTED.match(message))
    if is_counted:
        yield message
    elif nodes:
        yield _counted(verdict.get("counts") or {}, nodes)
    limit = verdict.get("limit")
    if not is_counted:
        yield message
    elif limit:
        yield limit_text(limit)
    if verdict.get("impossible_now") and not re.search("could ever hold|may ever have", message):
        yield "no known node could ever hold it"


def _counted(counts: Mapping[str, int], nodes: Sequence[View]) -> str:
    """The first line, where the yard's own words are about something else than nodes."""
    fitting = sum(1 for node in nodes if node["fits"])
    causes = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    told = ", ".join(f"{number} {code}" for code, number in causes)
    return f"{fitting}/{len(nodes)} nodes fit" + (f": {told}" if told else "")


def limit_text(limit: View) -> str:
    """`quota: gpus of tenant team-a: 4 of 4 used, 1 asked`."""
    used, most, asked = (_number(limit[key]) for key in ("used", "max", "asked"))
    bound = f"at most {most}" if limit["used"] is None else f"{used} of {most} used"
    return f"quota: {limit['name']} of {limit['scope']}: {bound}, {asked} asked"


def _node_lines(nodes: Sequence[View]) -> Iterator[str]:
    """A line a node: those that fit first, then by the causes that most nodes share."""
    common = Counter(reason["code"] for node in nodes for reason in node["reasons"])
    width = max((len(node["name"]) for node in nodes), default=0)

    def rank(reason: View) -> tuple[int, str]:
        return -common[reason["code"]], str(reason["code"])

    def place(node: View) -> tuple[Any, ...]:
        ranks = sorted(map(rank, node["reasons"]))
        return not node["fits"], len(ranks), ranks, node["name"]

    for node in sorted(nodes, key=place):
        reasons = sorted(node["reasons"], key=rank)
        told = ", ".join(map(reason_text, reasons)) or ("fits" if node["fits"] else "-")
        yield f"  {node['name'].ljust(width)}  {told}"


def change_text(change: View) -> str:
    """What to change, in the words that the job was asked for with."""
    if change["kind"] == "all_of":
        return " and ".join(map(change_text, change["changes"]))
    line = str(change.get("line") or "")
    flag = _as_asked(line)
    if change["kind"] == "other_model":
        model = str(change["to"]).removeprefix("gpu-name=")
        return f"ask for --gpu-model {model} instead of {flag}"
    return local_times(change["text"]) if flag == line else f"drop {flag}"


def _as_asked(value: Any) -> Any:
    """`--gpu-model H200` for the line of `where` that this flag stands for; else the value."""
    if not isinstance(value, str) or not value.startswith("gpu-name="):
        return value
    from shlex import quote

    from gpuyard.model.where_flags import from_gpu_model

    globs = value.removeprefix("gpu-name=").split("|")
    model = "|".join(dict.fromkeys(glob.removeprefix("*-").removesuffix("-*") for glob in globs))
    try:
        is_meant = from_gpu_model(model) == value
    except ValueError:
        return value
    return f"--gpu-model {quote(model)}" if is_meant else value


def reason_text(reason: View) -> str:
    """`insufficient_gpus (asked 4, has 2)`, `insufficient_memory (asked 8192 MiB, has 3072 MiB)`;
    what is unknown is left out."""
    if reason.get("asked") is None and isinstance(reason.get("have"), str):
        return str(reason["have"])
    unit = reason.get("unit")
    parts = [
        f"{word} {_measured(reason[key], unit)}"
        for word, key in (("asked", "asked"), ("has", "have"))
        if reason.get(key) is not None
    ]
    return f"{reason['code']} ({', '.join(parts)})" if parts else str(reason["code"])


def _measured(value: Any, unit: str | None) -> str:
    """GPUs are not named: the code does."""
    return _number(_as_asked(value)) if unit in (None, "GPUs") else counted(value, unit)


def _bounded(lines: Sequence[str], room: int, width: int | None) -> Iterator[str]:
    used = 0
    for place, line in enumerate(lines):
        used += _rows(line, width)
        if used > room and place + 1 < len(lines):
            yield f"  … {len(lines) - place} more nodes; --all shows them"
            return
        yield line


def _rows(line: str, width: int | None) -> int:
    return max(1, -(-len(line) // width)) if width else 1


def _number(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
