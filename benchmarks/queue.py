"""How long jobs wait with the yard's queue, by the policy that places them.

    python -m benchmarks.queue --traces DIR --lists default,gpuspec33 --seeds 42,43 \
        --policies pfs,fgd --json OUT

`DIR` holds the public lists (`openb_*.csv` or `.csv.gz`), which are not part of this project. Jobs
are drawn from a list with replacement, arrive at random (Poisson) so that `--load` percent of all
GPUs are asked for on the average, and last at random (exponential, one hour on the average); as
many as are there on the average come at once at the start and are not counted. Each has a time
limit, `--limit-factor` times as long as it lasts, rounded up by at most a quarter. Order,
reservations and backfill are the yard's own, from the planner that coordinators run; only the
placer behind it differs, and each knows the list as its mix, while prices follow the fleet's
headroom as in a yard. Everything is in virtual time, on each eighth node of the fleet (`--every`),
since the planner's searches for reservations cost what they do in a yard. Rows: list, policy, seed,
waits in seconds (mean, p95, max), allocation in percent. The exit code is 1 where the mean wait of
`pfs`, over the seeds, is not below that of `fgd` on every list.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison import chosen, options, tell
from benchmarks.report import table
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.shapes import shape_of
from gpuyard_coordinator.simulate.openb import read_machines, read_workload
from gpuyard_coordinator.simulate.play import play
from gpuyard_coordinator.simulate.workload import Workload, at_load, with_limits

POLICIES: Final = {
    "pfs": "ours",
    "fgd": "fgd",
    "bestfit": "best-fit",
    "dotprod": "dot-product",
    "random": "random",
    "spread": "spread",
}
"""As the packing benchmark calls them, and as people do."""
MEAN_RUNTIME_S: Final = 3600.0
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    traces: Path
    lists: list[str]
    seeds: list[int]
    policies: list[str]
    load: float
    limit_factor: float
    jobs: int
    every: int


def measure(run: Run, progress: Progress) -> list[dict[str, Any]]:
    """The rows. Raises BadInput."""
    machines = read_machines(run.traces)[:: run.every]
    rows = []
    for name in run.lists:
        listed = run.traces / f"openb_pod_list_{name}.csv"
        whole = read_workload(listed, machines, with_times=False)
        mix = _known_mix(whole)
        for seed in run.seeds:
            day = _day(whole, run, seed)
            for policy in run.policies:
                outcome = play(day, POLICIES[policy], seed=seed, mix=mix)
                kept = ("wait_mean_s", "wait_p95_s", "wait_max_s", "allocation_percent")
                row = outcome.row()
                rows.append({"list": name, "policy": policy, "seed": seed})
                rows[-1] |= {key: row[key] for key in kept}
                progress(" ".join(f"{key}={value}" for key, value in rows[-1].items()))
    return rows


def _known_mix(workload: Workload) -> Mix:
    """The mix of those who know beforehand what will come."""
    mix = Mix()
    for each in workload.arrivals:
        mix.observe(shape_of(dict(each.spec)))
    return mix


def _day(whole: Workload, run: Run, seed: int) -> Workload:
    """One seed's jobs, and its order of the nodes, which breaks ties."""
    machines = list(whole.machines)
    random.Random(seed).shuffle(machines)
    named = [replace(each, name=f"n{number:05d}") for number, each in enumerate(machines)]
    drawn = at_load(
        replace(whole, machines=named),
        percent=run.load,
        mean_runtime_s=MEAN_RUNTIME_S,
        jobs=run.jobs,
        seed=seed,
    )
    return with_limits(drawn, run.limit_factor)


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Means over the seeds, a line a list, two columns a policy."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    titles = [f"{policy} {what}" for policy in policies for what in ("mean", "p95")]
    lines = [
        (name, *(_mean(rows, name, p, f"wait_{w}_s") for p in policies for w in ("mean", "p95")))
        for name in dict.fromkeys(row["list"] for row in rows)
    ]
    shown = [(line[0], *(f"{value:.1f}" for value in line[1:])) for line in lines]
    return table(("wait, s", *titles), shown)


def verdict(rows: Sequence[dict[str, Any]]) -> tuple[list[str], str]:
    """The lists on which `pfs` does not wait less than `fgd`, and a line that says so."""
    if not {"pfs", "fgd"} <= {row["policy"] for row in rows}:
        return [], "verdict: none, since pfs and fgd were not both measured"
    lists = list(dict.fromkeys(row["list"] for row in rows))
    parts = {}
    for name in lists:
        ours, theirs = (_mean(rows, name, policy, "wait_mean_s") for policy in ("pfs", "fgd"))
        parts[name] = ours / theirs if theirs else 1.0
    missed = [name for name, part in parts.items() if part >= 1]
    told = ", ".join(f"{name} {part:.2f}" for name, part in parts.items())
    if missed:
        return missed, f"verdict: MISSED on {', '.join(missed)}; pfs's mean wait to fgd's: {told}"
    return [], f"verdict: met; pfs's mean wait to fgd's: {told}"


def _mean(rows: Sequence[dict[str, Any]], name: str, policy: str, key: str) -> float:
    values = [row[key] for row in rows if (row["list"], row["policy"]) == (name, policy)]
    return float(sum(values) / len(values))


def main() -> int:
    wanted, file = _arguments()
    return tell("queue", lambda progress: measure(wanted, progress), summary, verdict, file)


def _arguments() -> tuple[Run, Path | None]:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.queue", description="Compares waits on the public traces."
    )
    options(parser, POLICIES)
    parser.add_argument("--load", type=float, default=95.0, metavar="PERCENT")
    parser.add_argument("--limit-factor", type=float, default=1.5, metavar="N")
    parser.add_argument("--jobs", type=int, default=3000, metavar="N", help="that are counted")
    parser.add_argument("--every", type=int, default=8, metavar="N", help="take each Nth node")
    given = parser.parse_args()
    lists, seeds, policies = chosen(parser, given, POLICIES)
    if given.load <= 0 or given.limit_factor < 1 or min(given.jobs, given.every) < 1:
        parser.error("--load must be above 0, --limit-factor, --jobs and --every from 1")
    run = Run(
        given.traces,
        lists,
        seeds,
        policies,
        given.load,
        given.limit_factor,
        given.jobs,
        given.every,
    )
    return run, given.json


if __name__ == "__main__":
    sys.exit(main())
