"""The process that talks to NVML: `python -m gpuyard_agent.gpus.child`.

Requests come on standard input, answers go to standard output, framed as `framing` says. It ends
when its input closes and never outlives its parent. It is expendable: a driver that hangs or
crashes takes this process and nothing else. Only the standard library and the NVML binding are
loaded, so that it starts fast and stays small.

Options: `--parent PID`, `--proc DIR`, `--simulated FILE_OR_JSON` (a `NodeDefinition`).
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, BinaryIO, Final

from gpuyard_agent.gpus.failures import Unusable, explain
from gpuyard_agent.gpus.framing import LENGTH_BYTES, framed
from gpuyard_agent.gpus.probe import Nvml, ProbeContext, probe
from gpuyard_agent.gpus.processes import Identities, OwnProcesses, ProcIdentities

_SET_PARENT_DEATH_SIGNAL: Final = 1


class Source:
    """NVML, initialised when first needed and again after it failed as a whole."""

    def __init__(self, nvml: Nvml, identities: Identities, *, proc_root: str | None) -> None:
        self._nvml = nvml
        self._context = ProbeContext(identities)
        self._proc_root = proc_root
        self._is_ready = False

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reading that the request asks for, or `error` and `error_code`."""
        self._context.own = _own(request.get("own") or {})
        self._context.wants_links = bool(request.get("links"))
        try:
            if not self._is_ready:
                self._nvml.nvmlInit()
                self._is_ready = True
            return dict(probe(self._nvml, self._context))
        except self._nvml.NVMLError as failure:
            self._reset()
            return _failed(explain(failure, proc_root=self._proc_root))

    def _reset(self) -> None:
        if self._is_ready:
            self._is_ready = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return  # it was not initialised any more, which is what is wanted


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until the input closes."""
    options = _options(sys.argv[1:] if argv is None else argv)
    _die_with(int(options.get("parent") or os.getppid()))
    requests, answers = sys.stdin.buffer, _private_stdout()
    # What the simulation calls now: the moment of the request, as its sender's clock has it.
    moment = _Moment()
    source: Source | None = None
    while (request := _read(requests)) is not None:
        moment.set(float(request.get("at_s") or 0.0))
        try:
            source = source or _source(options, moment)
            answer = source.answer(request)
        except ImportError as failure:
            answer = _failed(
                Unusable(f"the Python package nvidia-ml-py cannot be loaded: {failure}")
            )
        answers.write(framed(answer))
        answers.flush()
    return 0


class _Moment:
    """Seconds since the node's start: what the last request said, and the time since then."""

    def __init__(self) -> None:
        self.set(0.0)

    def set(self, at_s: float) -> None:
        self._at_s = at_s
        self._set_at = time.monotonic()

    def __call__(self) -> float:
        return self._at_s + time.monotonic() - self._set_at


def _source(options: dict[str, str], moment: _Moment) -> Source:
    proc_root = options.get("proc", "/proc")
    if "simulated" in options:
        # Loaded only where it is played: a real node's process has no use for it.
        from gpuyard_agent.gpus.simulation import SimulatedNvml

        simulation = SimulatedNvml(
            _definition(options["simulated"]), clock=moment, hang=_hang, crash=_crash
        )
        return Source(simulation, simulation, proc_root=None)
    return Source(_binding(), ProcIdentities(proc_root), proc_root=proc_root)


def _binding() -> Any:
    # The binding imports ctypes.util and does not use it on Linux; the real one would load
    # shutil, subprocess and tempfile: 2 MiB and 20 ms in a process that should have little.
    if "ctypes.util" not in sys.modules:
        placeholder = ModuleType("ctypes.util")
        placeholder.__dict__["find_library"] = lambda name: None
        sys.modules["ctypes.util"] = placeholder
    import pynvml

    return pynvml


def _definition(text: str) -> Any:
    if not text.lstrip().startswith("{"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    return json.loads(text)


def _hang(remaining_s: float | None) -> None:
    time.sleep(86400.0 * 365 if remaining_s is None else remaining_s)


def _crash(remaining_s: float | None) -> None:
    # Not SIGSEGV: a crash that is played should leave no core file.
    os.kill(os.getpid(), signal.SIGKILL)


def _own(given: dict[str, Any]) -> OwnProcesses:
    return OwnProcesses(
        containers=frozenset(given.get("containers") or ()),
        pids=frozenset(given.get("pids") or ()),
        names=given.get("names") or {},
    )


def _failed(failure: Unusable) -> dict[str, Any]:
    return {
        "driver_version": None,
        "cuda_version": None,
        "gpus": [],
        "links": [],
        "samples": [],
        "missing": [],
        "error": failure.message,
        "error_code": failure.code,
    }


def _options(arguments: Sequence[str]) -> dict[str, str]:
    # By hand: argparse would be a third of this process's start.
    names = [name.removeprefix("--") for name in arguments[::2]]
    unknown = [name for name in names if name not in ("parent", "proc", "simulated")]
    if unknown or len(arguments) % 2:
        raise SystemExit("usage: child [--parent PID] [--proc DIR] [--simulated FILE_OR_JSON]")
    return dict(zip(names, arguments[1::2], strict=True))


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the signal was asked for
        raise SystemExit(0)


def _private_stdout() -> BinaryIO:
    # Whatever a library prints must not end up between two answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _read(requests: BinaryIO) -> dict[str, Any] | None:
    head = requests.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    request = json.loads(requests.read(int.from_bytes(head, "big")) or b"null")
    return request if isinstance(request, dict) else None


if __name__ == "__main__":
    sys.exit(main())
