"""What `gpuyard simulate` does, behind the entry point `simulate` of `gpuyard.commands`.

Documents come read from their files, so that nothing here knows of YAML.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard.messages import VERSION
from gpuyard.model.quantities import counted
from gpuyard_coordinator.record import segments_of
from gpuyard_coordinator.record.frames import is_segment
from gpuyard_coordinator.simulate import documents, openb
from gpuyard_coordinator.simulate.play import Outcome, Progress, play
from gpuyard_coordinator.simulate.plot import svg
from gpuyard_coordinator.simulate.policies import POLICIES
from gpuyard_coordinator.simulate.recorded import read_record
from gpuyard_coordinator.simulate.replay import replay
from gpuyard_coordinator.simulate.workload import (
    BadInput,
    Machine,
    Workload,
    at_load,
    at_speed,
    with_limits,
)

_COLUMNS: Final = (
    ("policy", "policy"),
    ("allocation %", "allocation_percent"),
    ("fragments %", "fragmentation_percent"),
    ("wait mean s", "wait_mean_s"),
    ("p50", "wait_p50_s"),
    ("p95", "wait_p95_s"),
    ("max", "wait_max_s"),
    ("preempted", "preempted"),
    ("never started", "never_started"),
)
Reader = Callable[[str], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Change:
    """What is other than in the source."""

    policies: tuple[str, ...] = ()
    fleet: str | None = None
    tenants: str | None = None
    quotas: tuple[str, ...] = ()
    speed: float | None = None
    load: float | None = None
    mean_runtime_s: float = 3600.0
    jobs: int | None = None
    limit_factor: float | None = None
    seed: int = 0

    @property
    def is_none(self) -> bool:
        plain = (self.fleet, self.tenants, self.speed, self.load, self.limit_factor)
        return not self.policies and not self.quotas and all(each is None for each in plain)


def simulate(
    source: str,
    change: Mapping[str, Any],
    read_documents: Reader,
    progress: Progress,
    plot: str | None = None,
) -> tuple[int, dict[str, Any], str]:
    """(exit code, the answer for programs, the same for people).

    `change` has the fields of `Change`. A record without any is replayed: the code is 1 where a
    decision comes out another way. Raises BadInput or BadRecord.
    """
    path, wanted = Path(source), Change(**change)
    for policy in wanted.policies:
        if policy not in POLICIES:
            raise BadInput(f"--policy {policy}: there are {', '.join(POLICIES)}")
    if not path.exists():
        raise BadInput(f"{source}: there is no such file or folder")
    if _is_record(path) and wanted.is_none:
        return _replay(path, progress)
    workload = _changed(_read(path, wanted, read_documents), wanted, read_documents)
    if not workload.arrivals:
        raise BadInput(f"{source}: there is no job in it that ran")
    policies = wanted.policies or ("ours",)
    outcomes = [play(workload, each, seed=wanted.seed, progress=progress) for each in policies]
    if plot is not None:
        Path(plot).write_text(svg(workload.name, outcomes), encoding="utf-8")
    answer = {
        "v": VERSION,
        "source": source,
        "nodes": len(workload.machines) + len(workload.nodes),
        "gpus": workload.gpus,
        "jobs": len(workload.arrivals),
        "left_out": workload.left_out,
        "policies": [outcome.row() for outcome in outcomes],
    }
    return 0, answer, _table(answer, outcomes)


def _is_record(path: Path) -> bool:
    if path.is_dir():
        return not (path / f"{openb.NODES}.gz").exists() and not (path / openb.NODES).exists()
    return is_segment(path)


def _replay(path: Path, progress: Progress) -> tuple[int, dict[str, Any], str]:
    result = replay(segments_of(path), progress)
    answer = {
        "v": VERSION,
        "source": str(path),
        "decisions": result.decisions,
        "plans": result.plans,
        "began_at": result.began_at,
        "ended_at": result.ended_at,
        "difference": result.difference,
    }
    if result.difference is not None:
        return 1, answer, result.difference
    span = f", {result.began_at} to {result.ended_at}" if result.began_at else ""
    return 0, answer, f"{result.decisions} decisions, all equal ({result.plans} plans{span})"


def _read(path: Path, wanted: Change, read: Reader) -> Workload:
    if _is_record(path):
        return read_record(path.name, segments_of(path))
    with_times = wanted.load is None
    if path.is_dir():
        listed = path / "openb_pod_list_default.csv"
        return openb.read_workload(listed, openb.read_machines(path), with_times=with_times)
    if path.suffix in (".csv", ".gz"):
        if openb.is_node_list(path):
            raise BadInput(f"{path}: a list of nodes is for --fleet; name a list of tasks here")
        machines = [] if wanted.fleet else openb.read_machines(path.parent)
        if wanted.fleet:
            machines = _fleet(wanted.fleet, read)
        listed = path.with_suffix("") if path.suffix == ".gz" else path
        return openb.read_workload(listed, machines, with_times=with_times)
    (document, *more) = read(str(path))
    if more or not documents.is_trace(document):
        raise BadInput(f"{path}: a trace is one document with 'jobs'")
    return documents.read_trace(path, document)


def _changed(workload: Workload, wanted: Change, read: Reader) -> Workload:
    if wanted.fleet is not None:
        workload.machines, workload.nodes = _fleet(wanted.fleet, read), []
    if wanted.tenants is not None:
        workload.tenants = documents.read_tenants(Path(wanted.tenants), read(wanted.tenants))
    owners = (arrival.tenant for arrival in workload.arrivals)
    workload.tenants = documents.with_quotas(workload.tenants, wanted.quotas, owners=owners)
    if not workload.machines and not workload.nodes:
        raise BadInput(f"{workload.name}: it has no nodes; name a fleet with --fleet FILE")
    if wanted.load is not None:
        workload = at_load(
            workload,
            percent=wanted.load,
            mean_runtime_s=wanted.mean_runtime_s,
            jobs=wanted.jobs or len(workload.arrivals),
            seed=wanted.seed,
        )
    if wanted.speed is not None:
        workload = at_speed(workload, wanted.speed)
    if wanted.limit_factor is not None:
        workload = with_limits(workload, wanted.limit_factor)
    return workload


def _fleet(file: str, read: Reader) -> list[Machine]:
    path = Path(file)
    if path.suffix in (".csv", ".gz"):
        return openb.read_machines(path)
    (document, *more) = read(file)
    if more:
        raise BadInput(f"{file}: a fleet is one document")
    return documents.read_fleet(path, document)


def _table(answer: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    rows = [tuple(name for name, _ in _COLUMNS)]
    rows += [tuple(_cell(each.row()[key]) for _, key in _COLUMNS) for each in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    left_out = f", {answer['left_out']} that never ran left out" if answer["left_out"] else ""
    refused = f", {outcomes[0].refused} refused" if outcomes[0].refused else ""
    jobs, nodes, gpus = (counted(answer[noun.lower()], noun) for noun in ("jobs", "nodes", "GPUs"))
    return "\n".join([f"{jobs}{left_out}{refused}, {nodes}, {gpus}", *lines])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
