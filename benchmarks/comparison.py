"""What the commands over the public lists share: options, and how they tell what they found."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuyard_coordinator.simulate.workload import BadInput

Rows = list[dict[str, Any]]
Progress = Callable[[str], None]


def options(parser: argparse.ArgumentParser, policies: Iterable[str]) -> None:
    """Adds those that every comparison of policies has."""
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--lists", default="default", metavar="A,B", help="as default,gpushare40")
    parser.add_argument("--seeds", default="42,43", metavar="N,M")
    parser.add_argument("--policies", default="pfs,fgd", metavar="A,B", help=", ".join(policies))
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the rows there")


def chosen(
    parser: argparse.ArgumentParser, given: argparse.Namespace, policies: Iterable[str]
) -> tuple[list[str], list[int], list[str]]:
    """The lists, seeds and policies that were given; ends the program on what cannot be meant."""
    named = given.policies.split(",")
    for policy in named:
        if policy not in policies:
            parser.error(f"no policy {policy!r}; there are {', '.join(policies)}")
    try:
        seeds = [int(seed) for seed in given.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {given.seeds!r}: write whole numbers with commas, as 42,43")
    return given.lists.split(","), seeds, named


def tell(
    name: str,
    measure: Callable[[Progress], Rows],
    summary: Callable[[Rows], Iterable[str]],
    verdict: Callable[[Rows], tuple[list[str], str]],
    file: Path | None,
) -> int:
    """Measures, prints the summary and the verdict, writes the rows. The exit code is 1 where the
    verdict names what is missed, and 2 where the lists cannot be read."""
    try:
        rows = measure(lambda text: print(text, file=sys.stderr, flush=True))
    except BadInput as bad:
        print(f"{name}: {bad}", file=sys.stderr)
        return 2
    print("\n".join(summary(rows)))
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n")
    missed, line = verdict(rows)
    print(line)
    return 1 if missed else 0
