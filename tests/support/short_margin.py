"""`python -m tests.support.short_margin ARGS`: a coordinator that waits less beyond a fence.

The margin is no setting, since a short one is unsafe on a loaded host. A test of a minute less
needs one that its own jobs, which end at once, cannot outlast.
"""

from gpuyard_coordinator.__main__ import main
from gpuyard_coordinator.core import fencing

MARGIN_S = 5.0

if __name__ == "__main__":
    fencing.MARGIN_S = MARGIN_S  # type: ignore[misc]  # a constant everywhere else
    main()
