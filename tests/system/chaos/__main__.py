"""`python -m tests.system.chaos`: one run, its report, exit code 1 where the checker objects."""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

from tests.support.nats_cluster import NatsCluster
from tests.support.nats_server import NatsServer
from tests.system.chaos.checker import check
from tests.system.chaos.history import History
from tests.system.chaos.mutations import MUTATIONS, mutated
from tests.system.chaos.run import Plan, Run


def main() -> int:
    options = _options()
    # Faults of the bus are the point here, and each is in the daemons' own logs.
    logging.getLogger("gpuyard").setLevel(logging.CRITICAL)
    if options.check:
        return _report(History.read(options.check))
    plan = Plan(options.seed, options.minutes * 60, options.jobs, options.nodes)
    directory = Path(options.dir or tempfile.mkdtemp(prefix="gpuyard-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    source = mutated(options.mutation, directory / "source") if options.mutation else None
    print(
        f"seed {plan.seed}, {options.minutes:g} minutes, {plan.nodes} simulated nodes, "
        f"{plan.jobs} jobs; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"logs in {directory}",
        flush=True,
    )
    history = _run(plan, directory, options.servers, source)
    file = directory / "history.jsonl"
    history.write(file)
    print(f"history in {file}; judge it again with --check")
    return _report(history)


def _run(plan: Plan, directory: Path, size: int, source: Path | None) -> History:
    bus = NatsCluster(directory) if size > 1 else NatsServer(directory / "server-0")
    with bus:
        servers = [bus] if isinstance(bus, NatsServer) else bus.servers
        if isinstance(bus, NatsCluster):
            asyncio.run(bus.ready())
        run = Run(plan, directory, servers, source, say=lambda line: print(line, flush=True))
        return asyncio.run(run())


def _report(history: History) -> int:
    report = check(history)
    print("\n".join(report.lines()))
    return 1 if report.violations else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("tests.system.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--servers", type=int, default=3, choices=(1, 3))
    parser.add_argument("--dir", help="where logs and history go (default: a new folder)")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="plant this defect")
    parser.add_argument("--check", type=Path, metavar="FILE", help="judge a history, run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
