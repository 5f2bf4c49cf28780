"""`gpuyard status`: the whole yard on one screen."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.globals import current, global_options
from gpuyard.cli.render import View, json_object
from gpuyard.cli.streams import write
from gpuyard.model.quantities import counted

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient


UNKNOWN = "unknown while the bus stores nothing"


@click.command(epilog="Exit code: 0 healthy, 1 not, 3 no yard answers.")
@global_options
def status() -> int:
    """Show the leader, the bus, nodes by state, GPUs by use, and the queue by cause.

    \b
      gpuyard status
      gpuyard status -q || echo "the yard needs somebody"
      gpuyard status --json | jq .gpus.free
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> dict[str, Any]:
        return await client.status()

    view = with_yard(settings, work)
    if settings.json:
        write(json_object(view))
    elif not settings.quiet:
        write("".join(f"{line}\n" for line in lines(view)))
    return 0 if view["healthy"] else 1


def lines(view: View) -> Iterator[str]:
    """What a person reads."""
    from gpuyard.bus import redact
    from gpuyard.cli.job import fields

    gpus = view["gpus"]
    bus = {**view["bus"], "url": redact(str(view["bus"].get("url") or ""))}
    yield from fields(
        [
            ("Yard", f"{view['yard']}, {'healthy' if view['healthy'] else _ill(view)}"),
            ("Leader", _coordinator(view["leader"])),
            *(("Standby", _coordinator(standby)) for standby in view.get("standbys") or ()),
            ("Bus", _pairs(bus)),
            ("Nodes", _nodes(view["nodes"])),
            ("GPUs", _gpus(gpus)),
            ("Queue", _queue(view["queue"])),
            *(("Alarm", alarm) for alarm in view.get("alarms") or ()),
        ]
    )


def _coordinator(values: Mapping[str, Any]) -> str:
    refused = values.get("refused_writes")
    told = {"refused writes": refused} if refused else {}
    return _pairs({key: values[key] for key in values if key != "refused_writes"} | told)


def _ill(view: View) -> str:
    """Why it is not healthy, in short: the lines below and other commands have the rest."""
    nodes = view["nodes"] or {}
    away = sum(nodes.values()) - nodes.get("ready", 0)
    causes = [f"{counted(away, 'nodes')} not ready (gpuyard nodes)"] if away else []
    if alarms := len(view.get("alarms") or ()):
        causes.append(counted(alarms, "alarms"))
    return "NOT healthy" + (f": {', '.join(causes)}" if causes else "")


def _nodes(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return UNKNOWN
    return _counts(counts) or "none; start gpuyard-agent on a host"


def _gpus(gpus: Mapping[str, int] | None) -> str:
    if gpus is None:
        return UNKNOWN
    return f"{gpus['total']}: {_counts({k: gpus[k] for k in gpus if k != 'total'})}"


def _pairs(values: Mapping[str, Any]) -> str:
    """`version 2.12.1, commits 40`; what is unknown is left out."""
    known = {key: value for key, value in values.items() if value not in (None, "")}
    known.pop("token", None)  # for programs; nobody can act on it
    return ", ".join(_pair(key, value) for key, value in known.items())


def _pair(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return key if value else f"not {key}"
    return f"{key} {value}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items())


def _queue(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return UNKNOWN
    waiting = sum(counts.values())
    if not waiting:
        return "empty"
    causes = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return f"{waiting} waiting: {_counts(causes)}"
