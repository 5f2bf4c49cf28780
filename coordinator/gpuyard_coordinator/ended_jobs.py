"""Jobs that are over and whose keys are there all the same, since the server brought them back.

`gpuyard.bucket_rules` says how that comes. A reader of the whole bucket leaves them out. The leader
deletes them again, as their records are not kept for ever: it looks once it leads, after each loss
of its connection, which is what the restart of a server looks like from here, and now and then.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from gpuyard import bucket_rules, subjects
from gpuyard.bus import Bus, JetStream, Stored, StreamRefusal, last_values
from gpuyard.errors import Unavailable

QUIET_S: Final = 3.0
"""After a restart others have more urgent questions."""
EVERY_S: Final = 3600.0
_JOB: Final = subjects.state("job.")
_DONE: Final = subjects.state("done.")
log = structlog.get_logger()


async def ended(jetstream: JetStream, stored: Sequence[Stored]) -> set[str]:
    """Of these keys of jobs, as the stream's subjects, those of jobs that are over: the record of
    the end is kept. One question; raises Unavailable."""
    asked = [_DONE + each.subject.removeprefix(_JOB) for each in stored if not each.is_marker]
    if not asked:
        return set()
    records = await jetstream.direct_lasts(subjects.STATE_STREAM, asked)
    return {
        _JOB + record.subject.removeprefix(_DONE)
        for record in records
        if not record.is_marker and bucket_rules.is_end(record.data)
    }


async def watch(bus: Bus, found: Callable[[list[str]], None]) -> None:
    """Until cancelled, hands `found` such keys, by the bucket's own names, as they come up."""
    due = asyncio.Event()
    due.set()
    forget_hook = bus.on_reconnect(due.set)
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await due.wait()
            await asyncio.sleep(QUIET_S)
            due.clear()
            try:
                keys = await _look(bus.jetstream)
            except (Unavailable, StreamRefusal) as fault:
                log.info("ended jobs not looked for", reason=str(fault))
                due.set()
                continue
            if keys:
                log.warning("the server brought back jobs that are over", jobs=len(keys))
                found(keys)
    finally:
        forget_hook()


async def _look(jetstream: JetStream) -> list[str]:
    keys, skip = list[str](), len(subjects.state(""))
    chunks = last_values(
        jetstream, subjects.STATE_STREAM, subjects.state("job.>"), headers_only=True
    )
    async for chunk in chunks:
        keys += [subject[skip:] for subject in sorted(await ended(jetstream, chunk))]
    return keys
