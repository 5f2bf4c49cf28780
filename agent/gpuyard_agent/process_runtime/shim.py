"""The shell around an attempt's command, and the folder the two leave their traces in.

::

    <folder>/launch.json   what it was started for; written first
    <folder>/shim          /proc/PID/stat of the shell, so that a reused pid is told apart
    <folder>/child         the same of the command
    <folder>/exit          the command's exit code; renamed into place, so never half written
    <folder>/stdout stderr the command's output; `.cut` beside one says what was cut out of it
    <folder>/work          its working directory where the job names none; goes with the folder

The shell starts the command only after the agent, which wrote `shim` before, told it to through a
pipe: an agent that dies in between leaves nothing running and nothing in doubt.
"""

import contextlib
import json
import os
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.runtime import Exit, Seen, Status

# Arguments: the folder, setsid, mv, then the command. `setsid` gives the command a session and a
# process group of its own, so that SIGTERM can go to it alone and SIGKILL to all it started; the
# shell, in another session, lives on to write the code. The traps keep a stray signal from ending
# the shell; being handlers, they do not reach the command. Whatever the command left behind in its
# group goes with it, as in a container. The names must not be those of a job's own variables, and
# the two tools are given by path, since PATH may be the job's.
SCRIPT: Final = """
_gy_dir=$1 _gy_setsid=$2 _gy_mv=$3; shift 3
read -r _gy_go || exit 0
trap : HUP INT TERM
"$_gy_setsid" "$@" </dev/null >>"$_gy_dir/stdout" 2>>"$_gy_dir/stderr" & _gy_child=$!
read -r _gy_stat <"/proc/$_gy_child/stat"
echo "$_gy_stat" 1<>"$_gy_dir/child.new" && "$_gy_mv" -f "$_gy_dir/child.new" "$_gy_dir/child"
while :; do
  wait "$_gy_child"; _gy_code=$?
  kill -0 "$_gy_child" 2>/dev/null || break
done
kill -s KILL -- "-$_gy_child" 2>/dev/null
echo "$_gy_code" 1<>"$_gy_dir/exit.new" && "$_gy_mv" -f "$_gy_dir/exit.new" "$_gy_dir/exit"
"""
_LOST: Final = "lost"
_ROOM_BYTES: Final = 1024
"""The shell's records are written over room taken before the command starts, since a command that
fills the disk must not cost its own exit code. A /proc/PID/stat line is below 500 bytes."""


@dataclass(frozen=True, slots=True)
class Process:
    """A pid with its start time: a pair that is never used twice in one boot."""

    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        found = process_of(self.pid)
        return found == self and not _is_zombie(self.pid)


def process_of(pid: int) -> Process | None:
    """The process that has `pid` now."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return None


def parse_stat(text: str) -> Process | None:
    """The process of a /proc/PID/stat line; its name may hold spaces and brackets."""
    try:
        pid, rest = text.split(" ", 1)
        return Process(int(pid), int(rest.rpartition(")")[2].split()[19]))
    except (ValueError, IndexError):
        return None


class Folder:
    """One attempt's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, meta: dict[str, Any]) -> None:
        """Makes it, with `launch.json` in it; one that exists keeps what it has."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.path / "work").mkdir(exist_ok=True)
        for stream in ("stdout", "stderr"):
            (self.path / stream).touch()
        for record in ("child.new", "exit.new"):
            (self.path / record).write_text("\n" * _ROOM_BYTES)
        write_whole(self.path / "launch.json", json.dumps(meta))

    def meta(self) -> dict[str, Any] | None:
        """What it was made for; None where that cannot be read: then it is not ours to judge."""
        try:
            found = json.loads((self.path / "launch.json").read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def shim(self) -> Process | None:
        return self._process("shim")

    def child(self) -> Process | None:
        return self._process("child")

    def exit(self) -> Exit | None:
        """The recorded end, or that of a shell which died without recording one."""
        path = self.path / "exit"
        try:
            text, ended = path.read_text().strip(), _text(path.stat().st_mtime)
        except OSError:
            return None
        if text.isdigit():
            return Exit(int(text), ended)
        return Exit(None, ended, message="its shell was killed")

    def started_at(self) -> str | None:
        try:
            return _text((self.path / "child").stat().st_mtime)
        except OSError:
            return None

    def seen(self, key: AttemptKey, spec_sha256: str) -> Seen:
        """What is there now."""
        shim, child, exit = self.shim(), self.child(), self.exit()
        if exit is None and shim is not None and not shim.is_alive:
            # Read again: the shell may have written the code and ended between the two looks.
            exit = self.exit() or (self.lost() if child is not None else None)
        running = exit is None and shim is not None and shim.is_alive
        status = Status.EXITED if exit else Status.RUNNING if running else Status.CREATED
        return Seen(
            key=key,
            status=status,
            container_id=f"process-{shim.pid}" if shim else None,
            image_digest=None,
            started_at=self.started_at(),
            spec_sha256=spec_sha256,
            exit=exit,
            pids=(child.pid,) if child and status is Status.RUNNING else (),
        )

    def lost(self) -> Exit:
        """The end of an attempt whose shell was killed: its command is ended too."""
        self.signal("SIGKILL")
        write_whole(self.path / "exit", _LOST)
        return self.exit() or Exit(None, _text(datetime.now(UTC).timestamp()))

    def signal(self, name: str) -> None:
        """SIGKILL goes to all of the command's group, any other signal to the command alone."""
        child = self.child()
        if child is None or process_of(child.pid) != child:
            return
        number = signal.Signals[name]
        if number is signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
        # Also for SIGKILL: in its first moments the command has no group of its own yet.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def _process(self, name: str) -> Process | None:
        try:
            return parse_stat((self.path / name).read_text(errors="replace"))
        except OSError:
            return None


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    os.replace(fresh, path)


def _is_zombie(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in ("Z", "X")


def _text(epoch_s: float) -> str:
    at = datetime.fromtimestamp(epoch_s, UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
