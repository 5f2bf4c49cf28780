"""Run one drill and print its figures: `python -m tests.system.drills NAME --seconds N`."""

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuyard_coordinator.core.fencing import MARGIN_S
from tests.support.busybox import import_busybox
from tests.support.engine import Engine, PrivateEngine
from tests.support.nats_server import NatsServer
from tests.support.running_yard import RunningYard
from tests.system.drills.bus_down import bus_down
from tests.system.drills.coordinators import Coordinators
from tests.system.drills.leader_frozen import leader_frozen
from tests.system.drills.node_away import node_away, yard_with_short_leases


def frozen(yard: RunningYard, seconds: float) -> Any:
    coordinators = Coordinators(yard)
    try:
        return leader_frozen(yard, coordinators, seconds)
    finally:
        coordinators.close()


def down(yard: RunningYard, seconds: float) -> Any:
    engine = Engine(Path("/var/run/docker.sock"))
    with engine.api() as api:
        import_busybox(api)
    return bus_down(yard, engine, seconds)


def away(yard: RunningYard, seconds: float) -> Any:
    """As long as it takes: the margin beyond a fence is no setting."""
    yard.coordinator.kill()
    yard = yard_with_short_leases(yard.server, yard.directory)
    try:
        with PrivateEngine("--bridge=none") as engine:
            with engine.api() as api:
                import_busybox(api)
            return node_away(yard, engine, MARGIN_S)
    finally:
        yard.close()


DRILLS: dict[str, tuple[Callable[[RunningYard, float], Any], float]] = {
    "bus_down": (down, 600.0),
    "leader_frozen": (frozen, 30.0),
    "node_away": (away, MARGIN_S),
}


def main() -> None:
    parser = argparse.ArgumentParser("tests.system.drills", description=__doc__)
    parser.add_argument("name", choices=DRILLS)
    parser.add_argument("--seconds", type=float, help="how long the bus or the leader is away")
    options = parser.parse_args()
    drill, usual_s = DRILLS[options.name]
    seconds = usual_s if options.seconds is None else options.seconds
    directory = Path(tempfile.mkdtemp(prefix="gpuyard-drill-"))
    load = os.getloadavg()[0]
    print(f"{options.name} for {seconds:g} s; load {load:.1f}; logs in {directory}", flush=True)
    with NatsServer(directory / "nats") as server:
        yard = RunningYard(server, directory)
        yard.coordinator.start()
        try:
            figures = asdict(drill(yard, seconds))
        finally:
            yard.close()
    for name, value in figures.items():
        print(f"{name:24} {value:g}")


if __name__ == "__main__":
    main()
