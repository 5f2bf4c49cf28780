"""The agent's side of the NVML child process: start it, ask it, end it; nothing here blocks."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from typing import Final

from gpuyard.errors import RuntimeFailure
from gpuyard.model.node import ProbeResult
from gpuyard_agent.gpus.framing import LENGTH_BYTES, framed
from gpuyard_agent.gpus.simulated_node import NodeDefinition

_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_END_TRIES: Final = 100
_END_PAUSE_S: Final = 0.01


class ChildFailed(RuntimeFailure):
    """The child gave no answer; `code` is the node's reason code for it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, temporary=True)
        self.code = "gpu_sample_stale"


class ChildProcess:
    """One running child. After a failed `ask` it must be killed: answers could be out of step."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process = process
        self._channel = channel

    @classmethod
    def start(cls, *, simulated: NodeDefinition | None, proc_root: str) -> "ChildProcess":
        """Starts a child; raises `ChildFailed` where the host cannot."""
        command = [sys.executable, "-P", "-m", "gpuyard_agent.gpus.child"]
        command += ["--parent", str(os.getpid()), "--proc", proc_root]
        if simulated is not None:
            command += ["--simulated", json.dumps(simulated)]
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            # A session of its own: Ctrl-C on the agent's terminal is not for the child.
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True
            )
        except OSError as failure:
            ours.close()
            raise ChildFailed(f"the NVML process cannot be started: {failure}") from failure
        finally:
            theirs.close()
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, request: dict[str, object], *, deadline_s: float) -> ProbeResult:
        """The answer to one request; raises `ChildFailed` after `deadline_s` seconds."""
        try:
            async with asyncio.timeout(deadline_s):
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(self._channel, framed(request))
                size = int.from_bytes(await self._receive(LENGTH_BYTES), "big")
                if size > _MAX_ANSWER_BYTES:
                    raise ChildFailed("the NVML process answered out of form")
                answer: ProbeResult = json.loads(await self._receive(size))
        except TimeoutError as failure:
            raise ChildFailed(f"NVML did not answer within {deadline_s:g} s") from failure
        except (OSError, ValueError) as failure:
            raise ChildFailed("the NVML process ended unexpectedly") from failure
        return answer

    async def _receive(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        received = bytearray()
        while len(received) < size:
            part = await loop.sock_recv(self._channel, size - len(received))
            if not part:
                raise ConnectionResetError("the channel was closed")
            received += part
        return bytes(received)

    def kill(self) -> None:
        """Ends the process by its pid, without waiting for it."""
        self._channel.close()
        self._process.kill()

    def has_ended(self) -> bool:
        """True once a killed process is gone and reaped."""
        return self._process.poll() is not None

    async def ended(self) -> bool:
        """Waits a second at most; a process that hangs in the kernel cannot be ended."""
        for _ in range(_END_TRIES):
            if self.has_ended():
                return True
            await asyncio.sleep(_END_PAUSE_S)
        return self.has_ended()
