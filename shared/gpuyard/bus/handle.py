"""Core messaging as one role sees it: publish, subscribe, serve, request, respond."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from gpuyard import codec
from gpuyard.bus.link import Link, Subscription
from gpuyard.bus.message import Message
from gpuyard.bus.repeating import repeated
from gpuyard.errors import Unavailable

Body = Mapping[str, Any] | bytes
MAX_WAITING: Final = 8192
"""Requests of one handle that may wait for their turn; their callers give up long before."""
log = logging.getLogger(__name__)


class Service:
    """What `Handle.serve` began, until `close`."""

    def __init__(self, subscription: Subscription, running: "set[asyncio.Task[None]]") -> None:
        self._subscription = subscription
        self._running = running

    async def close(self) -> None:
        """Take no more requests, and cancel those that are not answered yet: what they wait for
        may never come any more."""
        await self._subscription.close()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Handle:
    """One of the roles of a connection: the yard itself, its tenants' side, its agents' side."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._serving: set[asyncio.Task[None]] = set()
        self.replies_dropped = 0
        """Answers not sent because the reply subject was not the caller's own."""
        self.requests_dropped = 0
        """Requests not served because too many were waiting already."""

    @property
    def is_connected(self) -> bool:
        return self._link.is_connected

    async def publish(
        self,
        subject: str,
        body: Body,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send at most once; raises `Unavailable` while the connection is down."""
        await self._link.publish(subject, _bytes(body), reply=reply, headers=headers)

    async def publish_all(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """The same for many (subject, body) at once, of which none is sent where one cannot be."""
        await self._link.publish_all([(subject, body, None) for subject, body in messages])

    async def subscribe(
        self, subject: str, callback: Callable[[Message], None], *, queue: str = ""
    ) -> Subscription:
        """Call `callback` for every message, in order. It must not block: what takes time goes
        through `serve` or a queue of the caller's."""
        return await self._link.subscribe(subject, callback, queue=queue)

    async def serve(
        self,
        subject: str,
        handler: Callable[[Message], Awaitable[None]],
        *,
        queue: str = "",
        concurrency: int = 64,
    ) -> Service:
        """Run `handler` in a task per message, at most `concurrency` at a time.

        The handler answers through `respond` and is expected to catch what it can explain; what
        escapes it is logged, and the caller sees a timeout.
        """
        gate = asyncio.Semaphore(concurrency)
        running: set[asyncio.Task[None]] = set()

        async def run(message: Message) -> None:
            async with gate:
                try:
                    await handler(message)
                except Unavailable as fault:
                    log.info("answer not sent", extra={"fault": str(fault)})
                except Exception:
                    # The loop's top of a service: one request's fault is not the next one's.
                    log.exception("request handler failed", extra={"subject": message.subject})

        def receive(message: Message) -> None:
            if len(self._serving) >= MAX_WAITING:
                self.requests_dropped += 1
                return
            task = asyncio.ensure_future(run(message))
            for tasks in (self._serving, running):
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        return Service(await self._link.subscribe(subject, receive, queue=queue), running)

    async def request(
        self,
        subject: str,
        body: Body,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 2.0,
        attempts: int = 1,
    ) -> Message:
        """Ask and wait; raises `Unavailable` (code `no_leader` where nobody serves the subject).

        With `attempts` above 1 the same bytes are sent again after a timeout or a break, so that
        is for requests that are safe to repeat.
        """
        data = _bytes(body)
        return await repeated(
            lambda: self._link.request(subject, data, headers=headers, timeout_s=timeout_s),
            attempts=attempts,
        )

    async def respond(
        self,
        message: Message,
        body: Body,
        *,
        caller_prefix: str,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Answer `message`, but only into the caller's own inbox; False where it was dropped.

        A body is sent in the form, JSON or msgpack, that the request came in.
        """
        if not self.may_answer(message, caller_prefix=caller_prefix):
            return False
        if not isinstance(body, bytes):
            body = message.encode_answer(body)
        await self._link.publish(message.reply, body, headers=headers)
        return True

    def may_answer(self, message: Message, *, caller_prefix: str) -> bool:
        """True where the reply subject is in the caller's own inbox; else it counts as dropped.

        The reply subject is chosen by the sender and checked by nobody else: an answer sent to
        any other subject would be a write with our permissions.
        """
        is_own = message.reply.startswith(f"{caller_prefix}.")
        self.replies_dropped += not is_own
        return is_own

    async def close(self) -> None:
        """Let running handlers end for a moment, then cancel what is left."""
        if self._serving:
            await asyncio.wait(self._serving, timeout=1.0)
        for task in self._serving:
            task.cancel()


def _bytes(body: Body) -> bytes:
    return body if isinstance(body, bytes) else codec.encode(body)
