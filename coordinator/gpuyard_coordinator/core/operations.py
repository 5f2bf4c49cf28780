"""What operators do to nodes: cordon, uncordon, drain, forget. Each is stored and told by events.

A cordon keeps new work off a node or one GPU of it. A drain is a cordon that ends: with a deadline
what still runs then is asked to stop, as `node_drained`, and goes on elsewhere. Forgetting removes
a node that is gone, on the operator's word that nothing of it runs any more.
"""

from gpuyard.errors import Conflict, RequestError, UnknownThing
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import NodeState, Scheduling
from gpuyard_coordinator.core import filters, lifecycle
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects, Outcome
from gpuyard_coordinator.core.events import NodeOrder
from gpuyard_coordinator.core.state import Cordon, Node, Now


def apply_order(cluster: Cluster, order: NodeOrder, now: Now, effects: Effects) -> None:
    node = cluster.nodes.get(order.node)
    try:
        if node is None:
            raise UnknownThing(f"no node {order.node}", code="unknown_node", field="name")
        _perform(cluster, node, order, now, effects)
    except RequestError as error:
        effects.outcomes.append(Outcome(order.ref, error=error))
        return
    cluster.nodes_changed.add(order.node)
    if order.action != "forget":
        effects.nodes.add(order.node)
    effects.audit(order.actor, order.action, now, after={"node": order.node, "gpu": order.gpu})
    effects.outcomes.append(Outcome(order.ref, node=order.node))


def _perform(cluster: Cluster, node: Node, order: NodeOrder, now: Now, effects: Effects) -> None:
    if order.gpu is not None:
        _order_gpu(node, order, now)
    elif order.action == "forget":
        _forget(cluster, node, now, effects)
    elif order.action == "uncordon":
        node.scheduling, node.scheduling_reason = Scheduling.OPEN, None
        node.drain_deadline_at = None
    else:
        is_drain = order.action == "drain"
        node.scheduling = Scheduling.DRAINING if is_drain else Scheduling.CORDONED
        node.scheduling_reason = order.reason
        node.drain_deadline_at = order.deadline_at if is_drain else None


def _order_gpu(node: Node, order: NodeOrder, now: Now) -> None:
    found = filters.find_ids(node, [order.gpu or ""])
    if found is None:
        raise RequestError(f"no GPU {order.gpu} on node {node.name}", field="gpu")
    uuid = found[0]
    if order.action == "cordon":
        node.cordons[uuid] = Cordon(order.reason, now.at)
    elif order.action == "uncordon":
        node.cordons.pop(uuid, None)
    else:
        raise RequestError(f"{order.action} is for whole nodes; cordon the GPU", field="gpu")
    node.gpus[uuid].cordon = node.cordons.get(uuid)


def _forget(cluster: Cluster, node: Node, now: Now, effects: Effects) -> None:
    if node.state not in (NodeState.LOST, NodeState.SUSPECT) and node.instance:
        raise Conflict(
            f"node {node.name} beats: stop its agent first, or drain it",
            hint="only a node that is gone can be forgotten",
        )
    for job, attempt in list(node.attempts.values()):
        lifecycle.end_attempt(
            cluster,
            job,
            attempt,
            reason=EndReason.NODE_LOST,
            exit_code=None,
            message=f"node {node.name} was forgotten by an operator",
            now=now,
            effects=effects,
        )
    del cluster.nodes[node.name]
    cluster.beat_order.pop(node.name, None)
    effects.nodes.discard(node.name)
    effects.wanted.discard(node.name)
    effects.forgotten.add(node.name)


def judge_drains(cluster: Cluster, now: Now, effects: Effects) -> None:
    """Asks what still runs on a node to end whose drain's deadline is over."""
    for node in cluster.nodes.values():
        if node.drain_deadline_at is None or now.at < node.drain_deadline_at:
            continue
        for job, attempt in node.attempts.values():
            if attempt.stop is None:
                lifecycle.request_stop(
                    cluster,
                    job,
                    reason=EndReason.NODE_DRAINED,
                    actor=None,
                    message=f"the deadline of the drain of {node.name} is over",
                    now=now,
                    effects=effects,
                )
