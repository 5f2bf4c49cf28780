"""What crosses the bus: events, subjects and the operations of the API."""

from typing import Final

from gpuyard import errors, messages, subjects
from gpuyard.messages import MAX_LOG_CHUNK_BYTES, MAX_SPEC_BYTES, Event, LogChunk
from gpuyard.model.states import EventKind
from gpuyard.model.verdicts import VerdictCode
from gpuyard.views.jobs import HeldGpu, JobView
from gpuyard.views.nodes import GpuView, GrantView, NodeView
from gpuyard.views.tenants import TenantUse, TenantView
from gpuyard.views.why import FullVerdict, LimitView, NodeFit, ReasonView, WhyView
from gpuyard_coordinator.operator_services import OperatorServices
from gpuyard_coordinator.reads import MAX_PAGE
from gpuyard_coordinator.services import MAX_WAIT_S, Services
from reference.markdown import block, code, described, hints, page, table

# What each kind tells, and what its `data` holds.
_KINDS: Final = {
    "accepted": (
        "the job is known and has its id",
        "`unlimited`: true for the first of a tenant without a document, where others have one",
    ),
    "rejected": ("the submission was refused", "`errors`: every fault"),
    "queued": ("it waits; `message` says why", "`code`: the verdict"),
    "verdict": ("why it waits has changed; not sent yet", "`code`: the verdict"),
    "assigned": ("it has a node and its GPUs", "`gpus`: their UUIDs; of a gang `nodes` as well"),
    "preparing": ("the node has taken it and makes ready", ""),
    "pulling": ("the image is being pulled", "`done_bytes`, `total_bytes`"),
    "running": ("its container runs", ""),
    "usage": ("what it has used so far; not sent yet", ""),
    "warning": ("something its owner should know", "after a restore `gpus` that are granted twice"),
    "stopping": ("it was asked to end", "`reason`"),
    "requeued": ("the attempt is over and the job waits again", "`reason` of that attempt"),
    "succeeded": ("it ended with 0", "`exit_code`, `owner`, `log_chunks`"),
    "failed": ("it ended in another way", "`exit_code`, `owner`, `log_chunks`"),
    "cancelled": ("somebody ended it", "`exit_code`, `owner`, `log_chunks`"),
}
_EVENT: Final = {
    "v": "1",
    "seq": "counts within the job, from 1; of a refused submission its place in the stream",
    "at": "RFC 3339, UTC",
    "tenant": "whose job it is",
    "job": "its id",
    "attempt": "which try, from 1",
    "kind": "one of the table above",
    "state": "the job's state after it",
    "node": "where",
    "reason": "an [end reason](end-reasons.md), or null",
    "message": "one line for people",
    "actor": "who caused it, where somebody did",
    "data": "what only this kind has",
}
# Request, reply; `-` where the request is an empty map. Those that are not served are not shown.
_OPERATIONS: Final = {
    "submit": (
        "a [job](job.md); `dry_run: true` only asks",
        "`job`: a job view, or `dry_run`; a refusal has every fault in `error.errors`",
    ),
    "jobs": (
        (
            "`all`, `state` [..], `user`, `node`, `name`, `since`, `limit`, `cursor`; operators: "
            '`tenants: "all"`, `tenant`'
        ),
        "`items`: job views, `next`",
    ),
    "job": ("`id`: an id, its beginning, or a name", "`job`: a job view with its last three keys"),
    "why": ("`id`", "`why`: a [why view](#whyview)"),
    "logs": (
        "`id`, `attempt` (the last one), `rank` of a gang (0), `limit`, `cursor`",
        "`attempt`, `node`, `items`: log records, `next`, `complete`",
    ),
    "wait": (f"`id`, `timeout_s` (at most {MAX_WAIT_S:g})", "`job`: a job view, ended or not"),
    "cancel": ("`id`, `reason`: one line that is kept", "`job`: a job view"),
    "hold": ("`id`: keep it from starting; only a queued job can be held", "`job`: a job view"),
    "release": ("`id`: let a held job start", "`job`: a job view"),
    "nodes": ("`limit`, `cursor`", "`items`: node views, `next`"),
    "node": ("`name`", "`node`: a node view"),
    "cordon": ("`name`, `gpu`, `reason`", "`node`: a node view"),
    "uncordon": ("`name`, `gpu`", "`node`: a node view"),
    "drain": ("`name`, `reason`, `deadline_s`", "`node`: a node view"),
    "forget": ("`name`", "`node`: the last view of it, `warning`"),
    "tenants": ("`limit`, `cursor`", "`items`: tenant views, `next`"),
    "tenant": ("`name`", "`tenant`: a tenant view"),
    "tenant-apply": (
        "`document`: a [tenant](tenant.md), or `template` and `tenant`; `dry_run`",
        "`tenant`: a tenant view, `changed`, `before`: the document it replaced",
    ),
    "tenant-delete": ("`name`", "`tenant`: the last view of it"),
    "status": (
        "-",
        (
            "`yard`, `leader` (`token`, `host`, `pid`, `since`, `refused_writes`, `commits`; where "
            "a standby answers since nobody leads, all but `token` are null), `standbys` (`host`, "
            "`pid`, `since`, `refused_writes`, `ready`), `bus`, `nodes` by state, `gpus` by use, "
            "`queue` by verdict, `alarms`, `healthy`; the counts are null while the "
            "bus stores nothing"
        ),
    ),
    "version": ("-", "`version`, `yard`"),
}
_ERRORS: Final = {
    "invalid": "the request or the job cannot be accepted",
    "unknown_job": "no job of that id, beginning or name in the tenant",
    "unknown_node": "no such node",
    "unknown_tenant": "no such tenant",
    "not_allowed": "the caller may not do that",
    "conflict": "the id stands for another spec already",
    "too_large": f"a job's body is above {MAX_SPEC_BYTES} bytes",
    "no_leader": "no coordinator leads; try again",
    "timeout": "no answer in time; try again",
}
_VIEWS: Final[dict[type, str]] = {
    JobView: "The last three keys are in `job` alone. `--json` prints the same.",
    HeldGpu: "",
    NodeView: "`--json` prints the same.",
    GpuView: "",
    GrantView: "",
    WhyView: "",
    FullVerdict: "",
    LimitView: "",
    NodeFit: "",
    ReasonView: "",
    TenantView: "",
    TenantUse: "",
}
_SUBJECTS: Final = (
    (
        code(subjects.submit("<tenant>") + "[.<user>]"),
        f"stream {code(subjects.SUBMIT_STREAM)}",
        'anyone → coordinator: a [job](job.md), or `{"cancel": id}`',
    ),
    (
        code(subjects.api("<tenant>", "<user>", "<operation>")),
        "request",
        "anyone → coordinator",
    ),
    (
        code("gpuyard.events.<tenant>.<job>.<kind>.<n>"),
        f"stream {code(subjects.EVENTS_STREAM)}",
        "coordinator → anyone: [events](events.md)",
    ),
    (
        code("gpuyard.logs.<tenant>.<job>.<attempt>.<node>"),
        f"stream {code(subjects.LOGS_STREAM)}",
        "agent → anyone: a job's output",
    ),
    (
        code(subjects.audit("<tenant>", "<action>")),
        f"stream {code(subjects.AUDIT_STREAM)}",
        "coordinator → operators: who did what",
    ),
    (
        code(subjects.beat("<node>")),
        "publish with a reply subject",
        "agent → coordinator, every 2 s: what the node has and runs",
    ),
    (
        code(subjects.wanted("<node>")),
        "publish",
        "coordinator → agent: everything the node shall run",
    ),
    (
        code(subjects.command("<node>", "logs")),
        "request",
        "coordinator → agent: output that the bus does not have",
    ),
)


