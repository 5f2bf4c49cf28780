"""What operators ask for: nodes' cordons and drains, tenants' documents, the yard's own state.

Until there are credentials per tenant anybody who may speak on the bus is an operator too.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from gpuyard import __version__
from gpuyard.bus import Bus
from gpuyard.errors import RequestError, UnknownThing
from gpuyard.model.tenant import DEFAULT_TENANT, parse_tenant, template
from gpuyard_coordinator import reads
from gpuyard_coordinator.calls import Body, Call
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.events import NodeOrder, TenantApplied, TenantDeleted
from gpuyard_coordinator.desk import Desk
from gpuyard_coordinator.loop import Arrival, Leader
from gpuyard_coordinator.pages import fill

LONGEST_DRAIN_S: Final = 30 * 86_400.0
LONGEST_REASON: Final = 256
FORGET_WARNING: Final = (
    "its attempts count as over on your word: if the host still runs, their containers go on "
    "beside the new attempts until its agent is back"
)
Action = Literal["cordon", "uncordon", "drain", "forget"]


@dataclass(slots=True)
class OperatorServices:
    bus: Bus
    leader: Leader
    desk: Desk

    def handlers(self) -> Mapping[str, Callable[[Call], Awaitable[Body]]]:
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

    async def _nodes(self, call: Call) -> Body:
        limit = call.number("limit", default=reads.MAX_PAGE, most=reads.MAX_PAGE)
        after = str(call.arguments.get("cursor") or "")
        items, last = await self.desk.read(
            lambda cluster: fill(reads.node_views(cluster, after), limit)
        )
        return {"v": 1, "items": items, "next": last}

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
            return {"v": 1, "node": before, "warning": FORGET_WARNING}
        return {"v": 1, "node": await self._show_node(name)}

    def _deadline(self, call: Call) -> str | None:
        if call.arguments.get("deadline_s") is None:
            return None
        seconds = call.seconds("deadline_s", default=0.0, most=LONGEST_DRAIN_S)
        moment = datetime.fromtimestamp(self.leader.clock.wall(), UTC) + timedelta(seconds=seconds)
        return self.leader.clock.timestamp(moment)

    async def _tenants(self, call: Call) -> Body:
        limit = call.number("limit", default=reads.MAX_PAGE, most=reads.MAX_PAGE)
        after = str(call.arguments.get("cursor") or "")
        items, last = await self.desk.read(
            lambda cluster: fill(reads.tenant_views(cluster, after), limit)
        )
        return {"v": 1, "items": items, "next": last}

    async def _tenant(self, call: Call) -> Body:
        name = call.optional_text("name") or call.text("tenant")
        view = await self.desk.read(lambda cluster: reads.show_tenant(cluster, name))
        is_known = view["exists"] or any(view["used"].values()) or name == DEFAULT_TENANT
        if not is_known:
            raise UnknownThing(f"no tenant {name}", code="unknown_tenant", field="name")
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
        leader = self.leader

        def read(cluster: Cluster) -> Body:
            states = Counter(str(node.state) for node in cluster.nodes.values())
            return {
                "v": 1,
                "yard": cluster.yard,
                "leader": {"token": list(cluster.token), "commits": leader.commits},
                "bus": {"url": self.bus.url, "version": self.bus.server_version},
                "nodes": dict(states),
                "gpus": reads.gpu_totals(cluster),
                "queue": reads.queue_by_reason(cluster),
                "healthy": set(states) <= {"ready"},
            }

        return await self.desk.read(read)

    async def _version(self, call: Call) -> Body:
        return {"v": 1, "version": __version__, "yard": self.leader.cluster.yard}


def _reason(call: Call) -> str | None:
    """One line, since tolerations name it and tables show it."""
    text = (call.optional_text("reason") or "").strip()
    if len(text) > LONGEST_REASON or not text.isprintable():
        what = f"reason must be one line of at most {LONGEST_REASON} characters"
        raise RequestError(what, field="reason")
    return text or None
