"""`gpuyard jobs`: the list of jobs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard.cli.completing import node_names
from gpuyard.cli.ending import UsageFault
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.progress import short_id
from gpuyard.cli.render import Column, View, age, local_times, parse_time
from gpuyard.model.states import FINAL_STATES, JobState
from gpuyard.subjects import UNKNOWN_USER

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient

SORTS: Final = {
    "submitted": "submitted_at",
    "started": "started_at",
    "ended": "ended_at",
    "priority": "priority",
    "state": "state",
    "name": "name",
}
STOPPED: Final = ("cancelled", "time_limit", "preempted", "node_drained", "yard_stopped")
"""Why the yard ends a container; its exit code then tells only how it took the signal."""

_STRANGE: Final = "no jobs: tenant {} has no document and no unfinished job; see 'gpuyard tenants'"


@click.command()
@click.option("-a", "--all", "is_all", is_flag=True, help="Finished ones too, as long as kept.")
@click.option("--state", "states", multiple=True, metavar="STATE[,…]", help="Only these states.")
@click.option("--user", metavar="NAME", default=None, help="Only this user's.")
@click.option(
    "--node", metavar="NAME", default=None, shell_complete=node_names, help="Only on this node."
)
@click.option("--name", metavar="NAME", default=None, help="Only those of this name.")
@click.option("--since", metavar="TIME", default=None, help="Submitted since, as 2h or a date.")
@click.option("-A", "--all-tenants", is_flag=True, help="Of every tenant (operators).")
@click.option("--limit", type=click.IntRange(1), metavar="N", default=None, help="The first N.")
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    metavar="KEY",
    default=None,
    help=f"By {', '.join(SORTS)}.",
)
@click.option("--wide", is_flag=True, help="Everything, however wide.")
@click.option("--watch", "is_watching", is_flag=True, help="Go on; show again on every change.")
@global_options
def jobs(wide: bool, is_watching: bool, **values: Any) -> None:
    """List the unfinished jobs of the tenant.

    They come in the order in which they were accepted; with --all those that are over follow, by
    their end, so that the latest stands last.

    \b
      gpuyard jobs -a --since 1d --state failed
      gpuyard jobs --watch
      gpuyard jobs --json | jq -r '.[].id'
    """
    from gpuyard.cli.watch import Watched, list_or_watch

    query = job_query(values, datetime.now(UTC))
    of_all = values["all_tenants"]

    async def fetch(client: "AsyncClient") -> list[View]:
        # What comes first is known only once all are here, so a sorted list is read whole.
        limit = None if values["sort"] else values["limit"]
        found: list[View] = []
        async for page in client.api.pages("jobs", query, limit=limit):
            found += page
        return sort_jobs(found, values["sort"])[: values["limit"]]

    watched = Watched(
        fetch=fetch,
        columns=lambda: job_columns(of_all or wide),
        identity=lambda job: f"{job['tenant']}/{job['id']}",
        key="id",
        empty="no jobs" if values["is_all"] else "no unfinished jobs; -a shows finished ones",
        why_empty=None if of_all else _strange,
        wide=wide,
        last_view=_last_view,
    )
    list_or_watch(watched, current(), is_watching=is_watching, as_operator=of_all)


async def _strange(client: "AsyncClient") -> str | None:
    """That the client's tenant has neither a document nor an unfinished job, where that is so."""
    from gpuyard.errors import UnknownThing

    try:
        await client.tenant()
    except UnknownThing:
        return _STRANGE.format(client.config.tenant)
    return None


async def _last_view(client: "AsyncClient", job: View) -> View:
    """A job that has left the list, as it is now: most often that is its end."""
    from gpuyard.client.follow import LOOK_S

    body = {"id": job["id"], "tenant": job["tenant"], "timeout_s": LOOK_S}
    view: View = (await client.api.call("wait", body))["job"]
    return view


def job_query(values: dict[str, Any], now: datetime) -> dict[str, Any]:
    """The body of the API operation `jobs` that the options mean; raises UsageFault."""
    return {
        "all": values["is_all"],
        "state": chosen_states(values["states"]),
        "user": values["user"],
        "node": values["node"],
        "name": values["name"],
        "since": _since(values["since"], now),
        "sort": values["sort"],
        "tenants": "all" if values["all_tenants"] else None,
    }


def chosen_states(texts: Sequence[str]) -> list[str]:
    """The states of `--state A,B --state C`; raises UsageFault for one that there is not."""
    states = [state.strip() for text in texts for state in text.split(",")]
    for state in states:
        if state not in set(JobState):
            raise UsageFault(f"--state {state!r} is none; the states are {', '.join(JobState)}")
    return states


