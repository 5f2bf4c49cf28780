"""What a record holds as a workload: its nodes and tenants at the end, and every job that ran.

A job that waited for something else than room, as a hold or another job, comes when that was over.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.record import BadRecord, read_frames
from gpuyard_coordinator.simulate.workload import (
    LEAST_S,
    Arrival,
    Workload,
    sorted_by_time,
    well_node,
)

_WAITED_FOR: Final[dict[str, Any]] = {
    "after": [],
    "hold": False,
    "not_before": None,
    "deadline": None,
}


def read_record(name: str, segments: list[Path]) -> Workload:
    """Jobs that never ran are left out and counted; what still ran at the end lasts until then.

    Raises BadRecord.
    """
    jobs: dict[str, dict[str, Any]] = {}
    nodes: dict[str, bytes] = {}
    tenants: dict[str, bytes] = {}
    times: list[str] = []
    freed: dict[str, list[str]] = {}
    for path in segments:
        try:
            for frame in read_frames(path):
                if frame["kind"] in ("turn", "whole"):
                    times.append(frame["now"][1])
                for tenant, id, code in frame["parked"] if frame["kind"] == "turn" else ():
                    if code is None:
                        freed.setdefault(f"{tenant}.{id}", []).append(frame["now"][1])
                for key, data in frame.get("puts") or frame.get("writes") or ():
                    _take(key, data, jobs, nodes, tenants)
        except (KeyError, TypeError, ValueError) as fault:
            raise BadRecord(f"{path}: a frame cannot be understood: {fault!r}") from fault
    if not times:
        raise BadRecord(f"{name}: nothing was recorded")
    span = (_moment(min(times)), _moment(max(times)))
    return _workload(name, jobs, freed, nodes, tenants, span)


def _take(
    key: str,
    data: bytes | None,
    jobs: dict[str, dict[str, Any]],
    nodes: dict[str, bytes],
    tenants: dict[str, bytes],
) -> None:
    kind, _, name = key.partition(".")
    if kind in ("job", "done") and data is not None:
        jobs[name] = fast_codec.decode_own(data)
    elif kind in ("node", "tenant"):
        kept = nodes if kind == "node" else tenants
        if data is None:
            kept.pop(name, None)
        else:
            kept[name] = data


def _workload(
    name: str,
    jobs: Mapping[str, dict[str, Any]],
    freed: Mapping[str, list[str]],
    nodes: Mapping[str, bytes],
    tenants: Mapping[str, bytes],
    span: tuple[float, float],
) -> Workload:
    workload = Workload(name)
    for data in nodes.values():
        node = documents.node_from_document(fast_codec.decode_own(data))  # type: ignore[arg-type]
        workload.nodes.append(well_node(node.name, node.facts))
    for tenant, data in tenants.items():
        document = fast_codec.decode_own(data)
        workload.tenants[tenant] = {key: document[key] for key in document if key != "v"}
    for key, job in jobs.items():
        if job["spec"].get("array"):
            continue  # its tasks are jobs of their own
        lasts_s = _lasts(job, span[1])
        if lasts_s is None:
            workload.left_out += 1
            continue
        at_s = max(0.0, _came(job, freed.get(key, ())) - span[0])
        spec = job["spec"] | _WAITED_FOR
        workload.arrivals.append(Arrival(at_s, job["tenant"], spec, lasts_s))
    workload.arrivals = sorted_by_time(workload.arrivals)
    return workload


def _came(job: Mapping[str, Any], freed: Sequence[str]) -> float:
    """When nothing but room kept it any more from its first start."""
    first = _moment(job["attempts"][0]["assigned_at"])
    came = [at for at in map(_moment, (job["submitted_at"], *freed)) if at <= first]
    return max(came, default=first)


def _lasts(job: Mapping[str, Any], end: float) -> float | None:
    """How long its last attempt that ran did so; None where none did."""
    for attempt in reversed(job["attempts"]):
        if attempt["started_at"] is not None:
            ended = _moment(attempt["ended_at"]) if attempt["ended_at"] else end
            return max(LEAST_S, ended - _moment(attempt["started_at"]))
    return None


def _moment(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
