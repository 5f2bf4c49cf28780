"""The yard's API as one caller sees it: an operation, a body, an answer or its exception."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from gpuyard import subjects
from gpuyard.bus import Bus, Message
from gpuyard.errors import (
    GpuyardError,
    RemoteProtocolError,
    RequestError,
    Unavailable,
    error_from_wire,
)
from gpuyard.messages import VERSION
from gpuyard.model.plain import unusable

ERROR_HEADER: Final = "Nats-Service-Error-Code"
TRY_S: Final = 2.0
"""A request in flight when its server goes away is lost, so each try is short."""
ANSWER_S: Final = 5.0
"""How long a call tries altogether: a change of leader takes up to 3 s."""
PAGE: Final = 1000
"""Items asked for at once, the most there may be; the yard gives fewer where they are long."""


class Api:
    """Calls of one user of one tenant. Every call is safe to repeat, and is repeated."""

    def __init__(self, bus: Bus, *, tenant: str, user: str) -> None:
        self.tenant = tenant
        self.user = user
        self._bus = bus

    async def call(
        self,
        operation: str,
        body: Mapping[str, Any] | None = None,
        *,
        answer_s: float | None = None,
        try_s: float = TRY_S,
    ) -> dict[str, Any]:
        """The answer's body; raises what the yard answered, or `Unavailable` after `answer_s`
        (ANSWER_S where None)."""
        limit_s = ANSWER_S if answer_s is None else answer_s
        return (await self._ask(operation, body, answer_s=limit_s, try_s=try_s)).body()

    async def items(
        self, operation: str, body: Mapping[str, Any], *, limit: int | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The items of a list, at most `limit` of them, however many pages they take."""
        async with aclosing(self.pages(operation, body, limit=limit)) as pages:
            async for page in pages:
                for item in page:
                    yield item

    async def pages(
        self, operation: str, body: Mapping[str, Any], *, limit: int | None = None
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """The same page by page. Of a whole list the next page is on its way meanwhile."""
        cursor, left = None, limit
        coming: asyncio.Future[Message] | None = None
        try:
            while left is None or left > 0:
                answer = await (coming or self._page(operation, body, cursor, left))
                cursor, coming = answer.peek("next"), None
                if cursor is None or left is not None:
                    items = _items(answer.body(), operation)[:left]
                else:
                    coming = asyncio.ensure_future(self._page(operation, body, cursor, left))
                    # On a thread, so that the question goes out before its turn is used up here.
                    items = _items(await asyncio.to_thread(answer.body), operation)
                yield items
                if cursor is None:
                    return
                left = None if left is None else left - len(items)
        finally:
            if coming is not None:
                # The caller has enough, or something failed: nobody waits for the page.
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _page(
        self, operation: str, body: Mapping[str, Any], cursor: str | None, left: int | None
    ) -> Message:
        most = PAGE if left is None else min(PAGE, left)
        return await self._ask(operation, {**body, "limit": most, "cursor": cursor})

    async def _ask(
        self,
        operation: str,
        body: Mapping[str, Any] | None,
        *,
        answer_s: float = ANSWER_S,
        try_s: float = TRY_S,
    ) -> Message:
        """The answer as it came; raises what the yard refused, or `Unavailable`."""
        subject = subjects.api(self.tenant, self.user, operation)
        request = {"v": VERSION, **(body or {})}
        if faults := list(unusable(request)):
            raise RequestError("; ".join(map(str, faults)), field=faults[0].field)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + answer_s
        while True:
            try:
                left = max(0.05, deadline - loop.time())
                answer = await self._bus.tenants.request(
                    subject, request, timeout_s=min(try_s, left)
                )
                if ERROR_HEADER in answer.headers:
                    raise _refusal(answer.body())
                return answer
            except Unavailable as fault:
                if loop.time() + 0.2 >= deadline:
                    raise self._no_answer(fault) from fault
            await asyncio.sleep(0.2)

    def _no_answer(self, fault: Unavailable) -> Unavailable:
        if not self._bus.is_connected:
            return Unavailable(
                f"the connection to {self._bus.url} is down: {fault}", code=fault.code
            )
        return Unavailable(
            f"no coordinator answers on {self._bus.url}: "
            "is gpuyard-coordinator running, and is this the right bus?",
            code="no_leader",
        )


def _items(body: Mapping[str, Any], operation: str) -> list[dict[str, Any]]:
    items = body.get("items")
    if not isinstance(items, list):
        raise RemoteProtocolError(f"the answer to {operation} has no items")
    return items


def _refusal(body: Mapping[str, Any]) -> GpuyardError:
    error = body.get("error")
    if not isinstance(error, dict):
        return RemoteProtocolError("the yard answered an error without saying which")
    return error_from_wire(error)
