"""The yard's API as one caller sees it: an operation, a body, an answer or its exception."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from gpuyard import subjects
from gpuyard.bus import Bus
from gpuyard.errors import GpuyardError, RemoteProtocolError, Unavailable, error_from_wire
from gpuyard.messages import VERSION

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
        subject = subjects.api(self.tenant, self.user, operation)
        request = {"v": VERSION, **(body or {})}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (ANSWER_S if answer_s is None else answer_s)
        while True:
            try:
                left = max(0.05, deadline - loop.time())
                answer = await self._bus.tenants.request(
                    subject, request, timeout_s=min(try_s, left)
                )
                return _read(answer.body(), answer.headers)
            except Unavailable as fault:
                if loop.time() + 0.2 >= deadline:
                    raise self._no_answer(fault) from fault
            await asyncio.sleep(0.2)

    async def pages(
        self, operation: str, body: Mapping[str, Any], *, limit: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The items of a list, page by page; at most `limit` of them."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            page = PAGE if left is None else min(PAGE, left)
            answer = await self.call(operation, {**body, "limit": page, "cursor": cursor})
            items = answer.get("items")
            if not isinstance(items, list):
                raise RemoteProtocolError(f"the answer to {operation} has no items")
            for item in items[:left]:
                yield item
            cursor = answer.get("next")
            if cursor is None:
                return
            left = None if left is None else left - len(items)

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


def _read(body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    if ERROR_HEADER not in headers:
        return dict(body)
    raise _refusal(body)


def _refusal(body: Mapping[str, Any]) -> GpuyardError:
    error = body.get("error")
    if not isinstance(error, dict):
        return RemoteProtocolError("the yard answered an error without saying which")
    return error_from_wire(error)
