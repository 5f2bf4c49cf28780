"""`gpuyard up` and `gpuyard down`: a whole yard on this machine."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpuyard.cli.ending import Ended, UsageFault, say
from gpuyard.cli.globals import current, global_options

if TYPE_CHECKING:
    from gpuyard.cli.yard_folder import YardFolder
    from gpuyard.cli.yard_parts import UpOptions

RUNTIMES: Final = ("docker", "process", "simulated")
MOST_NODES: Final = 100_000
INJECTIONS: Final = ("toolkit", "cdi", "device-nodes", "none")


@click.command()
@click.option("--dir", "folder", default=None, metavar="DIR", help="Its files; ./.gpuyard.")
@click.option("--fresh", is_flag=True, help="Empty DIR first.")
@click.option("--runtime", type=click.Choice(RUNTIMES), default=None, help="How jobs run.")
@click.option("--simulate", metavar="N|FILE", default=None, help="N nodes of 8 GPUs, or a fleet.")
@click.option(
    "--gpu-injection", type=click.Choice(INJECTIONS), default=None, help="How GPUs get in."
)
@click.option("-d", "--detach", is_flag=True, help="Return once it is ready.")
@global_options
def up(
    folder: str | None,
    fresh: bool,
    runtime: str | None,
    simulate: str | None,
    gpu_injection: str | None,
    detach: bool,
) -> int:
    """Start a yard on this machine: the bus, a coordinator, an agent. Ctrl-C ends it.

    Jobs run in Docker where an engine answers, else as plain processes. Without an NVIDIA GPU
    simulated ones stand in. Commands in this folder and below find the yard by themselves.

    \b
      gpuyard up
      gpuyard up --simulate 3 -d
      gpuyard up --simulate fleet.yaml --dir /tmp/yard --fresh
    """
    from gpuyard.cli.yard_folder import YardFolder
    from gpuyard.cli.yard_parts import UpOptions

    if simulate is not None and simulate.isdecimal() and int(simulate) > MOST_NODES:
        raise UsageFault(f"--simulate takes at most {MOST_NODES} nodes, not {simulate}")
    settings = current()
    yard = YardFolder(Path(folder or os.environ.get("GPUYARD_DIR") or ".gpuyard"))
    options = UpOptions(runtime, simulate, gpu_injection, fresh)
    if not detach:
        from gpuyard.cli.up_session import run_yard

        return run_yard(yard, options, settings)
    return _detached(yard, options)


def _detached(yard: "YardFolder", options: "UpOptions") -> int:
    """Runs the yard in a process of its own; returns its exit code once it is ready or failed."""
    from gpuyard.cli.up_session import run_yard

    settings = current()
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setsid()
        raise Ended(run_yard(yard, options, settings, tell_ready=lambda: _leave(yard, writing)))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if pipe.read(1):
            return 0
    # It ended before it was ready, and has said why.
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) or 1


def _leave(yard: "YardFolder", writing: int) -> None:
    """Lets the starting command go: from here on our words go to a file."""
    log = os.open(yard.log_file("up"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    sys.stdout.flush()
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)
    os.write(writing, b"0")
    os.close(writing)


@click.command()
@click.option("--dir", "folder", default=None, metavar="DIR", help="The yard's files.")
@global_options
def down(folder: str | None) -> int:
    """End the yard of this folder: jobs get SIGTERM and their grace, queued ones stay queued.

    \b
      gpuyard down
      gpuyard down --dir /tmp/yard
    """
    import signal

    from gpuyard.cli.yard_folder import YardFolder
    from gpuyard.cli.yard_supervisor import end_leftovers

    yard = YardFolder(_find(folder))
    pid = yard.holder()
    if pid is None:
        if yard.leftovers():
            say(f"the yard in {yard.path} was killed; ending what it left behind")
            end_leftovers(yard, keeps_jobs=False)
        else:
            say(f"no yard runs in {yard.path}")
        return 0
    os.kill(pid, signal.SIGTERM)
    while yard.holder() == pid:
        time.sleep(0.05)
    say(f"the yard in {yard.path} is stopped")
    return 0


def _find(folder: str | None) -> Path:
    """The folder that is named, else the nearest one upwards, as other commands find it."""
    from gpuyard.client.yard_file import YARD_FOLDER

    named = folder or os.environ.get("GPUYARD_DIR")
    if named:
        return Path(named)
    here = Path.cwd()
    for above in (here, *here.parents):
        if (above / YARD_FOLDER / "yard.json").is_file():
            return above / YARD_FOLDER
    return here / YARD_FOLDER
