"""One connection to NATS that stays alive: the client library's settings, traps and exceptions.

What the library leaves open is closed here: a first connect that never gives up, a client that is
deaf or closed for good, requests that nothing ends when the connection breaks, and callbacks that
kill the read loop when they raise.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription as NatsSubscription

from gpuyard.bus.dialling import Target, close_client, dial
from gpuyard.bus.message import Message
from gpuyard.bus.parsing import DirectClient
from gpuyard.bus.refusals import NoResponders
from gpuyard.bus.sending import Outgoing
from gpuyard.errors import LocalProtocolError, Unavailable

PROBE_EVERY_S: Final = 2.0
PROBE_TIMEOUT_S: Final = 1.0
PROBES_MISSED: Final = 2
STUCK_S: Final = 10.0
"""A reconnect that takes longer is tried with a fresh client beside the old one."""

Reply = Callable[[Message | Unavailable], None]
log = logging.getLogger(__name__)


class Subscription:
    """Interest in a subject that outlives the client object; `close` ends it."""

    def __init__(
        self, link: "Link", subject: str, queue: str, on: Callable[[Message], None]
    ) -> None:
        self._link = link
        self._on = on
        self.subject = subject
        self.queue = queue
        self.inner: NatsSubscription | None = None

    def cancelled(self) -> bool:
        """False: as the library sees it, this is a future that still waits, message after message.
        It hands each over as it was read, where a callback costs a queue and a task's turn."""
        return False

    def set_result(self, message: Message) -> None:
        try:
            self._on(message)
        except Exception:
            # The loop's top for whatever arrives: one bad message must not stop the next.
            log.exception("message callback failed", extra={"subject": message.subject})

    async def close(self) -> None:
        self._link.subscriptions.discard(self)
        inner, self.inner = self.inner, None
        if inner is not None:
            await self._link.forget(inner)


