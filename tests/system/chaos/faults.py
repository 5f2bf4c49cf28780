"""How each kind of fault is done to a yard, and mended."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.nats_server import NatsServer
from tests.support.running_yard import Daemon
from tests.system.chaos.schedule import Fault
from tests.system.chaos.yard import ChaosYard, Member

NO_BUS: Final = 3
"""Exit code of a daemon whose bus does not answer when it starts."""
_JUMP: Final = "-3600"
_BALLAST: Final = "ballast"


def name_of(fault: Fault, yard: ChaosYard) -> str:
    """What a fault is done to, as its log is called."""
    if fault.target == "server":
        return f"server-{fault.index}"
    return _member(fault, yard).directory.name


def begin(fault: Fault, yard: ChaosYard) -> None:
    _do(fault, yard)[0]()


def mend(fault: Fault, yard: ChaosYard) -> None:
    """Takes the fault back; what it ended is started again."""
    _do(fault, yard)[1]()


def _do(fault: Fault, yard: ChaosYard) -> tuple[Callable[[], None], Callable[[], None]]:
    what = fault.kind.removeprefix(f"{fault.target}_")
    if fault.target == "server":
        return _to_server(what, yard.servers[fault.index])
    return _to_member(what, _member(fault, yard))


def _member(fault: Fault, yard: ChaosYard) -> Member:
    members = yard.coordinators if fault.target == "coordinator" else yard.agents
    return members[fault.index]


def _to_server(what: str, server: NatsServer) -> tuple[Callable[[], None], Callable[[], None]]:
    return {
        "killed": (server.kill, server.start),
        "terminated": (server.stop, server.start),
        "frozen": (server.freeze, server.thaw),
    }[what]


def _to_member(what: str, member: Member) -> tuple[Callable[[], None], Callable[[], None]]:
    daemon, link = member.daemon, member.link
    return {
        "killed": (daemon.kill, daemon.start),
        "terminated": (lambda: _stop(daemon), daemon.start),
        "frozen": (
            lambda: daemon.signal(signal.SIGSTOP),
            lambda: daemon.signal(signal.SIGCONT),
        ),
        "cut_off": (link.cut, link.mend),
        "connections_reset": (link.reset, lambda: None),
        "clock_jump": (
            lambda: _set_clock(member.clock, _JUMP),
            lambda: _set_clock(member.clock, "+0"),
        ),
        "disk_full": (
            lambda: _fill(member.directory),
            (member.directory / _BALLAST).unlink,
        ),
    }[what]


def _stop(daemon: Daemon) -> None:
    code = daemon.stop()
    # One that was started a moment ago may not have got as far as handling signals, or have found
    # no bus and gone.
    assert code in (0, -signal.SIGTERM, NO_BUS), (
        f"{daemon.log.name}: exit code {code} on SIGTERM\n{daemon.tail()}"
    )


def _set_clock(file: Path, offset: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(offset)
    new.rename(file)


def _fill(directory: Path) -> None:
    """Writes until nothing more fits on the folder's disk."""
    with (directory / _BALLAST).open("wb", buffering=0) as ballast:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    ballast.write(b"\0" * size)
            except OSError:
                continue
