"""What a record holds as a workload: its nodes and tenants at the end, and every job that ran."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuyard import codec
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.record import BadRecord, read_frames
from gpuyard_coordinator.simulate.workload import (
    LEAST_S,
    Arrival,
    Workload,
    sorted_by_time,
    well_node,
)


def read_record(name: str, segments: list[Path]) -> Workload:
    """Jobs that never ran are left out and counted; what still ran at the end lasts until then.

    Raises BadRecord.
    """
    jobs: dict[str, dict[str, Any]] = {}
    nodes: dict[str, bytes] = {}
    tenants: dict[str, bytes] = {}
    times: list[str] = []
    for path in segments:
        try:
            for frame in read_frames(path):
                if frame["kind"] in ("turn", "whole"):
                    times.append(frame["now"][1])
                for key, data in frame.get("puts") or frame.get("writes") or ():
                    _take(key, data, jobs, nodes, tenants)
        except (KeyError, TypeError, ValueError) as fault:
            raise BadRecord(f"{path}: a frame cannot be understood: {fault!r}") from fault
    if not times:
        raise BadRecord(f"{name}: nothing was recorded")
    return _workload(name, jobs, nodes, tenants, (_moment(min(times)), _moment(max(times))))


def _take(
    key: str,
    data: bytes | None,
    jobs: dict[str, dict[str, Any]],
    nodes: dict[str, bytes],
    tenants: dict[str, bytes],
) -> None:
    kind, _, name = key.partition(".")
    if kind in ("job", "done") and data is not None:
        jobs[name] = codec.decode_own(data)
    elif kind in ("node", "tenant"):
        kept = nodes if kind == "node" else tenants
        if data is None:
            kept.pop(name, None)
        else:
            kept[name] = data


def _workload(
    name: str,
    jobs: Mapping[str, dict[str, Any]],
    nodes: Mapping[str, bytes],
    tenants: Mapping[str, bytes],
    span: tuple[float, float],
) -> Workload:
    workload = Workload(name)
    for data in nodes.values():
        node = documents.node_from_document(codec.decode_own(data))  # type: ignore[arg-type]
        workload.nodes.append(well_node(node.name, node.facts))
    for tenant, data in tenants.items():
        document = codec.decode_own(data)
        workload.tenants[tenant] = {key: document[key] for key in document if key != "v"}
    for job in jobs.values():
        lasts_s = _lasts(job, span[1])
        if lasts_s is None:
            workload.left_out += 1
            continue
        at_s = max(0.0, _moment(job["submitted_at"]) - span[0])
        workload.arrivals.append(Arrival(at_s, job["tenant"], job["spec"], lasts_s))
    workload.arrivals = sorted_by_time(workload.arrivals)
    return workload


def _lasts(job: Mapping[str, Any], end: float) -> float | None:
    """How long its last attempt that ran did so; None where none did."""
    for attempt in reversed(job["attempts"]):
        if attempt["started_at"] is not None:
            ended = _moment(attempt["ended_at"]) if attempt["ended_at"] else end
            return max(LEAST_S, ended - _moment(attempt["started_at"]))
    return None


def _moment(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
