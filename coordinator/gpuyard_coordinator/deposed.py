"""Whether a leader that answers may have been deposed without having noticed.

One that was frozen or cut off for longer than its lease goes on as if nothing had happened. The bus
refuses its writes; answers that need no write would tell of a state that others have changed.
"""

import asyncio
from typing import Final

from gpuyard.errors import Unavailable
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.store import Store

ASK_S: Final = 1.0
"""Below the time in which a client asks again."""


async def is_deposed(leadership: Leadership, store: Store, clock: Clock) -> bool:
    """True once the bus says that somebody else leads; asked only after the lease is over.

    Where the bus does not say it is False: nothing is stored then, so that what is known holds.
    """
    if leadership.is_valid(clock.monotonic()):
        return False
    try:
        async with asyncio.timeout(ASK_S):
            return not await store.still_leads()
    except (TimeoutError, Unavailable):
        return False
