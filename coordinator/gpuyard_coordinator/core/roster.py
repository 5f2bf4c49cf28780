"""Unfinished jobs in order of acceptance, for lists that are read page by page."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import Job

_ENDED_KEPT: Final = 1000


@dataclass(slots=True)
class Roster:
    """A page costs a binary search and its own jobs, however many there are.

    It follows the cluster by looking: what is new stands at the end of `cluster.jobs` and has a
    larger `submit_seq` than all that was there before, and what ended is passed over.
    """

    cluster: Cluster
    _everyone: list[tuple[int, JobKey]] = field(default_factory=list)
    _by_tenant: dict[str, list[tuple[int, JobKey]]] = field(default_factory=dict)

    def after(self, submit_seq: int, tenant: str | None) -> Iterator[Job]:
        """Unfinished jobs accepted after this one, oldest first; of all tenants with None."""
        self._catch_up()
        entries = self._everyone if tenant is None else self._by_tenant.get(tenant, [])
        jobs = self.cluster.jobs
        for at in range(bisect_right(entries, submit_seq, key=_seq), len(entries)):
            seq, key = entries[at]
            job = jobs.get(key)
            if job is not None and job.submit_seq == seq:
                yield job

    def _catch_up(self) -> None:
        jobs = self.cluster.jobs
        if len(self._everyone) > 2 * len(jobs) + _ENDED_KEPT:
            self._everyone, self._by_tenant = [], {}
        if self._everyone:
            last = self._everyone[-1][0]
            new = list(takewhile(lambda job: job.submit_seq > last, reversed(jobs.values())))
        else:
            new = list(jobs.values())
        # What came in one batch from the store is in the order of its keys.
        for job in sorted(new, key=lambda job: job.submit_seq):
            entry = (job.submit_seq, job.key)
            self._everyone.append(entry)
            self._by_tenant.setdefault(job.tenant, []).append(entry)


def _seq(entry: tuple[int, JobKey]) -> int:
    return entry[0]
