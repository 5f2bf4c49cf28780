"""The task mix: how often each request was submitted of late.

A request is a `Shape` reduced to what packing prices: CPUs, GPUs or a share of one, and the lines
and models that choose among GPU models. Counts decay by halves, so that the mix follows what the
yard is asked for now; all of it is integers, so that equal submissions give an equal mix.

The placer goes by a copy, which is taken anew now and then and kept with the state: whoever leads
next has the same prices, and counts on from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuyard.model import where
from gpuyard.model.where import Condition
from gpuyard_coordinator.core.headroom import Headroom
from gpuyard_coordinator.core.shapes import Shape

HALVED_EVERY: Final = 20_000
"""Submissions after which all counts halve."""
REQUESTS_KEPT: Final = 512
"""In a copy, and of all that is counted whenever there are four times as many."""
PRICED_EVERY: Final = 1000
"""Submissions after which a new copy is due; it is after fewer while few were seen."""
_PRICED_FIRST: Final = 16
_UNIT: Final = 1024
"""One submission, so that halving a rare request does not drop it at once."""


@dataclass(slots=True)
class Mix:
    counts: dict[Shape, int] = field(default_factory=dict)
    """By request, in 1/1024 submissions."""
    observed: int = 0
    """Submissions since the start; a prior counts for none."""
    next_submit_seq: int = 0
    """Jobs accepted under a smaller number are counted."""
    headroom: Headroom = Headroom.MIDDLE
    """Of a copy: how scarce whole nodes were when it was taken."""

    @classmethod
    def prior(cls) -> "Mix":
        """For a yard that was asked for nothing yet: the powers of two and halves of a GPU, the
        small ones more often. Weighs as much as 31 submissions."""
        sizes = {Shape(gpus=1): 16, Shape(share_core_percent=50.0): 8, Shape(gpus=2): 4}
        sizes |= {Shape(gpus=4): 2, Shape(gpus=8): 1}
        return cls({request: count * _UNIT for request, count in sizes.items()})

    def observe(self, shape: Shape, submit_seq: int = 0) -> None:
        """Counts a submission; the number is the one under which its job was accepted."""
        request = request_of(shape)
        self.counts[request] = self.counts.get(request, 0) + _UNIT
        self.observed += 1
        self.next_submit_seq = max(self.next_submit_seq, submit_seq + 1)
        if self.observed % HALVED_EVERY == 0:
            self._keep(2)
        elif len(self.counts) > 4 * REQUESTS_KEPT:
            self._keep(1)

    def copy(self, headroom: Headroom = Headroom.MIDDLE) -> "Mix":
        """As it is now, without the rarest requests."""
        kept = dict(self.most_common()[:REQUESTS_KEPT])
        return Mix(kept, self.observed, self.next_submit_seq, headroom)

    def is_due(self, priced: "Mix", headroom: Headroom) -> bool:
        """True once so much was submitted since a copy was taken that prices may have moved, or the
        fleet has another headroom."""
        if headroom is not priced.headroom:
            return True
        enough = min(PRICED_EVERY, _PRICED_FIRST + priced.observed // 4)
        return self.observed - priced.observed >= enough

    def most_common(self) -> list[tuple[Shape, int]]:
        """Requests by falling count; those of equal count as first seen."""
        return sorted(self.counts.items(), key=lambda item: -item[1])

    def to_document(self) -> dict[str, Any]:
        """Kept with the state; `from_document` reads it back equal."""
        requests = [{"count": n, **_request_document(r)} for r, n in self.counts.items()]
        return {
            "v": 1,
            "observed": self.observed,
            "next_submit_seq": self.next_submit_seq,
            "headroom": int(self.headroom),
            "requests": requests,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Mix":
        """Of one without a headroom it is `MIDDLE`, as prices were before they followed it.

        Raises KeyError, TypeError or ValueError where the document is none of `to_document`."""
        counts = {_read_request(entry): int(entry["count"]) for entry in document["requests"]}
        headroom = Headroom(document.get("headroom", Headroom.MIDDLE))
        return cls(counts, int(document["observed"]), int(document["next_submit_seq"]), headroom)

    def _keep(self, divisor: int) -> None:
        """The most frequent requests alone, their counts divided."""
        kept = [(request, n // divisor) for request, n in self.most_common() if n >= divisor]
        self.counts = dict(kept[:REQUESTS_KEPT])


def request_of(shape: Shape) -> Shape:
    """What of a shape the mix and the scores depend on. Instances that are named are looked for
    node by node: there is no telling of which profile they are."""
    return Shape(
        gpus=shape.gpus or (0 if shape.names_instances else len(shape.gpu_ids)),
        all_gpus=shape.all_gpus,
        cpu_milli=shape.cpu_milli,
        share_mib=shape.share_mib,
        share_core_percent=shape.share_core_percent,
        where=tuple(filter(is_of_kind, shape.where)) if shape.wants_gpus else (),
        models=shape.models if shape.wants_gpus else None,
        mig=shape.mig,
    )


def is_of_kind(condition: Condition) -> bool:
    """True for a line that chooses among kinds of GPUs: neither the node's nor one that names a
    GPU."""
    return where.is_per_gpu(condition) and condition.key != "gpu-uuid"


_PLAIN_FIELDS: Final = ("gpus", "all_gpus", "cpu_milli", "share_mib", "share_core_percent")


def _request_document(request: Shape) -> dict[str, Any]:
    document = {name: getattr(request, name) for name in _PLAIN_FIELDS}
    if request.mig is not None:
        document["mig"] = request.mig
    document["where"] = [condition.text for condition in request.where]
    document["models"] = None if request.models is None else list(request.models)
    return document


def _read_request(entry: Mapping[str, Any]) -> Shape:
    models = entry["models"]
    return Shape(
        **{name: entry[name] for name in _PLAIN_FIELDS},
        where=tuple(where.parse(line) for line in entry["where"]),
        models=None if models is None else tuple(models),
        mig=entry.get("mig"),
    )
