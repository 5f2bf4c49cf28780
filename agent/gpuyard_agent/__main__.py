"""`gpuyard-agent`: runs what the coordinator assigns to this host, and reports what it has."""

import argparse
import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from gpuyard import __version__, extras, telemetry
from gpuyard.errors import GpuyardError, Unavailable
from gpuyard_agent import settings as configuration
from gpuyard_agent.journal import DirectoryLock
from gpuyard_agent.settings import AgentSettings, SettingsError
from gpuyard_agent.simulated_runtime import Timers


def main() -> None:
    """Exit codes: 0 stopped on request, 1 refused, 2 usage or settings, 3 the bus is of no use."""
    flags = vars(_arguments())
    # What the extra brings is imported only after this.
    if fault := extras.fault("agent", "docker", "pynvml", "structlog"):
        _fail(fault, 2)
    try:
        settings = configuration.load(file=flags.pop("config"), environment=os.environ, flags=flags)
        telemetry.configure(level=settings.log_level, format=settings.log_format)
        asyncio.run(_run(settings))
    except SettingsError as error:
        _fail(str(error), 2)
    except Unavailable as error:
        _fail(str(error), 3)
    except GpuyardError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)


async def _run(settings: AgentSettings) -> None:
    from gpuyard_agent.loop.assembly import Assembly, assemble, make_keeper
    from gpuyard_agent.loop.host import Clock, this_host
    from gpuyard_agent.loop.keeping import NoKeeper
    from gpuyard_agent.loop.process import AgentProcess

    lock = DirectoryLock(Path(settings.dir))
    lock.acquire()
    try:
        clock = Clock()
        keeper = make_keeper(settings, os.environ)
        shared = Assembly(
            settings=settings,
            host=this_host(),
            clock=clock,
            policy=configuration.load_policy(),
            timers=Timers(),
            keeper=keeper or NoKeeper(),
        )
        process = AgentProcess(
            settings,
            assemble(shared, host_name=socket.gethostname()),
            clock=clock,
            keeper=keeper,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stop.set)
        await process.run()
    finally:
        lock.release()


def _fail(message: str, code: int) -> NoReturn:
    print(f"gpuyard-agent: {message}", file=sys.stderr)
    sys.exit(code)


def _arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "gpuyard-agent", description="Runs the jobs that this host is assigned."
    )
    add: Any = parser.add_argument
    add("--config", type=Path, help=f"settings file (default {configuration.DEFAULT_FILE})")
    add("--url", help="address of the bus, as nats://HOST:PORT")
    add("--credentials", help="file with the credentials for the bus")
    add("--ca", help="file with the certificate authority of the bus")
    add("--name", help="name of this node (default: first label of the host's name)")
    add("--dir", help="folder for what is kept between runs")
    add("--runtime", help="docker, process or simulated")
    add("--docker-host", help="address of the Docker Engine, as unix:///PATH")
    add("--gpu-injection", help="toolkit, cdi, device-nodes or none (default: found out)")
    add("--simulate", metavar="N|FILE", help="simulated GPUs: a number of nodes or a fleet file")
    add(
        "--stop-jobs-on-exit",
        action="store_true",
        default=None,
        help="on SIGTERM end the jobs, with their grace, before leaving",
    )
    add("--log-level", help="debug, info, warning or error")
    add("--log-format", help="json or text")
    add("--version", action="version", version=__version__)
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
