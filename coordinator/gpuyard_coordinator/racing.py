"""Two works of which the first to end counts."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(other: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns, or None where `other` ends before it; raises what the first of them
    raises. The late one is cancelled, and over when this returns."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(other)
    tasks = (working, waiting)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not working.cancelled():
        return working.result()
    waiting.result()
    return None