class Link:
    """A connection that reconnects for ever. Every method raises `Unavailable` while it is down."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.faults: Counter[str] = Counter()
        """Errors that the client library reported in the background, by kind."""
        self.revived = 0
        """How often a deaf or closed client had to be replaced."""
        self.subscriptions: set[Subscription] = set()
        self._client = DirectClient()
        self._inbox = f"{target.inbox_prefix}.{secrets.token_hex(11)}"
        self._numbers = itertools.count()
        self._replies: dict[str, Reply] = {}
        self._hooks: list[Callable[[], None]] = []
        self._watchdog: asyncio.Task[None] | None = None
        self._probes: set[asyncio.Future[float]] = set()
        self._retired: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    @property
    def server_version(self) -> str:
        version = self._client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    @property
    def is_clustered(self) -> bool:
        """Whether the server that this is connected to belongs to a cluster."""
        return bool(self._client._server_info.get("cluster"))

    def on_reconnect(self, hook: Callable[[], None]) -> Callable[[], None]:
        """Call `hook` after every reconnect, once the subscriptions stand again; the call that is
        returned ends that."""
        self._hooks.append(hook)
        return lambda: self._hooks.remove(hook)

    async def open(self, *, timeout_s: float) -> None:
        """Connect, trying for `timeout_s`; raises `Unavailable` that says why it did not work."""
        self._client = await self._dial(timeout_s)
        try:
            await self.subscribe(f"{self._inbox}.*", self._on_reply)
        except BaseException:
            await self.close()
            raise
        self._watchdog = asyncio.create_task(self._watch(), name="bus-watchdog")

    async def close(self) -> None:
        """Send what was published, then disconnect. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        try:
            if self._watchdog is not None:
                self._watchdog.cancel()
                await asyncio.gather(self._watchdog, return_exceptions=True)
            self._fail_requests("the connection was closed")
        finally:
            await self._bury(self._client)
            if self._retired is not None:
                await self._retired

    def new_inbox(self) -> str:
        """A subject under this connection's private prefix that nobody else subscribes."""
        return f"{self.target.inbox_prefix}.{secrets.token_hex(11)}"

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Hand a message to the connection; no buffering while it is down."""
        try:
            await self._client.publish(
                subject, data, reply=reply, headers=dict(headers) if headers else None
            )
        except nats.errors.Error as fault:
            raise self._refusal(fault, subject, len(data)) from fault

    async def publish_all(
        self, messages: Sequence[Outgoing], *, more_follows: bool = False
    ) -> None:
        """The same for many at once, of which none is sent where one cannot be; `more_follows` lets
        them wait for the next message."""
        try:
            await self._client.publish_all(messages, more_follows=more_follows)
        except nats.errors.Error as fault:
            subject, data, _ = max(messages, key=lambda message: len(message[1]))
            raise self._refusal(fault, subject, len(data)) from fault

    async def subscribe(
        self, subject: str, on: Callable[[Message], None], *, queue: str = ""
    ) -> Subscription:
        """Call `on` for every message, in order; it must not block."""
        subscription = Subscription(self, subject, queue, on)
        await self._attach(self._client, subscription)
        self.subscriptions.add(subscription)
        return subscription

    async def request(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 2.0,
    ) -> Message:
        """One question, one answer. Ends at once when the connection breaks: outcome unknown."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        reply, forget = self.expect_replies(lambda answer: _settle(future, answer))
        try:
            await self.publish(subject, data, reply=reply, headers=headers)
            async with asyncio.timeout(timeout_s):
                message = await future
        except TimeoutError as fault:
            raise Unavailable(f"no answer on {subject} within {timeout_s:g} s") from fault
        finally:
            forget()
        if message.headers.get("Status") == "503":
            raise NoResponders(f"nobody answers on {subject}", code="no_leader")
        return message

    def expect_replies(self, on: Reply) -> tuple[str, Callable[[], None]]:
        """A reply subject whose messages go to `on`, and the call that ends it.

        `on` is also told, by an `Unavailable`, when the connection breaks.
        """
        number = str(next(self._numbers))
        self._replies[number] = on

        def forget() -> None:
            self._replies.pop(number, None)

        return f"{self._inbox}.{number}", forget

    async def forget(self, inner: NatsSubscription) -> None:
        """End a subscription of the library's; one that is gone already is fine."""
        try:
            await inner.unsubscribe()
        except nats.errors.Error:
            log.debug("subscription was gone already")

    async def hears(self) -> bool:
        """Whether a ping comes back within a second. A ping that does not is kept and not
        cancelled: an answer to a cancelled one would end the library's read loop."""
        probe = asyncio.ensure_future(self._client.rtt(timeout=3600))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)
        done, _ = await asyncio.wait({probe}, timeout=PROBE_TIMEOUT_S)
        return bool(done) and not probe.cancelled() and probe.exception() is None

    def _refusal(self, fault: nats.errors.Error, subject: str, size: int) -> Exception:
        if isinstance(fault, nats.errors.MaxPayloadError):
            text = f"{size} bytes for {subject} are above the server's {self.max_payload}"
            return LocalProtocolError(text)
        if isinstance(fault, nats.errors.BadSubjectError | nats.errors.BadHeaderError):
            return LocalProtocolError(f"{subject!r} is no subject to publish to")
        return Unavailable(f"{self.target.shown} is not connected")

    def _on_reply(self, message: Message) -> None:
        on = self._replies.get(message.subject.rsplit(".", 1)[1])
        if on is not None:
            on(message)

    def _fail_requests(self, why: str) -> None:
        waiting = list(self._replies.values())
        for on in waiting:
            on(Unavailable(f"{self.target.shown}: {why}"))

    async def _attach(self, client: Client, subscription: Subscription) -> None:
        try:
            subscription.inner = await client.subscribe(
                subscription.subject,
                queue=subscription.queue,
                future=subscription,  # type: ignore[arg-type]  # all that it asks of one
            )
        except nats.errors.BadSubjectError as fault:
            raise LocalProtocolError(f"{subscription.subject!r} is no subject") from fault
        except nats.errors.Error as fault:
            raise Unavailable(f"{self.target.shown} is not connected") from fault

    async def _dial(self, timeout_s: float) -> DirectClient:
        return await dial(
            self.target,
            timeout_s=timeout_s,
            on_error=self._on_error,
            on_disconnect=lambda: self._fail_requests("the connection broke"),
            on_reconnect=self._run_hooks,
        )

    def _on_error(self, fault: Exception) -> None:
        kind = type(fault).__name__
        self.faults[kind] += 1
        # The library repeats itself: an outage is a fault per attempt, a flood one per message.
        if self.faults[kind] & (self.faults[kind] - 1) == 0:
            log.warning("bus fault", extra={"fault": str(fault) or kind, "n": self.faults[kind]})

    def _run_hooks(self) -> None:
        for hook in list(self._hooks):
            try:
                hook()
            except Exception:
                # A hook's fault must not end the library's reconnect task, which calls this.
                log.exception("reconnect hook failed")

    async def _watch(self) -> None:
        """Replace a client that is connected and does not hear, or that has given up."""
        missed, down_since = 0, None
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            if self._client.is_connected:
                down_since = None
                missed = 0 if await self.hears() else missed + 1
                if missed >= PROBES_MISSED and await self._revive():
                    missed = 0
                continue
            missed = 0
            down_since = down_since or loop.time()
            stuck = loop.time() - down_since > STUCK_S
            if (self._client.is_closed or stuck) and await self._revive():
                down_since = None

    async def _revive(self) -> bool:
        """Put a fresh client in the old one's place; False while no server can be reached."""
        try:
            fresh = await self._dial(PROBE_EVERY_S * 2)
        except Unavailable:
            return False
        old, self._client = self._client, fresh
        self.revived += 1
        self._retired = asyncio.create_task(self._bury(old), name="bus-retired")
        log.warning("bus client replaced", extra={"url": self.target.shown})
        # One that was closed for good meanwhile is replaced in its turn.
        with contextlib.suppress(Unavailable):
            for subscription in list(self.subscriptions):
                await self._attach(fresh, subscription)
        self._fail_requests("the connection was replaced")
        self._run_hooks()
        return True

    async def _bury(self, client: DirectClient) -> None:
        """Close a client, and only then drop the pings that it may still answer."""
        probes = list(self._probes)
        await close_client(client)
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)


def _settle(future: "asyncio.Future[Message]", answer: Message | Unavailable) -> None:
    if future.done():
        return
    if isinstance(answer, Unavailable):
        future.set_exception(answer)
    else:
        future.set_result(answer)
