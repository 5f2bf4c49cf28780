"""The keeper's process: one loop over its socket and its clock."""

import fcntl
import json
import os
import select
import socket
import sys
import time

from gpuyard_agent.keeper import ledger, processes, store

MAX_REQUEST_BYTES = 8 * 1024 * 1024
LOOK_S = 5.0
"""The longest sleep while fences are held: a host that was suspended has to look at its clock."""
FAST_S, SLOW_S = 0.25, 1.0
"""How often a fence that is over is looked behind: at first, or while it kills, and later on."""
FAST_FOR_S = 10.0
LINGER_S = 5.0
"""How long a keeper that is there only while needed waits for the next agent."""
OVER_S = 3600.0
"""How long such a keeper goes on looking behind fences that are over, without an agent."""


class Keeper:
    """Holds the fences of one folder. `wanted_always` keeps it alive with nothing to hold."""

    def __init__(self, directory: str, *, wanted_always: bool) -> None:
        self._directory = directory
        self._wanted_always = wanted_always
        self._boot = store.boot_id()
        self._fences = self._load()
        self._on_disk = frozenset(self._fences)
        self._is_saved = True
        self._look_at: dict[str, float] = {}
        self._agents: dict[int, tuple[socket.socket, bytearray]] = {}
        self._alone_since = _now()
        self._poll = select.poll()

    def run(self, listening: socket.socket) -> None:
        """Serves until nobody needs it."""
        self._poll.register(listening, select.POLLIN)
        while not self._is_done():
            for fd, _ in self._poll.poll(self._sleep_s() * 1000):
                if fd == listening.fileno():
                    self._accept(listening)
                else:
                    self._serve(fd)
            self.look()

    def look(self) -> None:
        """Ends what is due."""
        if not self._is_saved:
            self._save()
        for key, fence in self._fences.items():
            now = _now()
            number = fence.due(now)
            if number is not None and fence.reach is not None and now >= self._look_at.get(key, 0):
                self._end(key, fence, number)

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        """Arms and releases as asked, on the disk first; raises ValueError for nonsense."""
        armed, released = request.get("arm", {}), request.get("release", [])
        wanted = request.get("find", [])
        if not isinstance(armed, dict) or not isinstance(released, list):
            raise ValueError("a request is of arm, release and find")
        told = {str(key): ledger.parse(record) for key, record in armed.items()}
        for key, fence in told.items():
            self._fences.setdefault(key, fence).arm(fence)
        gone = [self._fences.pop(key, None) for key in released]
        if told or any(gone):
            self._save()
        found = [key for key in wanted if self._finds(key)] if isinstance(wanted, list) else []
        held = {key: self._fences[key].deadline for key in self._fences if key in self._on_disk}
        return {"held": held, "found": found}

    def _end(self, key: str, fence: ledger.Fence, number: str) -> None:
        assert fence.reach is not None
        found = processes.find(fence.reach)
        now = _now()
        if found.pids:
            self._note(key, fence, number)
            if number == "SIGKILL":
                found.kill()
            else:
                found.terminate()
        is_early = now < fence.deadline + FAST_FOR_S
        self._look_at[key] = now + (FAST_S if found.pids or is_early else SLOW_S)

    def _note(self, key: str, fence: ledger.Fence, number: str) -> None:
        """Writes down what is about to be done; a disk that refuses does not stop it."""
        moment = (_now(), time.time())
        if number == "SIGTERM":
            fence.termed = moment
        elif fence.killed is None:
            fence.killed = moment
        else:
            return
        _say(f"{number} for {key}: {_now() - fence.deadline:+.1f} s from its fence")
        self._save()

    def _finds(self, key: object) -> bool:
        fence = self._fences.get(str(key))
        return (
            fence is not None and fence.reach is not None and bool(processes.find(fence.reach).pids)
        )

    def _load(self) -> dict[str, ledger.Fence]:
        try:
            return store.load(self._directory, self._boot)
        except store.Damaged as fault:
            path = store.path_in(self._directory)
            os.replace(path, path + ".damaged")
            _say(f"{path} cannot be read ({fault}); the agent tells its fences anew")
            return {}

    def _save(self) -> None:
        try:
            store.save(self._directory, self._boot, self._fences)
        except OSError as fault:
            if self._is_saved:
                _say(f"cannot write {store.path_in(self._directory)}: {fault.strerror or fault}")
            self._is_saved = False
            self._on_disk &= frozenset(self._fences)
        else:
            self._is_saved = True
            self._on_disk = frozenset(self._fences)

    def _sleep_s(self) -> float:
        """Until the next thing that is due without being asked."""
        now = _now()
        times = [now + LOOK_S] if self._fences or not self._wanted_always else []
        for key, fence in self._fences.items():
            if fence.due(now) is None:
                times.append(fence.next_at(now))
            elif fence.reach is not None:
                times.append(self._look_at.get(key, now))
        if not self._is_saved:
            times.append(now + SLOW_S)
        return max(0.0, min(times) - now) + 0.001 if times else 3600.0

    def _is_done(self) -> bool:
        if self._wanted_always:
            return False
        now = _now()
        if self._agents:
            self._alone_since = now
        if not os.path.isdir(self._directory):
            return True
        last = max((fence.deadline + OVER_S for fence in self._fences.values()), default=0.0)
        return now > max(last, self._alone_since + LINGER_S)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        connection.settimeout(1.0)
        self._agents[connection.fileno()] = (connection, bytearray())
        self._poll.register(connection, select.POLLIN)

    def _serve(self, fd: int) -> None:
        """Takes in what one agent said; every line is a request and gets a line back."""
        connection, waiting = self._agents[fd]
        try:
            data = connection.recv(256 * 1024)
            waiting += data
            while (end := waiting.find(b"\n")) >= 0:
                line = bytes(waiting[:end])
                del waiting[: end + 1]
                connection.sendall(json.dumps(self._answered(line)).encode() + b"\n")
            is_over = not data or len(waiting) > MAX_REQUEST_BYTES
        except OSError:
            is_over = True
        if is_over:
            self._poll.unregister(fd)
            del self._agents[fd]
            connection.close()

    def _answered(self, line: bytes) -> dict[str, object]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("a request is an object")
            return self.answer(request)
        except (ValueError, RecursionError) as fault:
            return {"error": str(fault)}


def serve(directory: str, *, wanted_always: bool) -> int:
    """The exit code: 0 not needed any more or already there, 1 the folder is of no use."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as fault:
        _say(f"cannot use {directory}: {fault.strerror}")
        return 1
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _say(f"another keeper holds {directory}")
        return 0
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    with _listen(directory) as listening:
        Keeper(directory, wanted_always=wanted_always).run(listening)
    return 0


def socket_address(folder: int, name: str = "socket") -> str:
    """The socket's path by way of an open folder: a plain one may be longer than 107 bytes."""
    return f"/proc/self/fd/{folder}/{name}"


def _listen(directory: str) -> socket.socket:
    """A socket at `socket` in the folder, which is there once it listens."""
    folder = os.open(directory, os.O_RDONLY)
    path = os.path.join(directory, "socket.new")
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(socket_address(folder, "socket.new"))
        listening.listen(16)
        os.replace(path, os.path.join(directory, "socket"))
        return listening
    finally:
        os.close(folder)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _say(text: str) -> None:
    print(f"gpuyard-keeper: {text}", file=sys.stderr, flush=True)
