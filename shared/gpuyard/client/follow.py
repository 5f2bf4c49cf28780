"""One job as it happens: its events and its output, in order, each once.

What is published drives it; nothing is polled while all goes well. A slow re-check repairs what a
broken connection lost, and a gap is filled from what the yard stored.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeGuard

from gpuyard import subjects
from gpuyard.bus import Bus, Message, Subscription
from gpuyard.client import stored_output
from gpuyard.client.api import Api
from gpuyard.client.event_order import EventOrder, parse_event
from gpuyard.client.output import OutputFeed, ShownChunk, Source, parse_chunk
from gpuyard.errors import RemoteProtocolError, Unavailable, UnknownThing
from gpuyard.messages import Event
from gpuyard.model.states import FINAL_STATES

RECHECK_S: Final = 5.0
GAP_S: Final = 0.3
"""How long a gap may stand before what was stored is asked for."""
GIVE_UP_S: Final = 5.0
"""How long the rest of an ended attempt's output, or a gap among events, is waited for."""
GIVE_UP_OUTPUT_S: Final = 15.0
"""How long a gap in the output of a running attempt is: its agent sends again what the yard lacks,
once it has heard that."""
LOOK_S: Final = 0.001
"""`wait` with hardly any time is the cheapest look at a job."""

Item = Event | ShownChunk
Notice = Callable[[str], None]


def is_event(item: Item) -> TypeGuard[Event]:
    """Tells a follower's events from its output."""
    return "kind" in item


def is_chunk(item: Item) -> TypeGuard[ShownChunk]:
    return "stream" in item


