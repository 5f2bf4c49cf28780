"""The SDK for programs with an event loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Literal, Self, overload

from gpuyard import subjects
from gpuyard.bus import Bus, Message, Subscription, connect
from gpuyard.client import stored_output, submission
from gpuyard.client.answers import DryRun
from gpuyard.client.api import Api
from gpuyard.client.config import Config, load_config
from gpuyard.client.event_order import parse_event
from gpuyard.client.follow import Follower, Notice, is_chunk, is_event
from gpuyard.client.jobs import Job, LogLine, StillUnfinished
from gpuyard.client.operations import Operations
from gpuyard.client.output import OutputLines, ShownChunk
from gpuyard.errors import RemoteProtocolError, RequestError, Unavailable
from gpuyard.messages import Event

CONNECT_S: Final = 3.0
WATCHED_EVENTS: Final = 10_000
"""Events kept for a reader that is slower than the yard; the oldest go first."""


class AsyncClient(Operations):
    """A connection to a yard as one user of one tenant; use it as an async context manager.

    What is not given comes from the configuration of the command line: `GPUYARD_*`, the yard of
    this folder, the context, the files. Methods raise the classes of `gpuyard.errors`; a job that
    fails is a `Job`, not an exception.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        credentials: str | os.PathLike[str] | None = None,
        context: str | None = None,
        config: Config | None = None,
    ) -> None:
        """Nothing is connected before `connect`; raises ConfigError for settings of no use."""
        self.config = config or load_config(
            url=url, tenant=tenant, user=user, credentials=credentials, context=context
        )
        self._bus: Bus | None = None
        self._operator: AsyncClient | None = None
        self._operator_lock = asyncio.Lock()

    async def connect(self, *, timeout_s: float = CONNECT_S) -> None:
        """Connect; raises `Unavailable` or `BusTooOld` with one line that says why not."""
        config = self.config
        self._bus = await connect(
            config.url,
            name=f"gpuyard-client {config.tenant}/{config.user}",
            inbox_prefix=subjects.tenant_inbox(config.tenant, config.user),
            credentials=config.credentials,
            ca=config.ca,
            timeout_s=timeout_s,
        )

    async def close(self) -> None:
        """Disconnect; jobs go on. Safe to call twice."""
        operator, self._operator = self._operator, None
        bus, self._bus = self._bus, None
        try:
            if operator is not None:
                await operator.close()
        finally:
            if bus is not None:
                await bus.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def bus(self) -> Bus:
        """The connection; raises `Unavailable` before `connect` and after `close`."""
        if self._bus is None:
            raise Unavailable("this client is not connected")
        return self._bus

    @property
    def api(self) -> Api:
        return Api(self.bus, tenant=self.config.tenant, user=self.config.user)

    async def operator_api(self) -> Api:
        """The API as an operator.

        On a connection of its own, made at first use: answers only go to the inbox of whom the
        question names.
        """
        return (await self._as_operator()).api

    async def _as_operator(self) -> "AsyncClient":
        if self.config.tenant == subjects.OPERATOR_TENANT:
            return self
        async with self._operator_lock:
            if self._operator is None:
                self.bus  # noqa: B018  # raises where this client is not connected
                config = replace(self.config, tenant=subjects.OPERATOR_TENANT)
                operator = AsyncClient(config=config)
                await operator.connect()
                self._operator = operator
            return self._operator

    @overload
    async def submit(self, spec: Any, *, dry_run: Literal[False] = False) -> Job: ...

    @overload
    async def submit(self, spec: Any, *, dry_run: Literal[True]) -> DryRun: ...

    async def submit(self, spec: Any, *, dry_run: bool = False) -> Job | DryRun:
        """Hand in a job, a map or a `JobSpec`, and return it once the yard has accepted it.

            job = await client.submit({"image": "busybox", "command": ["true"], "gpus": 1})
            plan = await client.submit({"image": "busybox", "gpus": 8}, dry_run=True)
            print(plan["node"] or plan["why"]["verdict"]["message"])

        With `dry_run` nothing is stored, and what would happen now is returned. Submitting one id
        twice gives the same job; one that is stored while no leader answers is returned with
        `warning` set. Raises InvalidJob with every fault, Conflict where its id stands for another
        job, Unavailable where it could not be stored.
        """
        if dry_run:
            return await self.try_submit(spec)
        body = submission.prepared(spec)
        async with self._submitted(body, with_output=False, looks=True) as (_, job):
            return job

    async def run(
        self,
        spec: Any,
        *,
        on_log: Callable[[LogLine], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> Job:
        """Submit a job and stay until it is over and its output complete; returns its last state.

        `on_log` gets each line of output, in order within each stream, `on_event` each event.
        Cancelling this call leaves the job running: use `cancel`.
        """
        lines = OutputLines()
        async with self.started(spec, with_output=on_log is not None) as (follower, job):
            async for item in follower.items():
                if is_event(item) and on_event is not None:
                    on_event(item)
                elif is_chunk(item) and on_log is not None:
                    for line in lines.feed(item):
                        on_log(line)
            if on_log is not None:
                for line in lines.flush():
                    on_log(line)
            return Job.from_view(follower.view or job.view)

    @asynccontextmanager
    async def started(
        self, spec: Any, *, with_output: bool = True, notice: Notice | None = None
    ) -> AsyncIterator[tuple[Follower, Job]]:
        """Submit a job and follow it from its first moment: gives the follower and the job.

        The job holds little more than its id; the follower's `view` has the rest at the end.
        """
        body = submission.prepared(spec)
        async with self._submitted(body, with_output=with_output, notice=notice) as started:
            yield started

    @asynccontextmanager
    async def _submitted(
        self,
        body: Mapping[str, Any],
        *,
        with_output: bool,
        notice: Notice | None = None,
        looks: bool = False,
    ) -> AsyncIterator[tuple[Follower, Job]]:
        data = submission.encoded(body)
        job, api = body["id"], self.api
        follower = Follower(
            self.bus, api, tenant=api.tenant, job=job, with_output=with_output, notice=notice
        )
        try:
            # Listening first, on the same connection: the answer cannot come before.
            await follower.open()
            await submission.store(self.bus, tenant=api.tenant, user=api.user, job=job, data=data)
            job_now = await submission.settle(follower, api, name=body.get("name"), looks=looks)
            yield follower, job_now
        finally:
            await follower.close()

    async def job(self, id: str) -> Job:
        """One job by its id, a unique prefix of at least 4 characters, or a unique active name."""
        return Job.from_view((await self.api.call("job", {"id": id}))["job"])

    async def jobs(
        self,
        *,
        all: bool = False,
        state: list[str] | None = None,
        user: str | None = None,
        node: str | None = None,
        name: str | None = None,
        since: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
        all_tenants: bool = False,
    ) -> AsyncIterator[Job]:
        """Jobs of the tenant: the unfinished ones, or with `all` every one that is kept.

        `all_tenants` asks for those of everybody, as an operator.
        """
        query = {
            "all": all,
            "state": state or [],
            "user": user,
            "node": node,
            "name": name,
            "since": since,
            "sort": sort,
            "tenants": "all" if all_tenants else None,
        }
        api = await self.operator_api() if all_tenants else self.api
        async with aclosing(api.items("jobs", query, limit=limit)) as views:
            async for view in views:
                yield Job.from_view(view)

    async def wait(self, id: str, *, timeout_s: float | None = None) -> Job:
        """Return the job once it is over; raises StillUnfinished after `timeout_s`."""
        job = await self.job(id)
        if job.is_over:
            return job
        async with self.following(job, with_output=False) as follower:
            try:
                async with asyncio.timeout(timeout_s):
                    async for _ in follower.items():
                        pass
            except TimeoutError:
                last = Job.from_view(follower.view or job.view)
                raise StillUnfinished(
                    f"job {job.id} is not over after {timeout_s:g} s", job=last
                ) from None
            return Job.from_view(follower.view or job.view)

    @asynccontextmanager
    async def following(self, job: Job, *, with_output: bool) -> AsyncIterator[Follower]:
        """Follow a job that exists, from its beginning."""
        follower = Follower(
            self.bus, self.api, tenant=job.tenant, job=job.id, with_output=with_output
        )
        try:
            await follower.open()
            await follower.attach()
            yield follower
        finally:
            await follower.close()

    async def output(
        self,
        id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> AsyncIterator[ShownChunk]:
        """The job's output in the bytes that it wrote, chunk by chunk; a gang's with the rank of
        the member that wrote each, or that of one `rank` alone.

        Without `follow` what is stored now: of `attempt`, or of all of them. Raises RequestError
        for an array, which has no output of its own, and for a rank or an attempt that the job has
        not; with `follow` an attempt is waited for.
        """
        job = await self.job(id)
        if fault := stored_output.why_none(job, None if follow else attempt, rank):
            raise RequestError(fault)
        if not follow:
            async for chunk in stored_output.read(self.api, job, attempt, rank):
                yield chunk
            return
        async with self.following(job, with_output=True) as follower:
            async for item in follower.items():
                if not is_chunk(item) or attempt not in (None, item["attempt"]):
                    continue
                if rank is None or item.get("rank", 0) == rank:
                    yield item

    async def logs(
        self,
        id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """Lines of the job's output, or of one member of a gang; with `follow` until the job is
        over."""
        lines = OutputLines()
        async for chunk in self.output(id, follow=follow, attempt=attempt, rank=rank):
            for line in lines.feed(chunk):
                yield line
        for line in lines.flush():
            yield line

    async def events(
        self, id: str | None = None, *, follow: bool = True, all_tenants: bool = False
    ) -> AsyncIterator[Event]:
        """Events of one job from its first on, until it is over; or of the tenant from now on.

        `all_tenants` gives those of everybody, as an operator. Without an id and without `follow`
        there is nothing to give: only jobs keep a history.
        """
        if id is None:
            source = await self._as_operator() if all_tenants else self
            if follow:
                async for event in source._tenant_events():
                    yield event
            return
        job = await self.job(id)
        if not follow:
            for event in job.view.get("events") or []:
                yield event
            return
        async with self.following(job, with_output=False) as follower:
            async for item in follower.items():
                if is_event(item):
                    yield item

    async def _tenant_events(self) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event] = asyncio.Queue(WATCHED_EVENTS)

        def take(message: Message) -> None:
            try:
                event = parse_event(message.body())
            except RemoteProtocolError:
                return
            if event is None:
                return
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

        subscription = await self.on_event(take)
        try:
            while True:
                yield await queue.get()
        finally:
            await subscription.close()

    async def on_event(self, take: Callable[[Message], None]) -> Subscription:
        """Calls `take` for each event of the tenant, as an operator of all, until closed."""
        is_operator = self.config.tenant == subjects.OPERATOR_TENANT
        subject = subjects.EVENTS_ALL if is_operator else subjects.events_of(self.config.tenant)
        return await self.bus.tenants.subscribe(subject, take)

    async def cancel(self, id: str, *, reason: str | None = None) -> Job:
        """Ask for the job's end and return it as it is then; `wait` for the end itself."""
        return Job.from_view((await self.api.call("cancel", {"id": id, "reason": reason}))["job"])

    async def revoke(self, id: str, *, reason: str) -> None:
        """Cancel a job whose `submit` was broken off: it never runs, or ends cancelled."""
        await submission.revoke(
            self.bus,
            tenant=self.config.tenant,
            user=self.config.user,
            job=id,
            reason=reason,
        )