def events_page() -> str:
    kinds = described(map(str, EventKind), _KINDS, "kinds of events")
    return page(
        "Events",
        "Every change of a job is an event, stored for 30 days by the stream "
        f"{code(subjects.EVENTS_STREAM)}. Each has a subject of its own:",
        block("text", subjects.event("<tenant>", "<job>", "<kind>", 0).replace(".0", ".<n>")),
        "`gpuyard events ID` shows those of a job, `gpuyard events` what happens from now on; any "
        f"client may subscribe {code(subjects.events_of('<tenant>'))}.",
        "## Kinds",
        table(["kind", "tells", "in `data`"], ((code(kind), *texts) for kind, texts in kinds)),
        "## Body",
        _keys(Event, _EVENT, "keys of events"),
        "A submission that cannot be accepted gives one `rejected` event. A submission by request "
        "(`gpuyard submit`, the API) is answered instead and leaves none. Each of `data.errors`:",
        block(
            "json",
            '{"field": "comand", "code": "unknown_field", "message": "unknown field", '
            '"did_you_mean": "command"}',
        ),
        "## Verdicts",
        "Why a job waits, in the `code` of its verdict. The list is closed; not all are given yet.",
        ", ".join(code(item) for item in VerdictCode) + ".",
        *_output(),
    )


