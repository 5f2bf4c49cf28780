"""What operators do to nodes: cordon, uncordon, drain, forget. Each is stored and told by events.

A cordon keeps new work off a node or one GPU of it. A drain is a cordon that ends: with a deadline
what still runs then is asked to stop, as `node_drained`, and goes on elsewhere. Forgetting removes
a node that is gone, on the operator's word that nothing of it runs any more.
"""

from typing import Final

from gpuyard.errors import Conflict, RequestError, UnknownThing
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import NodeState, Scheduling
from gpuyard_coordinator.core import lifecycle, selection, setaside
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects, Outcome
from gpuyard_coordinator.core.events import NodeOrder
from gpuyard_coordinator.core.state import Cordon, Node, Now

JOBS_NAMED: Final = 20
"""Of those that a forgotten node may still run, in the audit record."""


def no_node(name: object) -> UnknownThing:
    """What is answered where no node has that name."""
    hint = "'gpuyard nodes' lists them"
    return UnknownThing(f"no node {name}", code="unknown_node", field="name", hint=hint)


def apply_order(cluster: Cluster, order: NodeOrder, now: Now, effects: Effects) -> None:
    node = cluster.nodes.get(order.node)
    try:
        if node is None:
            raise no_node(order.node)
        _perform(cluster, node, order, now, effects)
    except RequestError as error:
        effects.outcomes.append(Outcome(order.ref, error=error))
        return
    cluster.nodes_changed.add(order.node)
    effects.outcomes.append(Outcome(order.ref, node=order.node))
    if order.action != "forget":
        effects.nodes.add(order.node)
        after = {"node": order.node, "gpu": order.gpu, "reason": order.reason}
        after |= {"deadline_at": order.deadline_at}
        effects.audit(order.actor, order.action, now, after=after)
        resume(cluster, node)


def resume(cluster: Cluster, node: Node) -> None:
    """Files a node under what is still to be done of its orders."""
    cluster.draining.discard(node.name)
    if node.drain_deadline_at is not None:
        cluster.draining.add(node.name)
    if node.forgotten_by is not None:
        cluster.forgetting.add(node.name)


def _perform(cluster: Cluster, node: Node, order: NodeOrder, now: Now, effects: Effects) -> None:
    if order.gpu is not None:
        _order_gpu(node, order, now)
    elif order.action == "forget":
        _forget(cluster, node, order, now, effects)
    elif order.action == "uncordon":
        node.scheduling, node.scheduling_reason = Scheduling.OPEN, None
        node.drain_deadline_at = None
        setaside.clear(cluster, node, "uncordoned", order.actor, now, effects)
    else:
        is_drain = order.action == "drain"
        node.scheduling = Scheduling.DRAINING if is_drain else Scheduling.CORDONED
        node.scheduling_reason = order.reason
        node.drain_deadline_at = order.deadline_at if is_drain else None


def _order_gpu(node: Node, order: NodeOrder, now: Now) -> None:
    uuid = _find_gpu(node, order)
    if order.action == "cordon":
        node.cordons[uuid] = Cordon(order.reason, now.at)
    elif order.action == "uncordon":
        node.cordons.pop(uuid, None)
    else:
        raise RequestError(f"{order.action} is for whole nodes; cordon the GPU", field="gpu")
    if uuid in node.gpus:
        node.gpus[uuid].cordon = node.cordons.get(uuid)


def _find_gpu(node: Node, order: NodeOrder) -> str:
    """A cordon may be lifted while its GPU is absent; then only the whole UUID names it."""
    asked = order.gpu or ""
    if order.action == "uncordon" and asked in node.cordons:
        return asked
    found = selection.find_ids(node, [asked])
    if found is None:
        raise RequestError(f"no GPU {asked} on node {node.name}", field="gpu")
    return found[0]


def _forget(cluster: Cluster, node: Node, order: NodeOrder, now: Now, effects: Effects) -> None:
    if node.state not in (NodeState.LOST, NodeState.SUSPECT):
        raise Conflict(
            f"node {node.name} beats: stop its agent first, or drain it",
            hint="only a node that is gone can be forgotten",
        )
    node.forgotten_by = order.actor
    effects.nodes.add(node.name)
    jobs = [f"{tenant}/{id}" for tenant, id, _ in node.attempts]
    after = {"node": node.name, "attempts": len(jobs), "jobs": jobs[:JOBS_NAMED]}
    effects.audit(order.actor, order.action, now, after=after)
    resume(cluster, node)
    go_on_forgetting(cluster, now, effects)


def go_on_forgetting(cluster: Cluster, now: Now, effects: Effects) -> None:
    """Ends the attempts of forgotten nodes, as many as the turn has room for; a node leaves with
    its last one."""
    for name in sorted(cluster.forgetting):
        node = cluster.nodes[name]
        for job, attempt in list(node.attempts.values()):
            if not effects.has_room():
                return
            lifecycle.end_attempt(
                cluster,
                job,
                attempt,
                reason=EndReason.NODE_LOST,
                message=f"node {name} was forgotten by {node.forgotten_by}",
                proof=f"operator {node.forgotten_by} forgot node {name}",
                now=now,
                effects=effects,
            )
        _remove(cluster, node, effects)


def _remove(cluster: Cluster, node: Node, effects: Effects) -> None:
    name = node.name
    del cluster.nodes[name]
    cluster.revision_retired = max(cluster.revision_retired, node.revision)
    cluster.beat_order.pop(name, None)
    for kept in (cluster.forgetting, cluster.draining, cluster.aside):
        kept.discard(name)
    cluster.shrank = True
    cluster.nodes_changed.add(name)
    effects.nodes.discard(name)
    effects.wanted.discard(name)
    effects.beats = [beat for beat in effects.beats if beat.node != name]
    effects.forgotten.add(name)


def judge_drains(cluster: Cluster, now: Now, effects: Effects) -> None:
    """Asks what still runs on a node to end whose drain's deadline is over; a part of it where it
    is more than one commit may hold."""
    for name in sorted(cluster.draining):
        node = cluster.nodes[name]
        if node.drain_deadline_at is None or now.at < node.drain_deadline_at:
            continue
        for job, attempt in node.attempts.values():
            if attempt.stop is None and effects.has_room():
                lifecycle.request_stop(
                    cluster,
                    job,
                    reason=EndReason.NODE_DRAINED,
                    message=f"the deadline of the drain of {node.name} is over",
                    now=now,
                    effects=effects,
                )
