"""`gpuyard simulate`: the command line of it; the coordinator's package does the work."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from gpuyard.cli.ending import Ended, UsageFault, say
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.render import json_object
from gpuyard.cli.streams import write

GROUP: Final = "gpuyard.commands"
"""The entry points under which daemons' packages offer what their commands do."""
_LARGEST: Final = 1e9


def _seconds(_: click.Context, param: click.Parameter, value: str) -> float:
    from gpuyard.model.quantities import parse_duration_s

    try:
        seconds = float(parse_duration_s(value))
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from None
    if seconds <= 0:
        raise click.BadParameter("it must be above 0")
    return seconds


def _words(_: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.split(",")) if value else ()


@click.command()
@click.argument("source", metavar="SOURCE")
@click.option(
    "--policy",
    "policies",
    callback=_words,
    metavar="A,B",
    help="Of ours, best-fit, fgd, dot-product, random, spread.",
)
@click.option("--fleet", metavar="FILE", help="Play it on these nodes.")
@click.option("--tenants", metavar="FILE", help="Play it with these tenants' limits.")
@click.option(
    "--quota", "quotas", multiple=True, metavar="TENANT=GPUS", help="Another limit of GPUs."
)
@click.option(
    "--speed",
    type=click.FloatRange(0, _LARGEST, min_open=True),
    metavar="N",
    help="Jobs come N times as fast.",
)
@click.option(
    "--load",
    type=click.FloatRange(0, 1000, min_open=True),
    metavar="PERCENT",
    help="Draw jobs at random, so that they ask for so much of all GPUs on the average.",
)
@click.option(
    "--mean-runtime",
    "mean_runtime_s",
    callback=_seconds,
    default="1h",
    metavar="TIME",
    help="With --load: how long they last on the average; 1h.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 5_000_000), metavar="N", help="With --load: how many."
)
@click.option(
    "--limit-factor",
    type=click.FloatRange(1, 1000),
    metavar="N",
    help="Give jobs without a time limit one of N times as long as they last.",
)
@click.option("--seed", type=int, default=0, metavar="N", help="Of what is drawn at random.")
@click.option("--plot", metavar="FILE", help="Draw use and queue over time as SVG.")
@global_options
def simulate(source: str, plot: str | None, **change: Any) -> None:
    """Replay recorded decisions, or play jobs under other policies, limits or nodes.

    SOURCE is a coordinator's record (a file or its folder), a trace (JSON or YAML), a list of tasks
    in the public openb CSV form or a folder of such lists. A record alone is replayed: the exit
    code is 1 where a decision comes out another way. Anything else is played in virtual time.

    \b
      gpuyard simulate /var/lib/gpuyard-coordinator/record
      gpuyard simulate /var/lib/gpuyard-coordinator/record --policy ours,fgd --quota team-a=4
      gpuyard simulate trace.json --policy ours,best-fit,spread --plot use.svg
      gpuyard simulate openb_pod_list_default.csv --load 95 --limit-factor 1.5 --json
    """
    settings = current()

    def progress(text: str) -> None:
        if not settings.quiet:
            say(text)

    code, answer, text = _work()(source, change, _read, progress, plot)
    write(json_object(answer) if settings.json else f"{text}\n")
    if code:
        raise Ended(code)


def _work() -> Callable[..., tuple[int, dict[str, Any], str]]:
    from importlib.metadata import entry_points

    needs = "simulate needs the coordinator's part: pip install 'gpuyard[coordinator]'"
    found = [each for each in entry_points(group=GROUP) if each.name == "simulate"]
    if not found:
        raise UsageFault(needs)
    try:
        work: Callable[..., tuple[int, dict[str, Any], str]] = found[0].load()
    except ModuleNotFoundError as fault:
        raise UsageFault(f"{needs} (there is no {fault.name})") from None
    return work


def _read(path: str) -> Sequence[dict[str, Any]]:
    """A file of documents. Traces are longer than what people write, so JSON is read whole."""
    from pathlib import Path

    from gpuyard.cli.spec_files import read_documents

    if not path.endswith(".json"):
        return read_documents(path, "document", "jobs: […]")
    import json

    try:
        document = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as fault:
        raise UsageFault(f"{path}: it is not JSON: {fault}") from None
    if not isinstance(document, dict):
        raise UsageFault(f"{path}: a map of names to values is needed")
    return [document]
