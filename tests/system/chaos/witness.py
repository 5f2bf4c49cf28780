"""Who looks on while faults are done: the agents' beats as they pass, and at the end the stream of
events, the stored jobs and the lines that the jobs wrote."""

from dataclasses import dataclass, field
from pathlib import Path

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message, Subscription, connect, read_last_values
from gpuyard.errors import ProtocolError
from tests.support.state_bucket import committed
from tests.system.chaos.history import FinalDocument, History, JobEvent, Sighting, Trace

_ALIVE = ("preparing", "running", "stopping")


async def connected(url: str) -> Bus:
    return await connect(url, name="witness", inbox_prefix="_INBOX.witness")


@dataclass(slots=True)
class BeatTap:
    """From when to when beats show each attempt alive, or say afterwards that it was.

    Only simulated nodes: they are named, since the clocks of the others are moved by faults, and
    their jobs leave better traces.
    """

    bus: Bus
    prefix: str
    _seen: dict[tuple[str, str, int, str], list[str]] = field(default_factory=dict)
    _subscription: Subscription | None = None

    async def open(self) -> None:
        self._subscription = await self.bus.agents.subscribe(subjects.BEAT_ALL, self._take)

    async def close(self) -> list[Sighting]:
        assert self._subscription is not None
        await self._subscription.close()
        return [Sighting(*key, *times) for key, times in self._seen.items()]

    def _take(self, message: Message) -> None:
        try:
            beat = message.body()
        except ProtocolError:
            return
        if not beat["node"].startswith(self.prefix):
            return
        for report in beat["attempts"]:
            key = (report["tenant"], report["job"], report["attempt"], beat["node"])
            if report["state"] in _ALIVE:
                self._seen.setdefault(key, [beat["ts"], beat["ts"]])[1] = beat["ts"]
            elif report["started_at"] and report["ended_at"]:
                # It may have gone on while none of its node's beats came through.
                first, last = self._seen.get(key, [report["started_at"], ""])
                self._seen[key] = [first, max(last, report["ended_at"])]


async def unfinished(bus: Bus) -> int:
    """Jobs that are not over, as committed."""
    return sum(key.startswith("job.") for key in await committed(bus))


async def gather(bus: Bus, traces: Path, history: History) -> None:
    """Adds what is left behind: events in their order, jobs as stored, traces."""
    stored = await read_last_values(bus.jetstream, subjects.EVENTS_STREAM, [subjects.EVENTS_ALL])
    for message in sorted(stored, key=lambda message: message.sequence):
        history.add(JobEvent(codec.decode(message.data)))
    for key, data in (await committed(bus)).items():
        if key.startswith(("job.", "done.")):
            document = codec.decode(data)
            if "attempts" in document:
                history.add(FinalDocument(document))
    for line in traces.read_text().splitlines() if traces.exists() else []:
        at, word, tenant, job, attempt, node, *what = line.split()
        history.add(Trace(float(at), word, tenant, job, int(attempt), node, *what))
