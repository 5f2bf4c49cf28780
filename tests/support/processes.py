"""What tests ask about processes that are not their children."""

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
