"""What operators ask for: nodes' cordons and drains, tenants' documents, the yard's own state.

Until there are credentials per tenant anybody who may speak on the bus is an operator too.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from gpuyard import __version__
from gpuyard.bus import Bus
from gpuyard.errors import RequestError, UnknownThing
from gpuyard.model.quantities import first_named
from gpuyard.model.tenant import DEFAULT_TENANT, parse_tenant, template
from gpuyard_coordinator import reads, yard_counts
from gpuyard_coordinator.calls import Body, Call, Reply
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.events import NodeOrder, TenantApplied, TenantDeleted
from gpuyard_coordinator.desk import Desk, Seat
from gpuyard_coordinator.loop import Arrival
from gpuyard_coordinator.pages import fill
from gpuyard_coordinator.presence import Presence
from gpuyard_coordinator.storage_watch import StorageWatch

LONGEST_DRAIN_S: Final = 30 * 86_400.0
LONGEST_REASON: Final = 256
FORGET_WARNING: Final = (
    "the attempts of {jobs} count as over on your word: if the host still runs, their containers "
    "go on beside new attempts until its agent is back and stops them"
)
JOBS_NAMED: Final = 10
Action = Literal["cordon", "uncordon", "drain", "forget"]


@dataclass(slots=True)
class OperatorServices:
    bus: Bus
    seat: Seat
    desk: Desk
    presence: Presence
    storage: StorageWatch | None = None
    """What the leader knows of the bus's storage; a standby stores nothing."""

    def handlers(self) -> Mapping[str, Callable[[Call], Awaitable[Reply]]]:
        return {
            "nodes": self._nodes,
            "node": self._node,
            "cordon": self._order,
            "uncordon": self._order,
            "drain": self._order,
            "forget": self._order,
            "tenants": self._tenants,
            "tenant": self._tenant,
            "tenant-apply": self._apply,
            "tenant-delete": self._delete,
            "status": self._status,
            "version": self._version,
        }

    async def _nodes(self, call: Call) -> Reply:
        limit = call.number("limit", default=reads.MAX_PAGE, most=reads.MAX_PAGE)
        after = str(call.arguments.get("cursor") or "")
        page = await self.desk.walk(
            lambda cluster: fill(reads.node_views(cluster, after), limit, as_json=call.as_json)
        )
        return page.reply(page.last)

    async def _node(self, call: Call) -> Body:
        return {"v": 1, "node": await self._show_node(call.text("name"))}

    async def _show_node(self, name: str) -> Mapping[str, Any]:
        return await self.desk.read(
            lambda cluster: reads.show_node(cluster, reads.find_node(cluster, name))
        )

    async def _order(self, call: Call) -> Body:
        """cordon, uncordon, drain and forget are one kind of order, named by the operation."""
        name = call.text("name")
        before = await self._show_node(name)
        order = NodeOrder(
            action=cast(Action, call.operation),
            node=name,
            actor=call.user,
            gpu=call.optional_text("gpu"),
            reason=_reason(call),
            deadline_at=self._deadline(call),
            ref=call,
        )
        await self.desk.change(call, Arrival(order))
        if call.operation == "forget":
            jobs = before["jobs"]
            warning = FORGET_WARNING.format(jobs=first_named(jobs, JOBS_NAMED)) if jobs else None
            return {"v": 1, "node": before, "warning": warning}
        return {"v": 1, "node": await self._show_node(name)}

    def _deadline(self, call: Call) -> str | None:
        if call.arguments.get("deadline_s") is None:
            return None
        seconds = call.seconds("deadline_s", default=0.0, most=LONGEST_DRAIN_S)
        moment = datetime.fromtimestamp(self.seat.clock.wall(), UTC) + timedelta(seconds=seconds)
        return self.seat.clock.timestamp(moment)

    async def _tenants(self, call: Call) -> Reply:
        limit = call.number("limit", default=reads.MAX_PAGE, most=reads.MAX_PAGE)
        after = str(call.arguments.get("cursor") or "")
        page = await self.desk.walk(
            lambda cluster: fill(reads.tenant_views(cluster, after), limit, as_json=call.as_json)
        )
        return page.reply(page.last)

    async def _tenant(self, call: Call) -> Body:
        name = call.optional_text("name") or call.text("tenant")
        view = await self.desk.read(lambda cluster: reads.show_tenant(cluster, name))
        is_known = view["exists"] or any(view["used"].values()) or name == DEFAULT_TENANT
        if not is_known:
            hint = "'gpuyard tenants' lists them"
            raise UnknownThing(f"no tenant {name}", code="unknown_tenant", field="name", hint=hint)
        return {"v": 1, "tenant": view}

    async def _apply(self, call: Call) -> Body:
        document = self._document(call)
        name = document["tenant"]
        before = await self.desk.read(lambda cluster: cluster.tenants.get(name))
        changed = before != document
        if call.arguments.get("dry_run"):
            view = await self.desk.read(lambda c: reads.tenant_as(c, document))
            return {"v": 1, "tenant": view, "changed": changed, "before": before}
        await self.desk.change(call, Arrival(TenantApplied(name, document, call.user, call)))
        view = await self.desk.read(lambda cluster: reads.show_tenant(cluster, name))
        return {"v": 1, "tenant": view, "changed": changed, "before": before}

    def _document(self, call: Call) -> dict[str, Any]:
        """A whole document, or the name of a shipped template with the tenant's."""
        body = call.arguments.get("document")
        name = call.optional_text("template")
        if name is not None:
            try:
                return template(name, call.text("tenant")).normalised()
            except ValueError as fault:
                raise RequestError(str(fault), field="template") from fault
        if not isinstance(body, dict):
            raise RequestError("document is required and must be a map", field="document")
        return parse_tenant(body).normalised()

    async def _delete(self, call: Call) -> Body:
        name = call.text("name")
        view = await self.desk.read(lambda cluster: reads.show_tenant(cluster, name))
        await self.desk.change(call, Arrival(TenantDeleted(name, call.user, call)))
        return {"v": 1, "tenant": view}

    async def _status(self, call: Call) -> Body:
        alarms = self.storage.alarms() if self.storage else []
        if self.storage and await self.storage.is_blocked():
            # No turn ends, and what is not committed is not shown.
            unknown = {"nodes": None, "gpus": None, "queue": None}
            return self._yard(self.seat.cluster) | unknown | _health(alarms, is_well=False)

        reasons = yard_counts.Reasons()

        def read(cluster: Cluster) -> Body:
            states = yard_counts.node_totals(cluster)
            counts = {
                "nodes": states,
                "gpus": yard_counts.gpu_totals(cluster),
                "queue": reasons.count(cluster),
            }
            is_well = set(states) <= {"ready"} and not alarms
            return self._yard(cluster) | counts | _health(alarms, is_well=is_well)

        await self._count_ahead()
        while await self.desk.walk(reasons.look_some):
            pass
        return await self.desk.walk(read)

    async def _count_ahead(self) -> None:
        """Of a large fleet's GPUs that were never counted, or changed of late, some a turn: the
        answer is still of one moment, and that waits for none of this."""
        slices = len(self.seat.cluster.nodes) // yard_counts.NODES_AT_ONCE
        for _ in range(slices):
            if not await self.desk.walk(yard_counts.count_some):
                return

    def _yard(self, cluster: Cluster) -> Body:
        return {
            "v": 1,
            "yard": cluster.yard,
            "leader": {"token": list(cluster.token), **self.presence.leader()},
            "standbys": self.presence.standbys(),
            "bus": {"url": self.bus.url, "version": self.bus.server_version},
        }

    async def _version(self, call: Call) -> Body:
        return {"v": 1, "version": __version__, "yard": self.seat.cluster.yard}


def _health(alarms: list[str], *, is_well: bool) -> Body:
    return {"alarms": alarms, "healthy": is_well}


def _reason(call: Call) -> str | None:
    """One line, since tolerations name it and tables show it."""
    text = (call.optional_text("reason") or "").strip()
    if len(text) > LONGEST_REASON or not text.isprintable():
        what = f"reason must be one line of at most {LONGEST_REASON} characters"
        raise RequestError(what, field="reason")
    return text or None