def _output() -> list[str]:
    subject = subjects.logs("<tenant>", "<job>", 1, "<node>").replace(".1.", ".<attempt>.")
    return [
        "## Output",
        (
            f"{code(subject)}, stored for 7 days by {code(subjects.LOGS_STREAM)}; msgpack records "
            f"of at most {MAX_LOG_CHUNK_BYTES} bytes of output:"
        ),
        table(["key", "type"], ((code(k), kind) for k, kind in hints(LogChunk, _link))),
        (
            "Records of one stream come in the order of `offset`; drop what you have by it. The "
            "order between the two streams is the one in which the agent read them."
        ),
    ]


def api_page() -> str:
    return page(
        "The API",
        *_calling(),
        *_operations(),
        *_errors(),
        "## Subjects",
        table(["subject", "kind", "from → to"], _SUBJECTS),
        f"The state is the key-value bucket {code(subjects.BUCKET)}; nobody but the coordinator "
        "writes it.",
        "## Views",
        "Keys are always there; what is not known is null, never 0.",
        *(part for shape, note in _VIEWS.items() for part in _view(shape, note)),
    )


def _calling() -> list[str]:
    return [
        "Requests of NATS; whoever leads answers. `gpuyard` and the SDK use nothing else.",
        block("text", subjects.api("<tenant>", "<user>", "<operation>")),
        (
            "The body is a map, as JSON or msgpack, and the answer comes in the same form. **The "
            "reply subject must begin with "
            f"{code(subjects.tenant_inbox('<tenant>', '<user>') + '.')}** "
            "of the same tenant and user; a request with any other is not answered at all. With "
            "nats-py that is `inbox_prefix` of `nats.connect`. Operators use the tenant "
            f"{code(subjects.OPERATOR_TENANT)}. There are no credentials per tenant yet: tenant "
            "and user are what the caller says, and whoever may speak on the bus may do all of "
            "this."
        ),
    ]


def _operations() -> list[str]:
    services = object.__new__(Services)
    services.operators = object.__new__(OperatorServices)
    served = list(services._handlers())
    words = {name: text for name, text in _OPERATIONS.items() if name in served}
    return [
        "## Operations",
        table(
            ["operation", "request", "reply, besides `v`"],
            ((code(n), *texts) for n, texts in described(served, words, "operations")),
        ),
        (
            f"A list has at most `limit` items (1 to {MAX_PAGE}) and as many as fit a message; "
            "`next` is the `cursor` of the next page, null on the last. A page may be empty and "
            "still have a next one. Success has the header `Gpuyard-Kind: <operation>.ok`. Bytes "
            "in JSON are base64."
        ),
    ]


def _errors() -> list[str]:
    codes = [*errors._BY_CODE, "no_leader", "timeout"]
    return [
        "## Errors",
        "The header `Nats-Service-Error-Code` has the code, the body says more:",
        block(
            "json",
            '{"v": 1, "error": {"code": "unknown_job", "message": "no job nosuch in tenant '
            'default", "field": "id", "hint": null}}',
        ),
        table(
            ["code", "means"],
            ((code(name), text) for name, text in described(codes, _ERRORS, "error codes")),
        ),
    ]


def _view(shape: type, note: str) -> list[str]:
    rows = ((code(key), kind) for key, kind in hints(shape, _link))
    return [part for part in (f"### {shape.__name__}", note, table(["key", "type"], rows)) if part]


def _keys(shape: type, words: dict[str, str], where: str) -> str:
    kinds = dict(hints(shape, _link))
    return table(
        ["key", "type", "means"],
        ((code(key), kinds[key], text) for key, text in described(kinds, words, where)),
    )


def _link(shape: type) -> str:
    name = shape.__name__
    if shape in _VIEWS:
        return f"[{name}](#{name.lower()})"
    if name == "Event":
        return "[event](events.md#body)"
    inner = ", ".join(code(key) for key in shape.__annotations__)
    return f"{{{inner}}}" if shape.__module__.startswith(messages.__package__ or "") else name