class Follower:
    """Follows one job. `open` it before the job is submitted, or any time after; then `items`.

    `view` is the job as last seen; after `items` has ended it is the job's last state.
    """

    def __init__(
        self,
        bus: Bus,
        api: Api,
        *,
        tenant: str,
        job: str,
        with_output: bool,
        notice: Notice | None = None,
    ) -> None:
        self.tenant = tenant
        self.job = job
        self.view: Mapping[str, Any] | None = None
        self.refusal: Event | None = None
        """The `rejected` event, where the submission was refused."""
        self.is_unlimited = False
        """Whether the yard said of the job that nothing limits its tenant, and something others."""
        self._body: dict[str, Any] = {"id": job, "tenant": tenant}
        self._bus = bus
        self._api = api
        self._with_output = with_output
        self._notice = notice or (lambda _: None)
        self._subscriptions: list[Subscription] = []
        self._wake = asyncio.Event()
        self._order = EventOrder()
        self._events: deque[Event] = deque()
        self._output = OutputFeed()
        self._backlog: deque[Source] = deque()
        """Those whose stored output is to be read on."""
        self._cursors: dict[Source, str] = {}
        self._is_accepted = False
        self._is_over = False
        self._is_silent = False
        self._looked_at = 0.0
        self._gap_since: float | None = None
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Start listening. Nothing that is published from now on is missed while connected."""
        self._looked_at = self._loop.time()
        tenants = self._bus.tenants
        listen = [(subjects.events_of(self.tenant, self.job), self._on_event)]
        if self._with_output:
            listen.append((subjects.logs_of(self.tenant, self.job), self._on_log))
        for subject, callback in listen:
            self._subscriptions.append(await tenants.subscribe(subject, callback))

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions.clear()

    async def attach(self) -> None:
        """Take in what happened before `open`; raises where the yard does not know the job."""
        await self._refresh()
        if self._with_output:
            self._backlog.extend(self._output.sources())

    async def decided(self, timeout_s: float) -> bool:
        """Wait until the submission was accepted or refused; False where neither came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_accepted and self.refusal is None:
                    await self._woken()
        except TimeoutError:
            return False
        return True

    async def items(self) -> AsyncIterator[Item]:
        """Events and output until the job is over and its output complete."""
        while True:
            for item in self._take():
                yield item
            if self._backlog:
                await self._tolerant(self._read_backlog)
            elif self._is_over:
                break
            else:
                await self._next()
        await self._settle()
        deadline = self._loop.time() + GIVE_UP_S
        while self._unsettled():
            if self._loop.time() >= deadline:
                self._output.give_up(self._unsettled()[0])
            else:
                await self._next()
                await self._tolerant(self._read_backlog)
            for item in self._take():
                yield item
        for item in self._take():
            yield item

    def _take(self) -> list[Item]:
        taken: list[Item] = list(self._events)
        self._events.clear()
        return taken + list(self._output.take())

    async def _next(self) -> None:
        """Wait for news; mend what is missing; look again when it is time."""
        now = self._loop.time()
        until = self._looked_at + RECHECK_S
        gap = self._gap()
        if gap is None:
            self._gap_since = None
        else:
            self._gap_since = self._gap_since or now
            until = min(until, max(now, self._gap_since) + GAP_S)
        if now < until:
            try:
                async with asyncio.timeout_at(until):
                    await self._woken()
                if self._gap_since is None or self._loop.time() < self._gap_since + GAP_S:
                    return
            except TimeoutError:
                pass
        if gap is not None and self._gap() == gap:
            await self._tolerant(self._mend)
        elif self._loop.time() >= self._looked_at + RECHECK_S:
            await self._tolerant(self._recheck)

    async def _mend(self) -> None:
        """Ask for what is missing, and go on without it once that has failed for long."""
        stood = self._loop.time() - (self._gap_since or self._loop.time())
        if self._order.has_gap:
            await self._refresh()
            if stood > GIVE_UP_S:
                self._enter(self._order.skip_gap())
        for source in self._unsettled():
            if self._output.has_gap(source) and stood > GIVE_UP_OUTPUT_S:
                self._output.skip_gap(source)
            elif source not in self._backlog:
                self._backlog.append(source)
        if stood > GIVE_UP_OUTPUT_S:
            self._gap_since = None

    def _gap(self) -> str | None:
        """What is missing, by name: events, or output that is late or whose attempt is over."""
        if self._order.has_gap:
            return "events"
        sources = self._unsettled()
        for source in sources:
            is_past = self._is_over or source[0] != sources[-1][0]
            if is_past or self._output.has_gap(source):
                return f"output {source}"
        return None

    def _unsettled(self) -> list[Source]:
        if not self._with_output:
            return []
        return [each for each in self._output.sources() if not self._output.is_settled(each)]

    async def _tolerant(self, look: Callable[[], Any]) -> None:
        """Look, and say once when the yard does not answer: the job goes on without us."""
        try:
            await look()
        except Unavailable as fault:
            if not self._is_silent:
                self._is_silent = True
                self._notice(f"{fault}; the job goes on, still trying")
            return
        if self._is_silent:
            self._is_silent = False
            self._notice("the yard answers again")

    async def _recheck(self) -> None:
        """One cheap look; all of it only where something was missed."""
        self._looked_at = self._loop.time()
        try:
            answer = await self._api.call("wait", self._body | {"timeout_s": LOOK_S})
        except UnknownThing:
            if self._is_accepted:
                raise
            # Stored, and no leader has taken it in yet.
            return
        view = answer["job"]
        sources = self._output.sources()
        newest = sources[-1][0] if sources else None
        is_over = view["state"] in FINAL_STATES
        if is_over or view["attempt"] != newest or not self._is_accepted:
            await self._refresh()

    async def _settle(self) -> None:
        """The job's last view, however long a new leader takes: it holds the exit code."""
        await self._tolerant(self._refresh)
        while self.view is None or self.view["state"] not in FINAL_STATES:
            await asyncio.sleep(0.1)
            await self._tolerant(self._refresh)
        for attempt in self.view.get("attempts") or []:
            for rank, part in enumerate(attempt.get("members") or [attempt]):
                source = (attempt["attempt"], rank)
                never_ran = part.get("started_at") is None
                if never_ran and not self._output.has_begun(source):
                    self._output.give_up(source)

    async def _refresh(self) -> None:
        """The whole job: its events, its attempts and where they are."""
        view = (await self._api.call("job", self._body))["job"]
        self._looked_at = self._loop.time()
        events = (parse_event(event) for event in view.get("events") or [])
        self._enter(self._order.history(event for event in events if event))
        self.view = view
        self._is_accepted = True
        for attempt in view.get("attempts") or []:
            parts = attempt.get("members") or [attempt]
            self._output.assign(attempt["attempt"], *(part["node"] for part in parts))
        self._is_over = self._is_over or view["state"] in FINAL_STATES

    async def _read_backlog(self) -> None:
        """One page of what is stored."""
        if not self._backlog:
            return
        source = self._backlog[0]
        attempt, rank = source
        chunks, following = await stored_output.page(
            self._api,
            tenant=self.tenant,
            job=self.job,
            attempt=attempt,
            rank=rank,
            cursor=self._cursors.get(source),
        )
        self._output.stored(source, chunks)
        if following is None:
            self._backlog.popleft()
        else:
            self._cursors[source] = following

    async def _woken(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def _on_event(self, message: Message) -> None:
        try:
            event = parse_event(message.body())
        except RemoteProtocolError:
            return
        if event is None:
            return
        if event["kind"] == "rejected":
            # Apart from the numbered ones: it may refuse a second job of the same id.
            self.refusal = self.refusal or event
        else:
            self._enter(self._order.live(event))
        self._wake.set()

    def _enter(self, events: list[Event]) -> None:
        """Take in events whose turn has come."""
        for event in events:
            self._is_accepted = True
            if event["attempt"] is not None and event["node"] is not None:
                nodes = event["data"].get("nodes") or [event["node"]]
                self._output.assign(event["attempt"], *nodes)
            if event["data"].get("unlimited") is True:
                self.is_unlimited = True
            if event["kind"] in FINAL_STATES:
                self._is_over = True
            self._events.append(event)

    def _on_log(self, message: Message) -> None:
        attempt, node = message.subject.split(".")[-2:]
        try:
            chunk = parse_chunk(message.body())
        except RemoteProtocolError:
            return
        if chunk is None or str(chunk["attempt"]) != attempt:
            return
        self._output.live(chunk["attempt"], node, chunk)
        self._wake.set()
