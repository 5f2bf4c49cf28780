"""The runtime that starts host processes; see the package's docstring for what it cannot do."""

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import RUNTIME_REFUSED, PullProgress
from gpuyard.model.node import NodeReason, RuntimeName
from gpuyard_agent.core.launch import AttemptKey, Launch
from gpuyard_agent.process_runtime.shim import SCRIPT, Folder, Process, process_of, write_whole
from gpuyard_agent.process_runtime.spool import Spool
from gpuyard_agent.process_runtime.tail import POLL_S, Growth, wait_any
from gpuyard_agent.runtime import (
    Exit,
    Hold,
    LogPiece,
    LogPosition,
    Reach,
    Seen,
    Status,
    unheld,
)

READ_BYTES: Final = 64 * 1024
LOG_BYTES: Final = 64 * 1024 * 1024
TRIM_EVERY_S: Final = 1.0
_STREAMS: Final = ((1, "stdout"), (2, "stderr"))
STARTED_S: Final = 2.0
"""How long the shell may take to start the command; it takes a few milliseconds."""
_KEPT_ENV: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""What a command gets of the agent's own environment: never its credentials."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessRuntime:
    """Attempts of one yard and node as processes, remembered in `directory`."""

    name: RuntimeName = "process"

    def __init__(
        self, directory: Path, *, yard: str, node: str, log_bytes: int = LOG_BYTES
    ) -> None:
        """Of each stream the first `log_bytes` are kept, and the last megabyte."""
        self._directory = directory
        self._yard = yard
        self._node = node
        self._growth = Growth()
        self._children: dict[AttemptKey, int] = {}
        # One reading more than the limit, which is looked at between readings.
        self._head_bytes = log_bytes + READ_BYTES
        self._writing: set[AttemptKey] = set()
        """Attempts whose output may grow."""
        self._trimming: asyncio.Task[None] | None = None

    async def open(self) -> None:
        for tool in ("sh", "setsid"):
            if shutil.which(tool, path=_PATH) is None:
                raise RuntimeFailure(f"'{tool}' is not installed", temporary=False)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as fault:
            raise _failure(fault, self._directory) from fault
        self._growth.open()
        self._trimming = asyncio.create_task(self._trim_now_and_then())

    async def seen(self) -> Sequence[Seen]:
        try:
            folders = sorted(self._directory.iterdir())
        except OSError as fault:
            raise _failure(fault, self._directory) from fault
        found = []
        for path in folders:
            folder = Folder(path)
            meta = folder.meta()
            if meta is not None and (meta.get("yard"), meta.get("node")) == (
                self._yard,
                self._node,
            ):
                key = AttemptKey(*meta["key"])
                self._writing.add(key)
                found.append(folder.seen(key, str(meta["spec_sha256"])))
        return found

    async def prepare(self, launch: Launch, progress: Callable[[PullProgress], None]) -> None:
        return None

    async def launch(self, launch: Launch, hold: Hold = unheld) -> Seen:
        folder, sha = self._folder(launch.key), launch.labels["gpuyard.spec_sha256"]
        if folder.meta() is not None:
            seen = folder.seen(launch.key, sha)
            if seen.status is not Status.CREATED:
                return seen
        command = _command(launch)
        try:
            folder.create(
                {
                    "yard": self._yard,
                    "node": self._node,
                    "key": list(launch.key),
                    "spec_sha256": sha,
                    "image": launch.image,
                    "labels": launch.labels,
                }
            )
            await hold(self._reach(launch.key))
            self._start(folder, launch, command)
        except OSError as fault:
            raise _failure(fault, folder.path) from fault
        self._writing.add(launch.key)
        await _until(lambda: folder.child() is not None, STARTED_S)
        return folder.seen(launch.key, sha)

    def reach(self, seen: Seen) -> Reach | None:
        return self._reach(seen.key)

    async def wait(self, key: AttemptKey) -> Exit:
        folder = self._folder(key)
        exit = folder.exit()
        if exit is not None:
            self._reap(key)
            return exit
        shim = folder.shim()
        if shim is None:
            raise RuntimeFailure(f"{key} is not here", temporary=False, reason="runtime_lost")
        await _until_gone(shim)
        self._reap(key)
        return folder.exit() or folder.lost()

    async def signal(self, key: AttemptKey, signal: str) -> None:
        folder = self._folder(key)
        if folder.child() is None and _is_alive(folder.shim()):
            await _until(lambda: folder.child() is not None, STARTED_S)
        folder.signal(signal)

    async def remove(self, key: AttemptKey) -> None:
        folder = self._folder(key)
        if folder.exit() is None:
            folder.signal("SIGKILL")
        if (shim := folder.shim()) is not None:
            # It writes into the folder until its very end.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_until_gone(shim), STARTED_S)
        self._reap(key)
        self._writing.discard(key)
        try:
            await asyncio.to_thread(shutil.rmtree, folder.path)
        except FileNotFoundError:
            return
        except OSError as fault:
            raise _failure(fault, folder.path) from fault

    async def logs(self, key: AttemptKey, position: LogPosition) -> AsyncIterator[LogPiece]:
        folder = self._folder(key)
        offsets = {1: position.stdout, 2: position.stderr}
        with contextlib.ExitStack() as stack:
            try:
                files = {
                    stream: stack.enter_context((folder.path / name).open("rb"))
                    for stream, name in _STREAMS
                }
            except FileNotFoundError:
                return
            spools = {stream: self._spool(folder, name) for stream, name in _STREAMS}
            grown = asyncio.Event()
            # The folder, for the exit code that is renamed into it.
            paths = (folder.path / "stdout", folder.path / "stderr", folder.path)
            watches = [self._growth.watch(path, grown) for path in paths]
            for watch in watches:
                stack.callback(self._growth.unwatch, watch, grown)
            while True:
                # Looked up before reading: what was written before the end is then read as well.
                is_over = folder.exit() is not None or not _is_alive(folder.shim())
                progressed = False
                for stream, file in files.items():
                    at, size = spools[stream].readable(offsets[stream], READ_BYTES)
                    data = os.pread(file.fileno(), size, at)
                    if data:
                        progressed = True
                        yield LogPiece(stream, at, data)
                        offsets[stream] = at + len(data)
                if not progressed:
                    if is_over:
                        return
                    await wait_any(grown, is_watched=min(watches) >= 0)

    async def problems(self) -> Sequence[NodeReason]:
        return ()

    async def close(self) -> None:
        if self._trimming is not None:
            self._trimming.cancel()
            await asyncio.gather(self._trimming, return_exceptions=True)
        self._growth.close()

    def _folder(self, key: AttemptKey) -> Folder:
        return Folder(self._directory / f"{key.tenant}.{key.job}.{key.attempt}")

    def _reach(self, key: AttemptKey) -> Reach:
        return "folder", str(self._folder(key).path.absolute())

    def _spool(self, folder: Folder, stream: str) -> Spool:
        return Spool(folder.path / stream, head_bytes=self._head_bytes)

    async def _trim_now_and_then(self) -> None:
        """Keeps output files bounded while this agent runs, whether or not anybody reads them."""
        while True:
            await asyncio.sleep(TRIM_EVERY_S)
            for key in list(self._writing):
                folder = self._folder(key)
                is_over = folder.exit() is not None
                # Removed meanwhile, or a file system without holes: then it stays as it is.
                with contextlib.suppress(OSError):
                    for _, name in _STREAMS:
                        self._spool(folder, name).trim()
                if is_over:
                    self._writing.discard(key)

    def _start(self, folder: Folder, launch: Launch, command: list[str]) -> None:
        """Forks the shell, writes down which process it is, and only then lets it go on."""
        tools = [shutil.which(tool, path=_PATH) or tool for tool in ("setsid", "mv")]
        child = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, "gpuyard", str(folder.path), *tools, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=launch.workdir or str(folder.path / "work"),
            env=_environment(launch),
            start_new_session=True,
        )
        # It is to outlive this process, and is reaped by its pid: Popen has done its part.
        child.returncode = 0
        self._children[launch.key] = child.pid
        (folder.path / "child").unlink(missing_ok=True)
        stat = Path(f"/proc/{child.pid}/stat").read_text(errors="replace")
        write_whole(folder.path / "shim", stat)
        _spare_no_more(child.pid)
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(b"go\n")

    def _reap(self, key: AttemptKey) -> None:
        """Takes the zombie of a shell that this process started."""
        pid = self._children.get(key)
        if pid is None:
            return
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                return
        del self._children[key]


