"""The request/reply side: `gpuyard.api.<tenant>.<user>.<operation>`.

Reads of live state run between commits; what is kept of ended jobs is read from the bus. A reply
goes only to the caller's own inbox.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

from structlog.typing import FilteringBoundLogger

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message, Service
from gpuyard.errors import (
    GpuyardError,
    InvalidJob,
    LocalProtocolError,
    RequestError,
    UnknownThing,
)
from gpuyard.messages import Event, JobDocument
from gpuyard.model import ids
from gpuyard.model.ids import JobKey
from gpuyard.model.states import FINAL_STATES
from gpuyard.views.jobs import JobView, job_detail
from gpuyard_coordinator import job_list, look_ups, reads, stored_logs
from gpuyard_coordinator.calls import Body, Call, Reply, error_reply
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.documents import job_document
from gpuyard_coordinator.core.effects import Outcome
from gpuyard_coordinator.core.events import (
    CancelRequested,
    HoldRequested,
    Refused,
    Submitted,
)
from gpuyard_coordinator.core.state import Job
from gpuyard_coordinator.core.why import not_waiting
from gpuyard_coordinator.desk import Desk, Seat
from gpuyard_coordinator.loop import Arrival
from gpuyard_coordinator.operator_services import OperatorServices
from gpuyard_coordinator.pages import Page, fill, number_of
from gpuyard_coordinator.store import Store
from gpuyard_coordinator.submissions import Submission, read_submission

MAX_WAIT_S: Final = 30.0
READS: Final = (
    "jobs",
    "job",
    "why",
    "wait",
    "logs",
    "nodes",
    "node",
    "tenants",
    "tenant",
    "status",
)
"""What changes nothing and needs no leader."""
DONE_PAGES_SEARCHED: Final = 20


@dataclass(slots=True)
class Services:
    bus: Bus
    seat: Seat
    store: Store
    log: FilteringBoundLogger
    desk: Desk
    operators: OperatorServices
    _list: job_list.JobList | None = None
    _offered: list[Service] = field(default_factory=list)
    _waiting: dict[JobKey, list["asyncio.Future[None]"]] = field(default_factory=dict)

    async def start(self) -> None:
        """Offer everything. In no queue group: a leader that was deposed while it was frozen would
        swallow its share, and what it answers late or cannot commit does no harm."""
        self._offered.append(await self.bus.tenants.serve(subjects.API_ALL, self._serve))

    async def start_reads(self, may_answer: Callable[[], Awaitable[bool]]) -> None:
        """A standby's part: nothing but reads, and each only if `may_answer` then says so."""

        async def serve(message: Message) -> None:
            if await may_answer():
                await self._serve(message)

        for operation in READS:
            subject = subjects.api("*", "*", operation)
            self._offered.append(
                await self.bus.tenants.serve(subject, serve, queue=subjects.STANDBY_QUEUE)
            )

    async def close(self) -> None:
        for service in self._offered:
            await service.close()
        self._offered.clear()

    def job_ended(self, key: JobKey) -> None:
        """Wakes whoever waits for this job."""
        for future in self._waiting.pop(key, []):
            if not future.done():
                future.set_result(None)

    async def _serve(self, message: Message) -> None:
        try:
            tenant, user, operation = subjects.parse_api(message.subject)
        except ValueError:
            return
        call = Call(message, tenant, user, operation, {})
        try:
            call.arguments = codec.decode(message.data, headers=message.headers) or {}
            handler = self._handlers().get(operation)
            if handler is None:
                raise RequestError(f"no operation {operation}", field="operation")
            body: Reply = await handler(call)
            headers = {"Gpuyard-Kind": f"{operation}.ok"}
        except GpuyardError as error:
            body, headers = error_reply(error)
        except Exception:
            # The top of a request: its caller shall hear of our fault, and hear it now.
            self.log.exception("request failed", operation=operation)
            text = f"the coordinator failed on {operation}; its log says why"
            body, headers = error_reply(LocalProtocolError(text))
        await self.bus.tenants.respond(message, body, caller_prefix=call.inbox, headers=headers)

    def _handlers(self) -> Mapping[str, Callable[[Call], Awaitable[Reply]]]:
        return {
            "submit": self._submit,
            "jobs": self._jobs,
            "job": self._job,
            "logs": self._logs,
            "wait": self._wait,
            "cancel": self._cancel,
            "hold": self._hold,
            "release": self._hold,
            "why": self._why,
            **self.operators.handlers(),
        }

    async def _submit(self, call: Call) -> Body:
        if call.tenant == subjects.OPERATOR_TENANT:
            raise RequestError("submit as a tenant, not as an operator", field="tenant")
        event = read_submission(
            tenant=call.tenant,
            user=call.user,
            data=call.message.data,
            headers=call.message.headers,
            assigned_id=ids.job_id_from_bytes(os.urandom(10)),
            ref=call,
        )
        if call.arguments.get("dry_run"):
            return await self._dry_run(event)
        outcome = await self.desk.change(call, self.arrival(event))
        return {"v": 1, "job": await self._outcome(outcome)}

    async def _dry_run(self, event: Submission) -> Body:
        """Where a job would go now, or why it would wait or be refused; nothing is kept."""
        if isinstance(event, Refused):
            raise InvalidJob(event.faults)
        if not isinstance(event, Submitted):
            raise RequestError("only a job can be tried", field="dry_run")
        planner, now = self.seat.planner, self.seat.clock.now()
        if not ids.is_assigned_id(event.id):
            event = replace(event, known=await self.store.get_done(event.tenant, event.id))
        event = replace(event, ended=await look_ups.states_awaited(self.store, event))
        found = await self.desk.walk(lambda cluster: reads.trial(cluster, planner, event, now))
        return {"v": 1, "dry_run": found}

    async def _why(self, call: Call) -> Body:
        tenant, text = call.tenant_asked(), call.text("id")
        now = self.seat.clock.now()
        view = await self.desk.walk(lambda cluster: reads.why_of(cluster, tenant, text, now))
        if view is None:
            document = await self._find_done(tenant, text)
            view = not_waiting(document["id"], document["state"])
        return {"v": 1, "why": view}

    def arrival(self, event: Submission) -> Arrival:
        """An event with what it needs looked up among ended jobs while it waits for its turn. New
        jobs are refused while the storage is full."""
        if self.operators.storage is not None:
            event = self.operators.storage.admit(event)
        return look_ups.arrival(self.store, event)

    async def _cancel(self, call: Call) -> Body:
        tenant = call.tenant_asked()
        document = await self._document(tenant, call.text("id"))
        reason = call.arguments.get("reason")
        event = CancelRequested(
            tenant=tenant,
            id=document["id"],
            actor=call.user,
            message=reason if isinstance(reason, str) else None,
            ref=call,
        )
        outcome = await self.desk.change(call, self.arrival(event))
        return {"v": 1, "job": await self._outcome(outcome)}

    async def _hold(self, call: Call) -> Body:
        """Hold and release are one kind of request, named by the operation."""
        document = await self._document(call.tenant_asked(), call.text("id"))
        event = HoldRequested(
            tenant=document["tenant"],
            id=document["id"],
            actor=call.user,
            is_hold=call.operation == "hold",
            is_over=document["ended_at"] is not None,
            ref=call,
        )
        outcome = await self.desk.change(call, Arrival(event))
        return {"v": 1, "job": await self._outcome(outcome)}

    async def _job(self, call: Call) -> Body:
        view, document = await self._find(call.tenant_asked(), call.text("id"))
        events = await self._events(document)
        return {"v": 1, "job": job_detail(view, document, events)}

    async def _events(self, document: JobDocument) -> list[Event]:
        subject = subjects.events_of(document["tenant"], document["id"])
        page = await self.bus.jetstream.read_page(
            subjects.EVENTS_STREAM, subject=subject, limit=1000
        )
        found = [cast(Event, codec.decode(m.data, headers=m.headers)) for m in page.messages]
        return sorted(found, key=lambda event: event["at"])

    async def _find(self, tenant: str, text: str) -> tuple[JobView, JobDocument]:
        """A job by id, unique prefix or unique active name, live or kept."""
        now = self.seat.clock.monotonic()

        def read(cluster: Cluster) -> tuple[JobView, JobDocument] | None:
            found = reads.find(cluster, tenant, text)
            if isinstance(found, Job):
                return self._listed(cluster).explained(found, now), job_document(found)
            return None if found is None else (job_list.ended_job(found), found)

        found = await self.desk.read(read)
        if found is not None:
            return found
        document = await self._find_done(tenant, text)
        return job_list.ended_job(document), document

    async def _outcome(self, outcome: Outcome) -> JobView:
        """The job of a submission or a cancel; a burst of them is explained once."""
        key, now = _key(outcome), self.seat.clock.monotonic()

        def read(cluster: Cluster) -> JobView | None:
            job = cluster.jobs.get(key)
            return None if job is None else self._listed(cluster).view(job, now)

        return await self.desk.read(read) or (await self._find(*key))[0]

    async def _document(self, tenant: str, text: str) -> JobDocument:
        """The same without a verdict, which costs a look at every node."""

        def read(cluster: Cluster) -> JobDocument | None:
            found = reads.find(cluster, tenant, text)
            return job_document(found) if isinstance(found, Job) else found

        return await self.desk.read(read) or await self._find_done(tenant, text)

    async def _find_done(self, tenant: str, text: str) -> JobDocument:
        if ids.is_any_id(text):
            document = await look_ups.get_record(self.store, (tenant, text))
            if document is not None:
                return document
        cursor: int | None = 0
        for _ in range(DONE_PAGES_SEARCHED if len(text) >= reads.PREFIX_LENGTH else 0):
            page, cursor = await self.store.list_done(tenant, cursor=cursor or 0)
            found = [kept for kept in page if reads.is_prefix(text, kept["id"])]
            if len(found) == 1:
                return found[0]
            if found or cursor is None:
                break
        raise UnknownThing(
            f"no job {text[:64]} in tenant {tenant}",
            field="id",
            hint="a name stands for a job while it is unfinished; 'gpuyard jobs -a --name NAME' "
            "has the ids of ended ones",
        )

    async def _jobs(self, call: Call) -> Reply:
        """Unfinished jobs in order of acceptance, then, with `all`, the kept ones by their end."""
        arguments = call.arguments
        limit = call.number("limit", default=reads.MAX_PAGE, most=reads.MAX_PAGE)
        keep = job_list.matcher(arguments)
        is_operator = call.tenant == subjects.OPERATOR_TENANT
        everyone = is_operator and arguments.get("tenants") == "all"
        tenant = None if everyone else call.tenant_asked()
        kind, _, place = str(arguments.get("cursor") or "live:0").partition(":")
        position = number_of(place, 0)
        if kind != "live":
            page = await self._ended_page(call, tenant, keep, position, limit)
            return page.reply(None if page.last is None else f"done:{page.last}")
        now = self.seat.clock.monotonic()
        page = await self.desk.walk(
            lambda cluster: fill(
                self._listed(cluster).views(tenant, position, keep, now),
                limit,
                as_json=call.as_json,
            )
        )
        ended = "done:0" if _wants_ended(arguments) else None
        return page.reply(ended if page.last is None else f"live:{page.last}")

    def _listed(self, cluster: Cluster) -> job_list.JobList:
        if self._list is None or self._list.cluster is not cluster:
            self._list = job_list.JobList(cluster)
        return self._list

    async def _ended_page(
        self, call: Call, tenant: str | None, keep: job_list.Filter, position: int, limit: int
    ) -> Page:
        """Kept jobs in order of their end; a page with large specs is read again with fewer."""
        while True:
            documents, cursor = await self.store.list_done(tenant, cursor=position, limit=limit)
            ended = await self.desk.read(partial(reads.without_live, documents=documents))
            views = [view for document in ended if keep(view := job_list.ended_job(document))]
            page = fill(((None, view) for view in views), limit, as_json=call.as_json)
            if len(page.items) == len(views) or limit == 1:
                return replace(page, last=cursor)
            limit = max(1, limit // 2)

    async def _wait(self, call: Call) -> Body:
        timeout_s = call.seconds("timeout_s", default=MAX_WAIT_S, most=MAX_WAIT_S)
        document = await self._document(call.tenant_asked(), call.text("id"))
        if document["ended_at"] is None:
            key = (document["tenant"], document["id"])
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(key, [])
            waiting.append(future)
            await asyncio.wait({future}, timeout=timeout_s)
            waiting.remove(future)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]
        view, _ = await self._find(document["tenant"], document["id"])
        return {"v": 1, "job": view}

    async def _logs(self, call: Call) -> Body:
        document = await self._document(call.tenant_asked(), call.text("id"))
        return await stored_logs.page(self.bus.jetstream, document, call)


def _key(outcome: Outcome) -> JobKey:
    if outcome.key is None:
        raise RequestError("the yard gave no answer to that")
    return outcome.key


def _wants_ended(arguments: Mapping[str, Any]) -> bool:
    asked = set(arguments.get("state") or ())
    return bool(arguments.get("all")) or bool(asked & {str(state) for state in FINAL_STATES})
