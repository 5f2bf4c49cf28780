"""A coordinator of canned answers over a real nats-server: what a client must cope with.

It takes submissions from the real stream's subject, publishes the events and chunks that a test
asks for, and answers API calls from what it published. It decides nothing.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from gpuyard import subjects
from gpuyard.bus import Bus, Message, Sizes, connect, ensure_streams
from gpuyard.errors import RequestError, UnknownThing
from gpuyard.messages import LogChunk
from tests.shared.client.fake_operations import FakeOperations

AT = "2026-01-01T00:00:00.000Z"
FINAL = ("succeeded", "failed", "cancelled")
Body = dict[str, Any]
OnSubmit = Callable[["FakeYard", "FakeJob"], Awaitable[None] | None]


class FakeJob:
    """What the fake knows of one job."""

    def __init__(self, spec: Mapping[str, Any], tenant: str, user: str) -> None:
        self.spec = dict(spec)
        self.id = str(spec["id"])
        self.tenant = tenant
        self.user = user
        self.state = "queued"
        self.reason: str | None = None
        self.exit_code: int | None = None
        self.message: str | None = None
        self.events: list[Body] = []
        self.attempts: list[Body] = []
        self.chunks: list[LogChunk] = []

    def view(self, *, detail: bool = False) -> Body:
        last = self.attempts[-1] if self.attempts else None
        view: Body = {
            "v": 1,
            "id": self.id,
            "name": self.spec.get("name"),
            "tenant": self.tenant,
            "user": self.user,
            "user_verified": False,
            "labels": {},
            "state": self.state,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "message": self.message,
            "verdict": None,
            "image": self.spec.get("image"),
            "image_digest": None,
            "command": self.spec.get("command"),
            "priority": 50,
            "preemptible": False,
            "borrowed": False,
            "gpus_requested": {
                "count": 1,
                "all": False,
                "ids": [],
                "memory_mib": None,
                "core_percent": None,
                "mig": None,
            },
            "milli_gpu": 1000,
            "node": last["node"] if last else None,
            "node_state": "ready" if last and self.state not in FINAL else None,
            "attempt": last["attempt"] if last else None,
            "gpus": [],
            "isolation": None,
            "submitted_at": AT,
            "started_at": AT if last else None,
            "ended_at": AT if self.state in FINAL else None,
            "max_runtime_s": None,
            "stop_requested_at": None,
            "queue_position": None,
        }
        if detail:
            view |= {"spec": self.spec, "attempts": self.attempts, "events": self.events}
        return view


class FakeYard(FakeOperations):
    """Use as an async context manager. `on_submit` is what happens to a job that comes in."""

    def __init__(self, url: str, on_submit: OnSubmit | None = None, *, leads: bool = True) -> None:
        super().__init__()
        self.jobs: dict[str, FakeJob] = {}
        self.submissions: list[Body] = []
        self.calls: list[tuple[str, Body]] = []
        self.callers: list[tuple[str, str]] = []
        """(tenant, operation) of each call."""
        self.on_submit = on_submit or succeed
        self.on_cancel: OnSubmit = end_cancelled
        self.refuses: dict[str, Body] = {}
        """Operations answered with this error."""
        self._url = url
        self._leads = leads
        self._bus: Bus | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._bus = await connect(self._url, name="fake", inbox_prefix=subjects.COORDINATOR_INBOX)
        await ensure_streams(self.bus.jetstream, sizes=Sizes.within(512 * 1024 * 1024))
        if self._leads:
            await self.lead()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.bus.close()

    @property
    def bus(self) -> Bus:
        assert self._bus is not None
        return self._bus

    async def lead(self) -> None:
        """Start answering: until then there is a bus with streams and no coordinator."""
        await self.bus.app.subscribe(subjects.SUBMIT_ALL, self._submitted)
        await self.bus.tenants.serve(subjects.API_ALL, self._serve)

    def _submitted(self, message: Message) -> None:
        body = message.body()
        self.submissions.append(body)
        tenant, user = subjects.parse_submit(message.subject)
        if "cancel" in body:
            if job := self.jobs.get(body["cancel"]):
                self._go(self.on_cancel, job)
            return
        job = FakeJob({k: v for k, v in body.items() if k != "v"}, tenant, user or "_")
        is_new = job.id not in self.jobs
        self.jobs.setdefault(job.id, job)
        if is_new:
            self._go(self.on_submit, job)

    def _go(self, act: OnSubmit, job: FakeJob) -> None:
        async def run() -> None:
            result = act(self, job)
            if inspect.isawaitable(result):
                await result

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def event(self, job: FakeJob, kind: str, *, lost: bool = False, **more: Any) -> Body:
        """The job's next event; `lost` keeps it in the history and off the wire."""
        attempt = job.attempts[-1] if job.attempts else None
        body: Body = {
            "v": 1,
            "seq": len([e for e in job.events if e["kind"] != "rejected"]) + 1,
            "at": AT,
            "tenant": job.tenant,
            "job": job.id,
            "attempt": attempt["attempt"] if attempt else None,
            "kind": kind,
            "state": job.state,
            "node": attempt["node"] if attempt else None,
            "reason": job.reason,
            "message": None,
            "actor": None,
            "data": {},
        } | more
        job.events.append(body)
        if not lost:
            subject = subjects.event(job.tenant, job.id, kind, body["seq"])
            await self.bus.app.publish(subject, body)
        return body

    async def assign(self, job: FakeJob, node: str = "n1", *, lost: bool = False) -> None:
        number = len(job.attempts) + 1
        attempt = dict.fromkeys(
            ("reason", "exit_code", "message", "ended_at", "container_id", "usage")
        )
        job.attempts.append(
            {"attempt": number, "node": node, "assigned_at": AT, "started_at": AT, "gpus": []}
            | {"next_allowed_because": None}
            | attempt
        )
        job.state = "assigned"
        await self.event(job, "assigned", lost=lost)

    async def accept(self, job: FakeJob) -> None:
        await self.event(job, "accepted")

    async def running(self, job: FakeJob) -> None:
        job.state = "running"
        await self.event(job, "running")

    async def chunk(
        self,
        job: FakeJob,
        data: bytes,
        *,
        stream: int = 1,
        end: bool = False,
        lost: bool = False,
        stored: bool = True,
        node: str | None = None,
        **more: Any,
    ) -> LogChunk:
        """The attempt's next chunk; `lost`: not on the wire, `stored` False: not in the store."""
        attempt = job.attempts[-1]
        own = [chunk for chunk in job.chunks if chunk["attempt"] == attempt["attempt"]]
        offset = sum(len(chunk["data"]) for chunk in own if chunk["stream"] == stream)
        body: Any = {
            "v": 1,
            "attempt": attempt["attempt"],
            "n": len(own),
            "stream": stream,
            "offset": offset,
            "at": AT,
            "data": data,
            "lost_bytes": 0,
            "end": end,
        } | more
        if stored:
            job.chunks.append(body)
        if not lost:
            await self.publish_chunk(job, body, node or attempt["node"])
        found: LogChunk = body
        return found

    async def publish_chunk(self, job: FakeJob, chunk: LogChunk, node: str) -> None:
        subject = subjects.logs(job.tenant, job.id, chunk["attempt"], node)
        await self.bus.app.publish(subject, chunk)

    async def end(
        self, job: FakeJob, code: int | None = 0, *, reason: str = "exited", lost: bool = False
    ) -> None:
        """The job's end, by its reason."""
        job.reason, job.exit_code = reason, code
        job.state = "failed"
        if reason in ("cancelled", "yard_stopped"):
            job.state = "cancelled"
        elif reason == "exited" and code == 0:
            job.state = "succeeded"
        await self.event(job, job.state, lost=lost)

    async def reject(self, job: FakeJob, *errors: Body) -> None:
        """Refuse the submission with these faults."""
        job.state, job.reason = "failed", "invalid"
        text = "; ".join(str(error["message"]) for error in errors)
        data = {"errors": list(errors)}
        await self.event(job, "rejected", seq=77, message=text, data=data)

    async def _serve(self, message: Message) -> None:
        tenant, user, operation = subjects.parse_api(message.subject)
        body = message.body()
        self.calls.append((operation, body))
        self.callers.append((tenant, operation))
        headers = {"Gpuyard-Kind": f"{operation}.ok"}
        try:
            if operation in self.refuses:
                answer, headers = error(**self.refuses[operation])
            else:
                answer = {"v": 1, **getattr(self, f"_do_{operation.replace('-', '_')}")(body)}
        except RequestError as fault:
            answer, headers = error(fault.code, str(fault))
        prefix = subjects.tenant_inbox(tenant, user)
        await self.bus.tenants.respond(message, answer, caller_prefix=prefix, headers=headers)

    def _find(self, body: Body) -> FakeJob:
        found = [job for job in self.jobs.values() if job.id.startswith(body["id"])]
        if len(found) != 1:
            raise UnknownThing(f"no job {body['id']} in tenant default")
        return found[0]

    def _do_job(self, body: Body) -> Body:
        return {"job": self._find(body).view(detail=True)}

    def _do_wait(self, body: Body) -> Body:
        return {"job": self._find(body).view()}

    def _do_cancel(self, body: Body) -> Body:
        job = self._find(body)
        self._go(self.on_cancel, job)
        return {"job": job.view()}

    def _do_jobs(self, body: Body) -> Body:
        views = [job.view() for job in self.jobs.values()]
        if not body["all"]:
            views = [view for view in views if view["state"] not in FINAL]
        if body["state"]:
            views = [view for view in views if view["state"] in body["state"]]
        start = int(body["cursor"] or 0)
        stop = start + body["limit"]
        return {"items": views[start:stop], "next": str(stop) if stop < len(views) else None}

    def _do_logs(self, body: Body) -> Body:
        job = self._find(body)
        chunks = [chunk for chunk in job.chunks if chunk["attempt"] == body["attempt"]]
        start = int(body["cursor"] or 0)
        items = chunks[start : start + body["limit"]]
        following = str(start + len(items)) if items else None
        complete = any(chunk["end"] for chunk in items)
        return {"items": items, "next": following, "complete": complete}


