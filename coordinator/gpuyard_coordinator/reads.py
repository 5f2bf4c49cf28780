"""What a reader is shown of the committed state: jobs, nodes and the yard, as views."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpuyard.errors import Conflict, InvalidJob, RequestError
from gpuyard.messages import JobDocument
from gpuyard.model import ids
from gpuyard.model.grace import stop_grace_s
from gpuyard.model.ids import JobKey
from gpuyard.model.job import DEFAULT_PRIORITY
from gpuyard.model.quantities import first_named
from gpuyard.model.states import JobState
from gpuyard.model.tenant import DEFAULT_TENANT, TenantSpec
from gpuyard.views.nodes import GrantView, NodeView, gpu_view, node_view
from gpuyard.views.tenants import TenantView
from gpuyard.views.why import WhyView
from gpuyard_coordinator.core import (
    arrays,
    dependencies,
    documents,
    fairshare,
    fencing,
    filters,
    quota,
    setaside,
    times,
)
from gpuyard_coordinator.core.cluster import Cluster, Use
from gpuyard_coordinator.core.events import Submitted
from gpuyard_coordinator.core.operations import no_node
from gpuyard_coordinator.core.ordering import Rank
from gpuyard_coordinator.core.overtaking import Asked
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.shapes import shape_of
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Job, Node, Now
from gpuyard_coordinator.core.why import not_waiting, why, why_asked

MAX_PAGE: Final = 1000
PREFIX_LENGTH: Final = 4
_IDS_NAMED: Final = 5


def resolve(cluster: Cluster, tenant: str, text: str) -> JobKey | None:
    """The live or lately ended job that an id, a unique prefix or a unique name means.

    None where none is known here; raises RequestError where several are meant.
    """
    exact = (tenant, text)
    if exact in cluster.jobs or exact in cluster.recently_done:
        return exact
    found = {
        key
        for key, job in cluster.jobs.items()
        if key[0] == tenant and (_is_named(job, text) or is_prefix(text, key[1]))
    }
    found |= {key for key in cluster.recently_done if key[0] == tenant and is_prefix(text, key[1])}
    if len(found) > 1:
        several = first_named(sorted(key[1] for key in found), _IDS_NAMED)
        raise RequestError(f"{text} may mean {several}", hint="write more of the id", field="id")
    return found.pop() if found else None


def find(cluster: Cluster, tenant: str, text: str) -> Job | JobDocument | None:
    """The job that a text means, live or as its record has it; as `resolve` otherwise. A task that
    its array has not handed out is shown as the job that it will be."""
    key = resolve(cluster, tenant, text)
    if key is None:
        head, _, number = text.partition("_")
        array = resolve(cluster, tenant, head) if number else None
        found = arrays.pending(cluster, (tenant, f"{array[1]}_{number}")) if array else None
        return None if found is None else arrays.task(cluster, *found)
    return cluster.jobs.get(key) or cluster.recently_done.get(key)


def without_live(cluster: Cluster, documents: Sequence[JobDocument]) -> list[JobDocument]:
    """Kept records but for those of an id that a live job has: a refusal, or a cancel that came
    too early, whose id was then submitted well."""
    return [kept for kept in documents if (kept["tenant"], kept["id"]) not in cluster.jobs]


def is_prefix(text: str, id: str) -> bool:
    """True where a text is the beginning of an id; a task is meant only with its whole number."""
    (head, _, number), (array, _, task) = text.partition("_"), id.partition("_")
    return len(head) >= PREFIX_LENGTH and array.startswith(head) and number == task


def _is_named(job: Job, text: str) -> bool:
    return job.name == text and ids.array_of(job.id) is None


def node_views(cluster: Cluster, after: str) -> Iterator[tuple[str, NodeView]]:
    """Nodes after the name `after`, by name, each with its own."""
    for name in sorted(name for name in cluster.nodes if name > after):
        yield name, show_node(cluster, cluster.nodes[name])


def show_node(cluster: Cluster, node: Node) -> NodeView:
    cpus, memory = filters.cpu_milli_free(node), filters.memory_mib_free(node)
    gpus = []
    takes_work = filters.node_block(node) is None and filters.is_sampled(node)
    for gpu in node.gpus.values():
        is_open = takes_work and gpu.cordon is None
        is_well = is_open and filters.gpu_block(gpu, cluster.settings) is None
        grants: list[GrantView] = [
            {"tenant": tenant, "job": job, "attempt": attempt, "milli": milli}
            for (tenant, job, attempt), milli in gpu.grants.items()
        ]
        gpus.append(
            gpu_view(
                gpu.facts,
                gpu.sample,
                free_milli=gpu.free_milli,
                allocatable_milli=gpu.free_milli if is_well else 0,
                grants=grants,
                cordoned=None if gpu.cordon is None else gpu.cordon._asdict(),
            )
        )
    return node_view(
        name=node.name,
        state=str(node.state),
        scheduling=str(node.scheduling),
        reasons=[*node.reasons, *_own_reasons(node)],
        facts=node.facts,
        boot_id=node.boot_id,
        generation=node.generation,
        cpus_free=None if cpus is None else cpus / 1000,
        memory_free_mib=memory,
        last_beat_at=node.last_beat_at,
        jobs=[f"{job.id}" for job, _ in node.attempts.values()],
        gpus=gpus,
    )


def _own_reasons(node: Node) -> list[Any]:
    """What the coordinator knows of a node and its agent does not say."""
    reasons = []
    if node.rival is not None:
        text = f"machine {node.rival} beats under this name too and is refused"
        reasons.append(("duplicate_name", text))
    if node.is_adopting:
        reasons.append(("adopting", "its agent waits to be told which attempts go on"))
    told: list[Any] = [
        {"code": code, "message": message, "gpu": None, "since": node.last_beat_at}
        for code, message in reasons
    ]
    failing = setaside.reason(node)
    return told if failing is None else [*told, failing]


def tenant_views(cluster: Cluster, after: str) -> Iterator[tuple[str, TenantView]]:
    """Tenants with a document or with jobs, by name, after the name `after`."""
    known = {*cluster.tenants, *(tenant for tenant, _ in cluster.jobs), DEFAULT_TENANT}
    for name in sorted(name for name in known if name > after):
        yield name, show_tenant(cluster, name)


def show_tenant(cluster: Cluster, name: str) -> TenantView:
    return tenant_as(cluster, cluster.tenants.get(name) or {"tenant": name})


def tenant_as(cluster: Cluster, document: Mapping[str, Any]) -> TenantView:
    """A tenant as it would be under this document."""
    name = document["tenant"]
    use, queued = cluster.use.get(name) or Use(), cluster.queue.waiting[name]
    empty = TenantSpec(tenant=name).normalised()
    return {
        "v": 1,
        "tenant": name,
        "exists": name in cluster.tenants,
        "limits": document.get("limits") or empty["limits"],
        "per_job": document.get("per_job") or empty["per_job"],
        "models": document.get("models"),
        "share_across_tenants": bool(document.get("share_across_tenants")),
        "priority": document.get("priority"),
        "weight": document.get("weight"),
        "used": {
            "gpus": use.milli / WHOLE_GPU_MILLI,
            "gpu_memory_gib": use.gpu_memory_mib / 1024,
            "running_jobs": use.running_jobs,
            "queued_jobs": queued,
        },
        "over": quota.over(document, use, queued),
    }


def why_of(cluster: Cluster, tenant: str, text: str, now: Now) -> WhyView | None:
    """Table D of the job that a text means, live or over; None where none is known here."""
    found = find(cluster, tenant, text)
    if found is None or isinstance(found, Job):
        return None if found is None else why(cluster, found, now)
    return not_waiting(found["id"], found["state"])


def trial(cluster: Cluster, planner: Planner, event: Submitted, now: Now) -> dict[str, Any]:
    """Where a job would go now, or why not and when at the earliest; raises what submitting it
    would raise."""
    if taken := id_taken(cluster, event):
        raise taken
    document = cluster.tenants.get(event.tenant)
    spec, notes = quota.with_defaults(event.spec, document)
    shape = shape_of(spec, event.tenant, document)
    queued, tasks = cluster.queue.waiting[event.tenant], arrays.count(spec)
    if refusal := quota.refusal(event.tenant, document, spec, shape, queued, tasks):
        raise InvalidJob((refusal[1],))
    spec = times.settled(fencing.with_rule(spec, cluster.settings), now)
    bad = fencing.fault(spec, cluster.settings) or dependencies.fault(cluster, event)
    if bad := bad or times.fault(spec, now):
        raise InvalidJob((bad,))
    placements = planner.preview(shape)
    rank = Rank(fairshare.priority_of(document), int(spec.get("priority", DEFAULT_PRIORITY)))
    view = why_asked(cluster, Asked(shape, rank, stop_grace_s(spec)), now)
    return {
        "fits": bool(placements),
        "node": placements[0].node if placements else None,
        "nodes": [placement.node for placement in placements],
        "gpus": [uuid for placement in placements for uuid in placement.gpus],
        "verdict": None if placements else view["verdict"],
        "notes": [note for note in (event.note, *notes, *_own_wishes(spec, now)) if note],
        "why": view,
    }


def _own_wishes(spec: Mapping[str, Any], now: Now) -> Iterator[str]:
    """What a job would wait for that a trial does not."""
    if spec.get("hold"):
        yield "it would wait until it is released"
    for item in spec.get("after") or ():
        how = "" if item["when"] == "ended" else f" {item['when']}"
        yield f"it would wait until job {item['job']} has ended{how}"
    if spec.get("not_before") and spec["not_before"] > now.at:
        yield f"it would wait until {spec['not_before']}"


def id_taken(cluster: Cluster, event: Submitted) -> Conflict | None:
    """Why a job that is only tried would not start under its id: another has it already, even if
    that is the same job sent before, or a cancel of it came first."""
    key = (event.tenant, event.id)
    live = cluster.jobs.get(key)
    ended = cluster.recently_done.get(key) or event.known
    kept = documents.job_document(live) if live else ended
    if kept is None:
        return None
    if not kept["spec_sha256"]:
        is_cancelled = kept["state"] == JobState.CANCELLED
        text = f"job {event.id} was cancelled before it was submitted: it will not run"
        return Conflict(text, field="id") if is_cancelled else None
    spec = "this spec" if kept["spec_sha256"] == event.spec_sha256 else "another spec"
    return Conflict(f"job {event.id} exists already with {spec}; it is {kept['state']}", field="id")


def find_node(cluster: Cluster, name: Any) -> Node:
    node = cluster.nodes.get(name) if isinstance(name, str) else None
    if node is None:
        raise no_node(name)
    return node
