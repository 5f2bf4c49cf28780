"""Doing again what is safe to do again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpuyard.errors import Unavailable

PAUSE_S = 0.1
Result = TypeVar("Result")


async def repeated(
    work: Callable[[], Awaitable[Result]], *, attempts: int, pause_s: float = PAUSE_S
) -> Result:
    """The result of `work`, tried up to `attempts` times while it raises `Unavailable`.

    Only for work that may happen twice: its outcome is unknown when it is repeated.
    """
    for _ in range(attempts - 1):
        try:
            return await work()
        except Unavailable:
            await asyncio.sleep(pause_s)
    return await work()
