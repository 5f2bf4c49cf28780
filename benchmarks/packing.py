"""How much of a fleet each policy gets to use, by the protocol of FGD, and how fast it decides.

    python -m benchmarks.packing --traces DIR --lists default,cpu050 --seeds 42,43 \
        --policies pfs,fgd,bestfit --json OUT

`DIR` holds the public lists (`openb_*.csv` or `.csv.gz`), which are not part of this project. `pfs`
is the yard's own placer with the yard's own policy; the others go through the same placer with
another formula. The list itself is the mix that `pfs` and `fgd` know; the prices of `pfs` follow
the fleet's headroom, as in a yard. With `--departures` jobs end too. Rows of the JSON: list,
policy, seed, allocation in percent of all GPUs when so much was asked for (or over the time, with
departures), placements a second of processor time, new prices included. The exit code is 1 where
`pfs` is not above `fgd` on every list. As one of the benchmarks it measures the planner alone, on a
fleet and list of its own.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a file: its folder must not stand in for the standard library
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.comparison import chosen, options, tell
from benchmarks.packing_protocol import POINTS, Outcome, churn, fill
from benchmarks.packing_trace import (
    Machine,
    made_up_tasks,
    make_nodes,
    read_machines,
    read_tasks,
)
from benchmarks.report import Goal, Result, number, table
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.packing.rival_placers import RIVALS
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Settings
from gpuyard_coordinator.simulate.policies import AnyPlace

POLICIES: Final = ("pfs", *RIVALS, "random")
NODES: Final = 5000
MIXED_GOAL: Final = 15_000
EQUAL_GOAL: Final = 200_000
ALLOWED_BELOW: Final = 0.05
"""Points that the yard's own policy may be below FGD with departures."""
Progress = Callable[[str], None]


def make_placer(
    policy: str, machines: Sequence[Machine], tasks: Sequence[Shape], seed: int
) -> Packer:
    mix = Mix()
    for task in tasks:
        mix.observe(task)
    if policy == "random":
        placer: Packer = AnyPlace(Settings(), mix, seed=seed)
    else:
        placer = RIVALS.get(policy, Packer)(Settings(), mix)
    for node in make_nodes(machines, seed):
        placer.node_changed(node)
    placer.settle()
    return placer


@dataclass(frozen=True, slots=True)
class Run:
    traces: Path
    lists: list[str]
    seeds: list[int]
    policies: list[str]
    departures: bool


def measure(run: Run, progress: Progress) -> list[dict[str, Any]]:
    """The rows. Raises BadInput."""
    machines = read_machines(run.traces)
    capacity = 1000 * sum(machine.gpus for machine in machines)
    rows = []
    for name in run.lists:
        tasks = read_tasks(run.traces, name)
        for seed in run.seeds:
            for policy in run.policies:
                placer = make_placer(policy, machines, tasks, seed)
                protocol = churn if run.departures else fill
                outcome = protocol(placer, tasks, capacity, seed)
                rows.append(_row(name, policy, seed, outcome, departures=run.departures))
                progress(" ".join(f"{key}={value}" for key, value in rows[-1].items()))
    return rows


