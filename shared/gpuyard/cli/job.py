"""`gpuyard job ID`: everything about one job."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.completing import job_ids
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.jobs import array_text, gpus_text, state_text, user_text, why_text
from gpuyard.cli.progress import pulled
from gpuyard.cli.render import (
    View,
    age,
    json_object,
    local_time,
    local_times,
    mib,
    parse_time,
    plain,
    span,
)
from gpuyard.cli.streams import write
from gpuyard.model.quantities import counted

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.client.jobs import Job


@click.command()
@click.argument("id", metavar="ID", shell_complete=job_ids)
@global_options
def job(id: str) -> None:
    """Show one job: what it asked for, its attempts, and what happened to it.

    ID is an id, the first characters of one (at least 4), or the name of an unfinished job.
    Times are those of this machine's zone; --json has UTC.

    \b
      gpuyard job 7k3m
      gpuyard job --json train | jq .attempts
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> "Job":
        return await client.job(id)

    view = with_yard(settings, work).view
    if settings.json:
        write(json_object(view))
    elif settings.quiet:
        write(f"{view['id']}\n")
    else:
        write("\n".join(detail(view)) + "\n")


def detail(view: View) -> Iterator[str]:
    """The lines that a person reads."""
    yield from fields(_facts(view))
    attempts = view.get("attempts") or []
    if attempts:
        yield ""
        yield "Attempts"
        for attempt in attempts:
            yield f"  {attempt_text(attempt)}"
            for member in attempt.get("members") or ():
                yield f"     {member_text(member)}"
    events = view.get("events") or []
    if events:
        yield ""
        yield "Events"
        start = parse_time(events[0]["at"])
        for event in events:
            at = parse_time(event["at"])
            after = f"+{span((at - start).total_seconds())}" if at and start else ""
            yield f"  {local_time(event['at'])}  {after:>6}  {event_text(event)}"


def fields(pairs: list[tuple[str, str]]) -> Iterator[str]:
    """`Name  value` lines with the values in one column; what is unknown is left out."""
    shown = [(name, text) for name, text in pairs if text]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        yield f"{name.ljust(width)}  {plain(text)}"


def _array(view: View) -> str:
    array = view.get("array")
    if not array:
        return ""
    at_once = f", at most {array['at_once']} at once" if array["at_once"] else ""
    return f"{counted(array['tasks'], 'tasks')}{at_once}: {array_text(view)}"


def _after(view: View) -> str:
    asked = (view.get("spec") or {}).get("after") or []
    return ", ".join(f"{item['job']} {item['when']}" for item in asked)


def _own_time(view: View, name: str) -> str:
    text = (view.get("spec") or {}).get(name)
    return local_time(text) if text else ""


def _facts(view: View) -> list[tuple[str, str]]:
    return [
        ("Job", view["id"]),
        ("Name", view["name"] or ""),
        ("Tenant", view["tenant"]),
        ("User", _user(view)),
        ("State", state_text(view)),
        ("Why", why_text(view)),
        ("Exit code", "" if view["exit_code"] is None else str(view["exit_code"])),
        ("Image", view["image"] or ""),
        ("Digest", view["image_digest"] or ""),
        ("Command", _command(view["command"])),
        ("Asked for", _asked(view)),
        ("Node", _node(view)),
        ("GPUs", _gpus(view)),
        ("Isolation", "none: a plain process" if view.get("isolation") == "none" else ""),
        ("Priority", "" if view["priority"] is None else str(view["priority"])),
        ("Array", _array(view)),
        ("After", _after(view)),
        ("Not before", _own_time(view, "not_before")),
        ("Deadline", _own_time(view, "deadline")),
        ("Time limit", span(view["max_runtime_s"]) if view["max_runtime_s"] else ""),
        ("Cut off", _cut_off(view)),
        ("Labels", ", ".join(f"{k}={v}" for k, v in view["labels"].items())),
        ("Position", "" if view["queue_position"] is None else f"{view['queue_position']} in line"),
        ("Starts", _at_the_latest(view.get("expected_start_at"))),
        ("Submitted", _time(view["submitted_at"])),
        ("Started", _time(view["started_at"])),
        ("Ended", _time(view["ended_at"])),
    ]


def _user(view: View) -> str:
    name = user_text(view)
    return name if view["user_verified"] or name == "-" else f"{name} (not verified)"


def _at_the_latest(text: str | None) -> str:
    return f"{local_time(text)} at the latest" if text else ""


