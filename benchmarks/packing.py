"""How much of a fleet each policy gets to use, by the protocol of FGD, and how fast it decides.

    python -m benchmarks.packing --traces DIR --lists default,cpu050 --seeds 42,43 \
        --policies pfs,fgd,bestfit --json OUT

`DIR` holds the public lists (`openb_*.csv` or `.csv.gz`), which are not part of this project. `pfs`
is the yard's own placer with the yard's own policy; the others go through the same placer with
another formula, but for `random`. The list itself is the mix that `pfs` and `fgd` know. With
`--departures` jobs end too. Rows of the JSON: list, policy, seed, allocation in percent of all GPUs
when so much was asked for (or over the time, with departures), placements a second of processor
time. As one of the benchmarks it measures the planner alone, on a fleet and list of its own.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a file: its folder must not stand in for the standard library
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.packing_protocol import POINTS, Outcome, churn, fill
from benchmarks.packing_trace import (
    BadTrace,
    Machine,
    RandomPlacer,
    made_up_tasks,
    make_nodes,
    read_machines,
    read_tasks,
)
from benchmarks.report import Goal, Result, number, table
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.packing.rivals import RIVALS
from gpuyard_coordinator.core.state import Settings, Shape

POLICIES: Final = ("pfs", *RIVALS, "random")
NODES: Final = 5000
MIXED_GOAL: Final = 15_000
EQUAL_GOAL: Final = 200_000
Progress = Callable[[str], None]


def make_placer(
    policy: str, machines: Sequence[Machine], tasks: Sequence[Shape], seed: int
) -> Packer:
    mix = Mix()
    for task in tasks:
        mix.observe(task)
    if policy == "random":
        placer: Packer = RandomPlacer(Settings(), mix=mix, seed=seed)
    elif policy == "pfs":
        placer = Packer(Settings(), mix=mix)
    else:
        placer = Packer(Settings(), mix=mix, policy=RIVALS[policy])
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
    """The rows. Raises BadTrace."""
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
    key = "allocation_with_departures_percent" if departures else "allocation_130_percent"
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lists = list(dict.fromkeys(row["list"] for row in rows))

    def mean(policy: str, among: Sequence[str]) -> str:
        values = [row[key] for row in rows if row["policy"] == policy and row["list"] in among]
        return f"{sum(values) / len(values):.2f}"

    lines = [(name, *(mean(policy, [name]) for policy in policies)) for name in lists]
    lines.append(("all", *(mean(policy, lists) for policy in policies)))
    return table((key, *policies), lines)


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
    began = time.process_time()
    for shape in stream:
        if placer.place(shape) is not None:
            placed, refused = placed + 1, 0
        elif (refused := refused + 1) == 10:
            break
    return placed / (time.process_time() - began)


def main() -> int:
    wanted, file = _arguments()
    try:
        rows = measure(wanted, lambda text: print(text, file=sys.stderr, flush=True))
    except BadTrace as bad:
        print(f"packing: {bad}", file=sys.stderr)
        return 2
    print("\n".join(summary(rows, departures=wanted.departures)))
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _arguments() -> tuple[Run, Path | None]:
    parser = argparse.ArgumentParser(
        "benchmarks/packing.py", description="Compares policies on the public traces."
    )
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--lists", default="default", metavar="A,B", help="as default,gpushare40")
    parser.add_argument("--seeds", default="42,43", metavar="N,M")
    parser.add_argument("--policies", default="pfs,fgd", metavar="A,B", help=", ".join(POLICIES))
    parser.add_argument("--departures", action="store_true", help="jobs end, too")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the rows there")
    given = parser.parse_args()
    policies = given.policies.split(",")
    for policy in policies:
        if policy not in POLICIES:
            parser.error(f"no policy {policy!r}; there are {', '.join(POLICIES)}")
    try:
        seeds = [int(seed) for seed in given.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {given.seeds!r}: write whole numbers with commas, as 42,43")
    lists = given.lists.split(",")
    return Run(given.traces, lists, seeds, policies, given.departures), given.json


if __name__ == "__main__":
    sys.exit(main())
