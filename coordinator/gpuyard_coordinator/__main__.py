"""`gpuyard-coordinator`: stands for election, leads while it can, stands again."""

import argparse
import asyncio
import gc
import os
import socket
import sys
from pathlib import Path
from typing import Final, NoReturn

from gpuyard import __version__, extras, subjects, telemetry
from gpuyard.bus import connect, patience_s
from gpuyard.errors import GpuyardError, Unavailable
from gpuyard_coordinator import settings as configuration

GC_THRESHOLD: Final = 20_000
"""A beat is a hundred small objects that go when it was read, and none of them is in a cycle: the
default of 700 would look for one after every few beats."""


def main() -> None:
    """Exit codes: 0 stopped on request, 1 refused, 2 usage or settings, 3 the bus is of no use."""
    flags = vars(_arguments())
    # What the extra brings is imported only after this.
    if fault := extras.fault("coordinator", "msgspec", "numpy", "structlog"):
        _fail(fault, 2)
    try:
        settings = configuration.load(file=flags.pop("config"), environment=os.environ, flags=flags)
        telemetry.configure(level=settings.log_level, format=settings.log_format)
        gc.set_threshold(GC_THRESHOLD)
        asyncio.run(_run(settings))
    except configuration.SettingsError as error:
        _fail(str(error), 2)
    except Unavailable as error:
        _fail(str(error), 3)
    except GpuyardError as error:
        _fail(str(error), 1)


async def _run(settings: configuration.CoordinatorSettings) -> None:
    from gpuyard_coordinator.bus_check import prepare_bus
    from gpuyard_coordinator.clock import Clock, read_first_line
    from gpuyard_coordinator.daemon import Daemon, check_reach, stop_on_signals
    from gpuyard_coordinator.leader import Leadership, Timing, this_process
    from gpuyard_coordinator.record import Segments
    from gpuyard_coordinator.yard_memory import YardMemory, check_yard

    check_reach(settings)
    clock = Clock()
    bus = await connect(
        settings.url,
        name="gpuyard-coordinator",
        inbox_prefix=subjects.COORDINATOR_INBOX,
        credentials=settings.credentials,
        ca=settings.ca,
        timeout_s=patience_s(settings.url),
    )
    async with bus:
        memory = YardMemory(Path(settings.dir), url=settings.url)
        await check_yard(bus.jetstream, memory)
        replicas = await prepare_bus(bus, max_gib=settings.store_max_gib)
        leadership = Leadership(
            bus.jetstream,
            holder=this_process(
                name=socket.gethostname(),
                machine_id=read_first_line("/etc/machine-id") or socket.gethostname(),
                boot_id=read_first_line("/proc/sys/kernel/random/boot_id"),
            ),
            timing=Timing.for_replicas(replicas),
            clock=clock.monotonic,
            wall_ms=clock.wall_ms,
            memory=memory,
        )
        record = None
        if settings.record_mib:
            folder = Path(settings.dir) / "record"
            record = Segments(folder, most_bytes=round(settings.record_mib * 1024 * 1024))
        daemon = Daemon(bus, leadership, settings, clock, record)
        stop_on_signals(daemon)
        await daemon.run()
        if record is not None:
            record.close()


def _fail(message: str, code: int) -> NoReturn:
    print(f"gpuyard-coordinator: {message}", file=sys.stderr)
    sys.exit(code)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "gpuyard-coordinator", description="Places the jobs of a yard on its nodes."
    )
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--url", help="address of the bus, as nats://HOST:PORT")
    parser.add_argument("--credentials", help="file with the credentials for the bus")
    parser.add_argument("--ca", help="file with the certificate authority of the bus")
    parser.add_argument("--dir", help="folder for what is kept between runs")
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="serve a bus beyond loopback although no credentials are set",
    )
    parser.add_argument("--log-level", help="debug, info, warning or error")
    parser.add_argument("--log-format", help="json or text")
    parser.add_argument("--version", action="version", version=__version__)
    return parser.parse_args()


if __name__ == "__main__":
    main()
