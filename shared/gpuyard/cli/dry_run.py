"""`submit --dry-run` and `run --dry-run`: what would happen, and nothing done."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuyard.cli.globals import Globals
from gpuyard.cli.render import json_answer, plain, terminal_width
from gpuyard.cli.streams import write
from gpuyard.cli.why import terminal_rows, text


def try_specs(specs: list[dict[str, Any]], settings: Globals) -> int:
    """Asks the yard about each job; 0 where all would be taken, be it to wait."""
    from gpuyard.cli.session import with_yard
    from gpuyard.client.answers import DryRun
    from gpuyard.client.async_client import AsyncClient

    async def work(client: AsyncClient) -> list[DryRun]:
        return [await client.submit(spec, dry_run=True) for spec in specs]

    found = with_yard(settings, work)
    if settings.json:
        write(json_answer(found, is_one=len(found) == 1))
        return 0
    for spec, plan in zip(specs, found, strict=True):
        name = str(spec.get("name") or spec.get("id") or "") if len(specs) > 1 else ""
        write("".join(f"{plain(line)}\n" for line in _lines(plan, name)))
    return 0


def _lines(plan: Mapping[str, Any], name: str) -> Iterator[str]:
    job = f"job {name}" if name else "job"
    if plan["fits"]:
        gpus, nodes = plan["gpus"], plan.get("nodes") or [plan["node"]]
        held = f" with {', '.join(gpus)}" if gpus else ""
        if len(nodes) > 1:
            held = f" with {len(gpus)} GPUs" if gpus else ""
        yield f"{job} would start on {', '.join(nodes)}{held} (dry run)"
    else:
        yield f"{job} would wait (dry run)"
    yield from (f"  {note}" for note in plan["notes"])
    if plan["fits"]:
        return
    yield from text(plan["why"], rows=terminal_rows(), width=terminal_width())