def _time(text: str | None) -> str:
    return f"{local_time(text)} ({age(text)} ago)" if text else ""


def _command(words: list[str] | None) -> str:
    from shlex import join

    return join(words) if words else ""


def _asked(view: View) -> str:
    spec = view.get("spec") or {}
    parts = [_asked_gpus(view)]
    if spec.get("cpus") is not None:
        parts.append(counted(spec["cpus"], "CPUs"))
    if spec.get("memory_mib") is not None:
        parts.append(f"{mib(spec['memory_mib'])} of memory")
    nodes = spec.get("nodes") or 1
    return ", ".join(parts) + (f" on each of {nodes} nodes" if nodes > 1 else "")


def _asked_gpus(view: View) -> str:
    asked, text = view["gpus_requested"], gpus_text(view)
    if text == "-":
        return "no GPU"
    if asked["memory_mib"] is not None or asked["core_percent"] is not None:
        return f"{text} of a GPU"
    if asked["mig"]:
        return f"{counted(asked['count'] or len(asked['ids']), 'MIG instances')} ({asked['mig']})"
    return "all GPUs" if asked["all"] else counted(int(text), "GPUs")


def _node(view: View) -> str:
    if not view["node"]:
        return ""
    state, nodes = view["node_state"], ", ".join(view.get("nodes") or [view["node"]])
    return f"{nodes} ({state})" if state not in (None, "ready") else nodes


def _cut_off(view: View) -> str:
    """What becomes of it while its node does not hear the yard."""
    from gpuyard.model.quantities import parse_duration_s

    rule = (view.get("spec") or {}).get("on_partition")
    if not isinstance(rule, dict):
        return ""
    attempts = view.get("attempts") or []
    is_fenced = bool(attempts and attempts[-1].get("fenced"))
    last = "" if is_fenced or not view["node"] else " (its node does not hold the fence)"
    return f"ends after {span(parse_duration_s(rule['stop_after']))}{last}"


def _gpus(view: View) -> str:
    """What it holds; of a gang only how many, since its members name them."""
    if len(view.get("nodes") or ()) > 1:
        return f"{len(view['gpus'])} in all" if view["gpus"] else ""
    return ", ".join(_held(gpu) for gpu in view["gpus"])


def _held(gpu: View) -> str:
    index = "" if gpu["index"] is None else f"{gpu['index']} "
    part = "" if gpu["milli"] == 1000 else f" {gpu['milli'] / 10:g}%"
    return f"{index}{gpu['uuid']}{part} ({gpu['enforced']})"


def attempt_text(attempt: View) -> str:
    """One attempt in one line: where, how long, how it ended, what it used."""
    others = len(attempt.get("members") or ()) - 1
    where = attempt["node"] + (f" +{others}" if others > 0 else "")
    return _told([f"{attempt['attempt']}  {where}"], attempt)


def member_text(member: View) -> str:
    """The same of one member of a gang."""
    return _told([f"rank {member['rank']}  {member['node']}"], member)


def _told(parts: list[str], attempt: View) -> str:
    if attempt["ended_at"]:
        code = f" {attempt['exit_code']}" if attempt["exit_code"] is not None else ""
        parts.append(f"{attempt['reason'] or 'ended'}{code}")
    else:
        parts.append("running" if attempt["started_at"] else "not started")
    start, end = parse_time(attempt["started_at"]), parse_time(attempt["ended_at"])
    if start and end:
        parts.append(f"after {span((end - start).total_seconds())}")
    if attempt.get("message"):
        parts.append(str(attempt["message"]))
    if attempt.get("next_allowed_because"):
        parts.append(f"next allowed: {attempt['next_allowed_because']}")
    usage: dict[str, Any] | None = attempt["usage"]
    if usage and usage.get("gpu_seconds"):
        parts.append(counted(round(usage["gpu_seconds"]), "GPU-seconds"))
    return plain("  ".join(parts))


def event_text(event: View) -> str:
    """One event in a few words."""
    parts = [f"{event['kind']:<10}"]
    if event["node"]:
        parts.append(f"on {event['node']}")
    if event["reason"]:
        parts.append(f"[{event['reason']}]")
    message, actor = local_times(event["message"] or ""), event["actor"]
    if event["kind"] == "pulling":
        message = message or pulled(event["data"])
    if actor and not message.endswith(f"by {actor}"):
        parts.append(f"by {actor}:" if message else f"by {actor}")
    parts.append(message)
    return plain(" ".join(parts).rstrip())
