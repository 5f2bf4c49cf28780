"""What tests ask of processes: whether those that are not their children live, and the end of those
that are."""

import signal
import subprocess
from pathlib import Path


def is_alive(pid: int) -> bool:
    """False once the process has ended, even while nothing has collected its exit status.

    A container's process 1 may be slow to do that, so that /proc alone shows the dead for a while.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def end(process: subprocess.Popen[bytes], number: signal.Signals, *, within_s: float) -> None:
    """Sends the signal, to a frozen process too; one that outlives it is killed."""
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)  # a frozen process takes SIGTERM only once it goes on
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
