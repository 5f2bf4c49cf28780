"""A job's output as the yard keeps it: what there is of it, and its chunks page by page."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

from gpuyard.client.api import Api
from gpuyard.client.jobs import Job
from gpuyard.client.output import AttemptOutput, ShownChunk, of_rank, parse_chunk
from gpuyard.messages import LogChunk

PAGE: Final = 256
"""Chunks asked for at once, so that little of a long output is in memory at a time."""


def why_none(job: Job, attempt: int | None, rank: int | None) -> str | None:
    """What is asked for that the job does not have; None where it may have written something."""
    if job.view.get("array"):
        return f"job {job.id} is an array: name a task of it, as {job.id}_N"
    nodes = (job.view.get("spec") or {}).get("nodes") or 1
    if rank is not None and rank >= nodes:
        return f"job {job.id} has no rank {rank}: it has {nodes}, from 0"
    attempts = job.view.get("attempts") or []
    if attempt is not None and attempt not in {item["attempt"] for item in attempts}:
        return f"job {job.id} has no attempt {attempt}: it has {len(attempts)}"
    return None


async def read(
    api: Api, job: Job, attempt: int | None, rank: int | None
) -> AsyncIterator[ShownChunk]:
    """All that is stored now, in order: of one attempt and rank, or of all where these are None."""
    for number, each in _sources(job, attempt, rank):
        output = AttemptOutput(number)
        cursor: str | None = None
        while True:
            chunks, following = await page(
                api, tenant=job.tenant, job=job.id, attempt=number, rank=each, cursor=cursor
            )
            for chunk in chunks:
                for ready in output.feed(chunk):
                    yield of_rank(ready, each)
            if following is None:
                break
            cursor = following
        while output.has_gap:
            for ready in output.skip_gap():
                yield of_rank(ready, each)


async def page(
    api: Api, *, tenant: str, job: str, attempt: int, rank: int | None, cursor: str | None
) -> tuple[list[LogChunk], str | None]:
    """Some chunks of one attempt from `cursor` on, and the cursor of those behind them; None where
    no more is stored now."""
    body = {"id": job, "tenant": tenant, "attempt": attempt, "rank": rank}
    answer = await api.call("logs", {**body, "cursor": cursor, "limit": PAGE})
    chunks = [chunk for item in answer["items"] if (chunk := parse_chunk(item))]
    following = answer.get("next")
    return chunks, None if following == cursor else following


def _sources(job: Job, attempt: int | None, rank: int | None) -> Iterator[tuple[int, int | None]]:
    """Attempts of a job, a gang's rank by rank, that are `attempt` and `rank` where those are
    asked for."""
    for item in job.view.get("attempts") or []:
        if attempt not in (None, item["attempt"]):
            continue
        members = item.get("members")
        for each in [None] if members is None else [member["rank"] for member in members]:
            if rank in (None, each or 0):
                yield item["attempt"], each