def error(code: str, message: str, **more: Any) -> tuple[Body, dict[str, str]]:
    """An error reply with its header."""
    body = {"code": code, "message": message, "field": None, "hint": None} | more
    return {"v": 1, "error": body}, {"Nats-Service-Error-Code": code}


async def succeed(yard: FakeYard, job: FakeJob) -> None:
    """The whole life of a job that prints a line on each stream and ends with 0."""
    await exits(0)(yard, job)  # type: ignore[misc]  # it is a coroutine function


def exits(code: int) -> OnSubmit:
    """A job that prints `out` and `err` and ends with `code`."""

    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job)
        await yard.running(job)
        await yard.chunk(job, b"out\n")
        await yard.chunk(job, b"err\n", stream=2)
        await yard.chunk(job, b"", end=True)
        await yard.end(job, code)

    return live


async def runs_on(yard: FakeYard, job: FakeJob) -> None:
    """A job that starts, prints a line and does not end by itself."""
    await yard.accept(job)
    await yard.assign(job)
    await yard.running(job)
    await yard.chunk(job, b"begun\n")


async def end_cancelled(yard: FakeYard, job: FakeJob) -> None:
    """What a cancel does: a stop, then the end."""
    job.state = "stopping"
    await yard.event(job, "stopping")
    await yard.chunk(job, b"", end=True)
    await yard.end(job, 143, reason="cancelled")
