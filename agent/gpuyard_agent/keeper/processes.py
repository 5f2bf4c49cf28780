"""Finding an attempt's processes without the engine that made them, and signalling them.

A container's are those whose control group carries the container's id in its name, whichever
driver and parent the engine uses. A bare process's are those of its session, named by the file
that its shell left (`process_runtime.shim`).

A pid is signalled through a pidfd that was opened before the process was recognised (a second
time), so a number that went to somebody else's process in between is never hit.
"""

import os
import signal
from collections.abc import Callable

_FROZEN, _THAWED = b"FROZEN", b"THAWED"
_Recognise = Callable[[int], bool]
"""Tells whether a pid is one of those looked for, at the moment it is asked."""


class Processes:
    """What stands behind one fence, at the moment it was looked at."""

    __slots__ = ("_is_one", "freezer", "pids", "root", "unified")

    def __init__(self, pids: list[int], root: list[int], is_one: _Recognise) -> None:
        self.pids = pids
        self.root = root
        """Those that SIGTERM is for: a container's first process, a session's leader."""
        self.unified: str | None = None
        """The control group's folder where the kernel can kill it as a whole."""
        self.freezer: str | None = None
        self._is_one = is_one

    def terminate(self) -> None:
        for pid in self.root or self.pids:
            _send(pid, signal.SIGTERM, self._is_one)

    def kill(self) -> None:
        """One round; what was forked meanwhile is for the next."""
        if self.unified is None or not _write(f"{self.unified}/cgroup.kill", b"1"):
            self._kill_each()
        if self.freezer is not None:
            # What is frozen there, by us or by a pause of the container, dies once it is thawed.
            _write(f"{self.freezer}/freezer.state", _THAWED)

    def _kill_each(self) -> None:
        pids = self.pids
        if self.freezer is not None and _write(f"{self.freezer}/freezer.state", _FROZEN):
            pids = _tree(self.freezer) or pids  # frozen, they fork no more
        for pid in pids:
            _send(pid, signal.SIGKILL, self._is_one)


def find(reach: tuple[str, str]) -> Processes:
    """What lives there now."""
    kind, name = reach
    return _of_container(name) if kind == "container" else _of_folder(name)


def _of_container(container_id: str) -> Processes:
    is_one = _in_group(container_id)
    pids = [pid for pid in _all_pids() if is_one(pid) and not _is_zombie(pid)]
    found = Processes(pids, _first(pids), is_one)
    groups = _read(f"/proc/{pids[0]}/cgroup").decode(errors="replace") if pids else ""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if container_id not in path:
            continue
        folder = _cut(path, container_id)
        if controllers == "":
            found.unified = _mounted("cgroup2", None, folder, "cgroup.kill")
        elif "freezer" in controllers.split(","):
            found.freezer = _mounted("cgroup", "freezer", folder, "freezer.state")
    return found


def _of_folder(path: str) -> Processes:
    told = _stat(_read(f"{path}/child"))
    if told is None or os.path.exists(f"{path}/exit"):
        return Processes([], [], _nobody)
    leader, _, started = told
    now = _stat(_read(f"/proc/{leader}/stat"))
    if now is not None and now[2] != started:
        return Processes([], [], _nobody)  # the number is another process's by now
    is_one = _in_session(leader, started)
    pids = [pid for pid in _all_pids() if is_one(pid) and not _is_zombie(pid)]
    return Processes(pids, [leader] if leader in pids else [], is_one)


def _in_group(container_id: str) -> _Recognise:
    mark = container_id.encode()
    return lambda pid: mark in _read(f"/proc/{pid}/cgroup")


def _in_session(leader: int, began: int) -> _Recognise:
    def is_one(pid: int) -> bool:
        found = _stat(_read(f"/proc/{pid}/stat"))
        return found is not None and found[1] == leader and found[2] >= began

    return is_one


def _nobody(pid: int) -> bool:
    return False


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _first(pids: list[int]) -> list[int]:
    """The process that is number 1 in its own pid namespace, the outermost of them."""
    ones: list[tuple[int, int]] = []
    for pid in pids:
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"NSpid:"):
                numbers = line.split()[1:]
                if len(numbers) > 1 and numbers[-1] == b"1":
                    ones.append((len(numbers), pid))
    return [min(ones)[1]] if ones else []


def _cut(path: str, container_id: str) -> str:
    """The container's own group; the path may lead to one below it."""
    parts = path.split("/")
    last = next(i for i, part in enumerate(parts) if container_id in part)
    return "/".join(parts[: last + 1])


def _mounted(kind: str, controller: str | None, folder: str, needed: str) -> str | None:
    """The folder of a group below the mount of its hierarchy, if `needed` is in it."""
    for line in _read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        about = after.split(" ")
        if about[0] != kind or (controller and controller not in about[-1].split(",")):
            continue
        found = before.split(" ")[4] + folder
        if os.path.exists(f"{found}/{needed}"):
            return found
    return None


def _tree(folder: str) -> list[int]:
    """The pids of a group and of those below it."""
    return [
        int(pid) for path, _, _ in os.walk(folder) for pid in _read(f"{path}/cgroup.procs").split()
    ]


def _stat(data: bytes) -> tuple[int, int, int] | None:
    """(pid, session, start time) of a /proc/PID/stat line; names may hold spaces, brackets."""
    try:
        rest = data.rpartition(b")")[2].split()
        return int(data.split(b" ", 1)[0]), int(rest[3]), int(rest[19])
    except (ValueError, IndexError):
        return None


def _is_zombie(pid: int) -> bool:
    state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1]
    return not state or state[0] in (b"Z", b"X")


def _send(pid: int, number: signal.Signals, is_one: _Recognise) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel without it, or a sandbox that forbids it
        if is_one(pid):
            _kill(pid, number)
        return
    try:
        if is_one(pid):
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _read(path: str) -> bytes:
    """A file of /proc or of ours; empty where it is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read() or b""
    except OSError:
        return b""


def _write(path: str, data: bytes) -> bool:
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(data)
    except OSError:
        return False
    return True
