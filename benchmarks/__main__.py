"""`python -m benchmarks [NAME…] [--json FILE]`: measures, prints, and exits 1 for a missed goal."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.report import Result, Unmeasurable

NAMES: Final = (
    "dispatch",
    "container",
    "footprint",
    "wanted_store",
    "reads",
    "restart",
    "recovery",
    "failover",
    "beats",
    "history",
    "packing",
    "throughput",
)
Progress = Callable[[str], None]


def main() -> int:
    names, file = _arguments()
    documents: list[dict[str, Any]] = []
    missed: list[str] = []
    for name in names:
        document, faults = _measure(name)
        documents.append(document)
        missed += faults
    if file is not None:
        report = {"machine": machine.describe(), "benchmarks": documents}
        file.write_text(json.dumps(report, indent=2) + "\n")
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if missed else 0


def _measure(name: str) -> tuple[dict[str, Any], list[str]]:
    """(document, lines about missed goals) of one benchmark."""
    run: Callable[[Progress], Result] = import_module(f"benchmarks.{name}").run
    began, busyness, load = time.monotonic(), machine.Busyness(), os.getloadavg()[0]
    _progress(name, f"starts; load {load:.2f} on {os.cpu_count()} cores")
    try:
        result = run(lambda text: _progress(name, text))
    except Unmeasurable as lack:
        print(f"== {name}: not measured: {lack}\n", flush=True)
        return {"name": name, "not_measured": str(lack)}, []
    seconds, busy = time.monotonic() - began, busyness.percent()
    result.text.append(f"took {seconds:.0f} s, load before {load:.2f}, all cores {busy:.0f} % busy")
    print(f"{result}\n", flush=True)
    document = result.as_dict() | {
        "seconds": round(seconds, 1),
        "load_before": load,
        "cores_busy_percent": round(busy, 1),
    }
    return document, [f"{name}: {goal.line()}" for goal in result.missed()]


def _progress(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _arguments() -> tuple[list[str], Path | None]:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description="Measures the yard, each figure beside its floor."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    return given.names or list(NAMES), given.json


if __name__ == "__main__":
    sys.exit(main())
