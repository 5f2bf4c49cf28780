"""Frames of turns as the leader takes them, and of a snapshot that is spread over many turns.

Rules of this file:
1. It looks and changes nothing; what it keeps is plain values and bytes that are encoded anyway.
2. A turn costs what changed in it. A snapshot is taken in pieces, a few documents a turn, while the
   turns go on: a later document of a key replaces an earlier one.
3. A turn is left out only where its plan asked for no job, so that no later plan depends on it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from gpuyard import __version__, subjects
from gpuyard.model.ids import JobKey
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core import documents, images
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.conditions import NodeCondition, condition_of
from gpuyard_coordinator.core.plan import Plan, Planner
from gpuyard_coordinator.core.state import Now
from gpuyard_coordinator.record.frames import frame
from gpuyard_coordinator.record.segments import Segments
from gpuyard_coordinator.store import Write

PIECES_PER_TURN: Final = 4
JOBS_PER_PIECE: Final = 25
NODES_PER_PIECE: Final = 5
"""Documents of a snapshot that one turn encodes: a millisecond or two in all."""
BUFFER_BYTES: Final = 64 * 1024
FLUSHED_EVERY_S: Final = 1.0
AGAIN_AFTER_S: Final = 60.0
"""A segment that broke is followed by another one so much later."""
_KEPT: Final = ("job.", "node.", "tenant.", "share.", "done.", subjects.MIX_KEY)
_SEGMENTS: Final = 4
"""In which a record is cut, so that a quarter of it goes at a time."""


@dataclass(slots=True)
class Recorder:
    """One leadership's part of the record: `notice` before each plan, `take` once the turn is
    decided, `keep` after its commit. What is taken and never kept is in no record."""

    cluster: Cluster
    planner: Planner
    segments: Segments
    _conditions: dict[str, NodeCondition] = field(default_factory=dict)
    _news: dict[str, NodeCondition] = field(default_factory=dict)
    _moved: set[JobKey] = field(default_factory=set)
    _images: set[str] = field(default_factory=set)
    """Of which other nodes have them."""
    _limit: int = 0
    _next_seq: int = 0
    """What came before the plan has a lower one."""
    _pieces: Iterator[list[tuple[str, bytes]]] | None = None
    """What is left of the snapshot; None once it is whole."""
    _has_begun: bool = False
    _taken: list[bytes] = field(default_factory=list)
    _buffer: list[bytes] = field(default_factory=list)
    """Kept, and not written yet."""
    _buffered: int = 0
    _flushed_at: float = 0.0
    _size: int = 0
    """Of the segment; of that `_snapshot_size` bytes came before it was whole."""
    _snapshot_size: int = 0
    _again_at: float = 0.0

    def notice(self, limit: int) -> None:
        """What a plan of at most `limit` decisions is about to look at."""
        cluster = self.cluster
        self._limit, self._next_seq = limit, cluster.next_submit_seq
        self._moved |= cluster.queue.moved
        self._images |= cluster.images_moved
        for name in cluster.nodes_changed:
            node = cluster.nodes.get(name)
            condition = None if node is None else condition_of(node, cluster.settings)
            if condition is None:
                self._conditions.pop(name, None)
                self._news.pop(name, None)
            elif self._conditions.get(name) != condition:
                self._conditions[name] = self._news[name] = condition

    def take(self, now: Now, plan: Plan, writes: Sequence[Write]) -> None:
        """A turn with what is stored of it, before anything of another one is applied."""
        if self.cluster.untold:
            self._has_begun = False  # nothing is planned; another segment follows once that is over
            return
        if self.segments.is_broken and now.mono < self._again_at:
            return
        if self._must_begin(now):
            self._begin(now)
        elif self._has_begun:
            self._put_turn(now, plan, writes)
        self._news, self._images = {}, set()
        # Tasks that the plan's starts made room for may be parked at once: that is for the next
        # one.
        self._moved = set(self.cluster.queue.moved)
        if self._pieces is not None:
            self._go_on(now, plan)

    def keep(self, now: Now) -> None:
        """The turn that was taken is committed."""
        self._buffer += self._taken
        self._buffered += sum(map(len, self._taken))
        self._taken.clear()
        if self._buffered >= BUFFER_BYTES or now.mono - self._flushed_at >= FLUSHED_EVERY_S:
            self._flushed_at = now.mono
            self._flush()

    def close(self) -> None:
        """No turn comes any more."""
        self._flush()

    def _must_begin(self, now: Now) -> bool:
        if self.segments.is_broken or not self._has_begun:
            return True
        share = self.segments.most_bytes // _SEGMENTS
        if self._pieces is None:
            # As much again as the snapshot took, so that turns are at least half of a record.
            return self._size >= max(share, 2 * self._snapshot_size)
        return False

    def _begin(self, now: Now) -> None:
        cluster = self.cluster
        self._again_at = now.mono + AGAIN_AFTER_S
        self._flush()
        self.segments.begin()
        self._has_begun, self._size, self._snapshot_size = True, 0, 0
        self._put(
            {
                "v": 1,
                "kind": "head",
                "product": __version__,
                "yard": cluster.yard,
                "token": list(cluster.token),
                "at": now.at,
                "settings": asdict(cluster.settings),
                "clock_zero_ms": cluster.clock_zero_ms,
            }
        )
        self._pieces = _pieces(cluster)

    def _go_on(self, now: Now, plan: Plan) -> None:
        for _ in range(PIECES_PER_TURN):
            puts = next(self._pieces, None) if self._pieces is not None else None
            if puts is not None:
                self._put({"v": 1, "kind": "piece", "puts": puts})
            elif not plan.is_partial:
                self._put(self._whole(now))
                self._pieces, self._snapshot_size = None, self._size
                return

    def _whole(self, now: Now) -> dict[str, Any]:
        # What the last plan did to nodes is in their documents; with the next one it is no news.
        self.notice(self._limit)
        self._news, cluster = {}, self.cluster
        history = {name: [each.spent, each.until_ms] for name, each in cluster.history.items()}
        return {
            "v": 1,
            "kind": "whole",
            "now": now,
            "nodes": list(cluster.nodes),
            "conditions": self._conditions,
            "parked": [[*key, parked.code] for key, parked in cluster.queue.parked.items()],
            "images": {image: _nodes_with(cluster, image) for image in cluster.images},
            "history": history,
            "planner": self.planner.memory(),
        }

    def _put_turn(self, now: Now, plan: Plan, writes: Sequence[Write]) -> None:
        kept = [(write.key, write.data) for write in writes if write.key.startswith(_KEPT)]
        news = self._news or self._moved or self._images
        if not (kept or news or self.planner.has_looked):
            return
        cluster, parked = self.cluster, self.cluster.queue.parked
        self._put(
            {
                "v": 1,
                "kind": "turn",
                "now": now,
                "limit": self._limit,
                "next_seq": self._next_seq,
                "writes": kept,
                "conditions": self._news,
                "parked": [
                    [*key, parked[key].code if key in parked else None] for key in self._moved
                ],
                "images": {image: _nodes_with(cluster, image) for image in self._images},
                "placed": [(p.tenant, p.job, p.places) for p in plan.placements],
                "stopped": [(p.tenant, p.job, p.by_tenant, p.by_job) for p in plan.preemptions],
            }
        )

    def _put(self, body: dict[str, Any]) -> None:
        data = frame(body)
        self._taken.append(data)
        self._size += len(data)

    def _flush(self) -> None:
        if self._buffer:
            self.segments.put(b"".join(self._buffer))
            self._buffer, self._buffered = [], 0


def _nodes_with(cluster: Cluster, image: str) -> list[str]:
    return sorted(images.present_on(cluster, image))


def _pieces(cluster: Cluster) -> Iterator[list[tuple[str, bytes]]]:
    """The documents of the yard, as they are when each piece is asked for."""
    puts = [
        (subjects.tenant_key(name), fast_codec.encode({"v": 1, **document}))
        for name, document in cluster.tenants.items()
    ]
    puts.append((subjects.MIX_KEY, fast_codec.encode(cluster.priced.to_document())))
    yield puts
    for names in _slices(list(cluster.nodes), NODES_PER_PIECE):
        nodes = [node for name in names if (node := cluster.nodes.get(name)) is not None]
        yield [
            (subjects.node_key(node.name), fast_codec.encode(documents.node_document(node)))
            for node in nodes
        ]
    for keys in _slices(list(cluster.jobs), JOBS_PER_PIECE):
        jobs = [job for key in keys if (job := cluster.jobs.get(key)) is not None]
        yield [(subjects.job_key(*job.key), documents.encode_job(job)) for job in jobs]


def _slices(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
