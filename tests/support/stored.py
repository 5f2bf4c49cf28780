"""What survives a leader, for tests of the core: the store as bytes in dictionaries."""

from dataclasses import dataclass, field
from typing import cast

from gpuyard import codec
from gpuyard.messages import JobDocument
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core import arrays, documents, stored_history
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.state import Now
from tests.support.rebuilt import rebuilt


@dataclass(slots=True)
class Stored:
    """What survives a leader, as bytes."""

    jobs: dict[JobKey, bytes] = field(default_factory=dict)
    done: dict[JobKey, bytes] = field(default_factory=dict)
    nodes: dict[str, bytes] = field(default_factory=dict)
    tenants: dict[str, bytes] = field(default_factory=dict)
    mix: bytes | None = None
    histories: dict[str, bytes] = field(default_factory=dict)

    def take(self, cluster: Cluster, effects: Effects) -> None:
        """One commit, which takes each key once."""
        assert not effects.nodes & effects.forgotten
        for key in effects.jobs:
            if key in cluster.jobs:
                document = documents.job_document(cluster.jobs[key])
                self.jobs[key] = codec.encode(document)
        for key in effects.deleted:
            self.jobs.pop(key, None)
        self.done |= {key: ended.packed for key, ended in effects.done.items()}
        for name in effects.nodes:
            self.nodes[name] = codec.encode(documents.node_document(cluster.nodes[name]))
        for name in effects.forgotten:
            self.nodes.pop(name, None)
        if effects.mix:
            self.mix = codec.encode(cluster.priced.to_document())
        told = {name: stored_history.history_document(cluster, name) for name in effects.histories}
        self.histories |= {name: codec.encode(each) for name, each in told.items()}
        for name in effects.tenants:
            self.tenants.pop(name, None)
            if name in cluster.tenants:
                self.tenants[name] = codec.encode({"v": 1, **cluster.tenants[name]})

    def recovered(self, token: tuple[int, int], now: Now) -> Cluster:
        """The state of a leader that starts from here."""
        return rebuilt(
            yard="yard01",
            token=token,
            jobs=self.jobs.values(),
            nodes=self.nodes.values(),
            tenants=self.tenants.values(),
            mix=self.mix,
            histories=self.histories.values(),
            now=now,
        )

    def kept(self, key: JobKey) -> JobDocument | None:
        """The record of a job that is over."""
        packed = self.done.get(key)
        return None if packed is None else cast(JobDocument, codec.decode(packed))

    def record(self, key: JobKey) -> JobDocument | None:
        """As the leader looks it up: of a task that never started, what its array's says of it."""
        array = arrays.array_key(key)
        record = None if key in self.done or array is None else self.kept(array)
        return self.kept(key) if record is None else arrays.never_started(record, key[1])

    def final_state(self, key: JobKey) -> str | None:
        """As the leader looks it up."""
        record = self.record(key)
        return record["state"] if record is not None and record["spec_sha256"] else None