def _command(launch: Launch) -> list[str]:
    """The command; raises RuntimeFailure for what a bare process cannot honour."""
    command = [*(launch.entrypoint or ()), *(launch.command or ())]
    if not command:
        raise _invalid("a process has no image to take a command from: give one")
    if launch.run_as is not None:
        raise _invalid("run_as needs docker")
    for mount in launch.mounts:
        if mount.source != mount.target:
            raise _invalid(f"mounting {mount.source} at {mount.target} needs docker")
    return command


def _environment(launch: Launch) -> dict[str, str]:
    """The job's variables over a few of the host's.

    Nothing but CUDA_VISIBLE_DEVICES keeps a bare process to its grant, so it is set unless the job
    set it itself.
    """
    kept = {name: os.environ[name] for name in _KEPT_ENV if name in os.environ}
    uuids = ",".join(gpu["uuid"] for gpu in launch.gpus)
    return {"PATH": _PATH, "CUDA_VISIBLE_DEVICES": uuids} | kept | launch.env


def _spare_no_more(pid: int) -> None:
    """An agent may be spared when memory runs out; what it starts is not, as a container is not."""
    score = Path(f"/proc/{pid}/oom_score_adj")
    # A shell that is gone already leaves nothing to do.
    with contextlib.suppress(OSError):
        if int(score.read_text()) < 0:
            score.write_text("0")


async def _until(is_so: Callable[[], bool], timeout_s: float) -> None:
    """Waits for a file that is due within milliseconds; gives up silently."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not is_so() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.002)


async def _until_gone(process: Process) -> None:
    """Returns when the process has ended: by pidfd, which works for adopted ones as well."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel without it, or a sandbox that forbids it
        while process.is_alive:
            await asyncio.sleep(POLL_S)
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    try:
        if process_of(process.pid) != process:
            return
        loop.add_reader(fd, gone.set)
        await gone.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _is_alive(process: Process | None) -> bool:
    return process is not None and process.is_alive


def _invalid(message: str) -> RuntimeFailure:
    message = f"{RUNTIME_REFUSED}: {message}"
    return RuntimeFailure(message, temporary=False, reason="invalid")


def _failure(fault: OSError, path: Path) -> RuntimeFailure:
    full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
    text = f"{fault.filename or path}: {fault.strerror or fault}"
    return RuntimeFailure(text, temporary=False, reason="no_space" if full else "runtime_error")