def _row(
    name: str, policy: str, seed: int, outcome: Outcome, *, departures: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {"list": name, "policy": policy, "seed": seed}
    if departures:
        row["allocation_with_departures_percent"] = round(outcome.percent[0], 4)
        row["rejected_percent"] = round(
            100 * outcome.rejected / (outcome.rejected + outcome.placed), 3
        )
    else:
        for point in POINTS:
            row[f"allocation_{point}_percent"] = round(outcome.percent[point], 4)
    row["decisions_per_s"] = round(outcome.placed / outcome.seconds)
    return row


def summary(rows: Sequence[dict[str, Any]], *, departures: bool) -> list[str]:
    """Means over the seeds, a line for each list and one for all, a column for each policy."""
    key = _key(departures=departures)
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lists = list(dict.fromkeys(row["list"] for row in rows))

    def mean(policy: str, among: Sequence[str]) -> str:
        values = [row[key] for row in rows if row["policy"] == policy and row["list"] in among]
        return f"{sum(values) / len(values):.2f}"

    lines = [(name, *(mean(policy, [name]) for policy in policies)) for name in lists]
    lines.append(("all", *(mean(policy, lists) for policy in policies)))
    return table((key, *policies), lines)


def verdict(rows: Sequence[dict[str, Any]], *, departures: bool) -> tuple[list[str], str]:
    """The lists on which the yard's own policy misses its goal against FGD, and a line that says
    so: above it on each, or with departures no more than 0.05 points below."""
    key, slack = _key(departures=departures), ALLOWED_BELOW if departures else 0.0
    gains: dict[str, float] = {}
    for name in dict.fromkeys(row["list"] for row in rows):
        means = []
        for policy in ("pfs", "fgd"):
            found = [r[key] for r in rows if (r["list"], r["policy"]) == (name, policy)]
            if not found:
                return [], "verdict: none, since pfs and fgd were not both measured"
            means.append(sum(found) / len(found))
        gains[name] = means[0] - means[1]
    below = [name for name, gain in gains.items() if (gain < -slack if departures else gain <= 0)]
    least, mean = min(gains.values()), sum(gains.values()) / len(gains)
    figures = f"{mean:+.2f} points on the average, {least:+.2f} on the least good list"
    if below:
        return below, f"verdict: MISSED, not above fgd on {', '.join(below)}; {figures}"
    return [], f"verdict: met, pfs against fgd {figures}"


def _key(*, departures: bool) -> str:
    return "allocation_with_departures_percent" if departures else "allocation_130_percent"


def run(progress: Progress) -> Result:
    """The planner alone: a mixed fill, and an array of equal jobs, both on nodes of 8 GPUs."""
    result = Result("packing", f"placements a second by the planner alone, {NODES} nodes")
    machines = [Machine(96_000, 393_216, 8, f"G{n % 3}") for n in range(NODES)]
    tasks = made_up_tasks(8000, seed=1)
    progress("places a mix of jobs until the fleet is full")
    mixed = _rate(make_placer("pfs", machines, tasks, 42), tasks * 6)
    progress("places an array of equal jobs")
    equal = _rate(make_placer("pfs", machines, tasks, 42), [Shape(gpus=1)] * (8 * NODES))
    result.text += table(
        ("", "per second"), [("a mix", number(mixed)), ("equal jobs", number(equal))]
    )
    result.figures = {"mixed_per_s": round(mixed), "equal_per_s": round(equal)}
    result.goals = [
        Goal("time of a placement, a mix", 1e6 / mixed, 1e6 / MIXED_GOAL, "us"),
        Goal("time of a placement, equal jobs", 1e6 / equal, 1e6 / EQUAL_GOAL, "us"),
    ]
    return result


def _rate(placer: Packer, stream: Sequence[Shape]) -> float:
    """Placements a second of processor time, until ten jobs in a row found no place."""
    placed = refused = 0
    # As in the coordinator, whose picture of the yard is no garbage to look for again and again.
    gc.collect()
    gc.freeze()
    began = time.process_time()
    for shape in stream:
        if placer.place(shape) is not None:
            placed, refused = placed + 1, 0
        elif (refused := refused + 1) == 10:
            break
    seconds = time.process_time() - began
    gc.unfreeze()
    return placed / seconds


def main() -> int:
    wanted, file = _arguments()
    departures = wanted.departures
    return tell(
        "packing",
        lambda progress: measure(wanted, progress),
        lambda rows: summary(rows, departures=departures),
        lambda rows: verdict(rows, departures=departures),
        file,
    )


def _arguments() -> tuple[Run, Path | None]:
    parser = argparse.ArgumentParser(
        "benchmarks/packing.py", description="Compares policies on the public traces."
    )
    options(parser, POLICIES)
    parser.add_argument("--departures", action="store_true", help="jobs end, too")
    given = parser.parse_args()
    lists, seeds, policies = chosen(parser, given, POLICIES)
    return Run(given.traces, lists, seeds, policies, given.departures), given.json


if __name__ == "__main__":
    sys.exit(main())