def sort_jobs(jobs: list[View], order: str | None) -> list[View]:
    """By the named key, what is unknown last, larger priorities first; None keeps the yard's."""
    if order is None:
        return jobs
    key, sign = SORTS[order], -1 if order == "priority" else 1
    known = [job for job in jobs if job[key] is not None]
    known.sort(key=lambda job: sign * job[key] if sign < 0 else job[key])
    return known + [job for job in jobs if job[key] is None]


def _since(text: str | None, now: datetime) -> str | None:
    from gpuyard.model.quantities import parse_duration_s

    if text is None:
        return None
    try:
        then = parse_time(text) or now - timedelta(seconds=parse_duration_s(text))
        # A date that a person typed is one of this machine's clock.
        return then.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError) as fault:
        raise UsageFault(
            f"--since {text!r} is no time; write 90s, 30m, 2h, 1d, {now:%Y-%m-%d} or "
            f"{now:%Y-%m-%dT%H:%M}"
        ) from fault


def job_columns(is_mixed: bool) -> Sequence[Column]:
    """Those of `gpuyard jobs`; with the tenant where several are listed."""
    now = datetime.now(UTC)
    tenant = [Column("TENANT", lambda job: str(job["tenant"]), least=6, drop=2)] if is_mixed else []
    return [
        Column("ID", id_text, least=8),
        Column("NAME", lambda job: job["name"] or "-", least=8, drop=5),
        *tenant,
        Column("USER", user_text, least=5, drop=7),
        Column("STATE", state_text, least=9),
        Column("GPUS", gpus_text, drop=3, is_right=True),
        Column("NODE", node_text, least=6, drop=4),
        Column("AGE", lambda job: age(job["submitted_at"], now), drop=6, is_right=True),
        Column("IMAGE", lambda job: job["image"] or "-", drop=8, only_wide=True),
        Column("WHY", why_text, least=8, drop=1),
    ]


def node_text(job: View) -> str:
    """`n1`, and `n1 +3` for a gang over four nodes."""
    others = len(job.get("nodes") or ()) - 1
    return (job["node"] or "-") + (f" +{others}" if others > 0 else "")


def id_text(job: View) -> str:
    """The id; of an array with the numbers of those tasks that have no line of their own yet."""
    array = job.get("array")
    waiting = f"_[{array['waiting']}]" if array and array["waiting"] else ""
    return f"{short_id(job['id'])}{waiting}"


def array_text(job: View) -> str:
    """What became of an array's tasks: `3 running, 97 succeeded`; empty for any other job."""
    array = job.get("array")
    if not array:
        return ""
    states = array["states"]
    return ", ".join(f"{states[state]} {state}" for state in JobState if states.get(state))


def user_text(job: View) -> str:
    """Whose job it is; `-` where the submission named nobody."""
    return "-" if job["user"] == UNKNOWN_USER else str(job["user"])


def state_text(job: View) -> str:
    """The state, and of a job on a node that is silent or gone, that."""
    if job["node_state"] in ("suspect", "lost"):
        verdict = job["verdict"] or {}
        is_waiting = verdict.get("code") == "node_lost_waiting"
        ago = f" {age(verdict['since'])}" if is_waiting else ""
        return f"{job['state']} (node {job['node_state']}{ago})"
    return str(job["state"])


def gpus_text(job: View) -> str:
    """What the job asked of GPUs: a number, all, or its share."""
    asked = job["gpus_requested"]
    if asked["all"]:
        return "all"
    share = []
    if asked["memory_mib"] is not None:
        memory = asked["memory_mib"]
        share.append(f"{memory // 1024}GiB" if memory % 1024 == 0 else f"{memory}MiB")
    if asked["core_percent"] is not None:
        share.append(f"{asked['core_percent']:g}%")
    if share:
        return ",".join(share)
    count = asked["count"] or len(asked["ids"])
    if asked["mig"]:
        return f"{asked['mig']}:{count}"
    return str(count) if count else "-"


def why_text(job: View) -> str:
    """Why it waits, stops or ended; empty while there is nothing to explain."""
    if job["state"] not in FINAL_STATES and job["verdict"]:
        told = local_times(job["verdict"]["message"] or job["verdict"]["code"])
        tasks = array_text(job)
        return f"{tasks}; {told}" if tasks and told else tasks or told
    if job["state"] in ("running", "queued"):
        return array_text(job)
    if job["state"] == "stopping":
        return local_times(job["reason"] or job["message"] or "")
    if job["state"] in ("failed", "cancelled"):
        has_code = job["exit_code"] is not None and job["reason"] not in STOPPED
        code = f" {job['exit_code']}" if has_code else ""
        told = f": {local_times(job['message'])}" if job["message"] else ""
        return f"{job['reason'] or ''}{code}{told}"
    return ""
