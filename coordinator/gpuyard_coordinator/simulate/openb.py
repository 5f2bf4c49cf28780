"""The public "openb" lists as machines and jobs.

Format: Weng et al., "Beware of Fragmentation" (USENIX ATC 2023). Columns of a node list: `sn`,
`cpu_milli`, `memory_mib`, `gpu` (how many), `model`. Of a list of tasks: `name`, `cpu_milli`,
`memory_mib`, `num_gpu`, `gpu_milli` (per GPU; below 1000 for a share of one); where they are there
`gpu_spec` (models, with `|` between them) and `creation_time`, `scheduled_time`, `deletion_time` in
seconds. The lists say nothing of GPU memory, so each GPU gets an equal one, which binds nothing.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard.errors import InvalidJob
from gpuyard.model.intake import parse_spec
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI
from gpuyard_coordinator.simulate.workload import (
    LEAST_S,
    MOST_GPUS,
    Arrival,
    BadInput,
    Card,
    Machine,
    Workload,
    sorted_by_time,
)

NODES: Final = "openb_node_list_gpu_node.csv"
TENANT: Final = "default"
GPU_MIB: Final = 16_000
_MOST: Final = 1 << 53
_NODE_COLUMNS: Final = ("cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIMES: Final = ("creation_time", "deletion_time")


@dataclass(frozen=True, slots=True)
class Pod:
    """A task of a list; times are None where the list has none."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...]
    """Which it may use; () for any."""
    created_s: float | None
    lasts_s: float | None

    @property
    def is_share(self) -> bool:
        return self.gpus == 1 and self.gpu_milli < WHOLE_GPU_MILLI


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    values: dict[str, str | None]

    def whole(self, column: str, *, most: int = _MOST) -> int:
        text = self.values.get(column) or "0"
        try:
            value = int(text)
        except ValueError:
            raise self.fault(column, f"{text!r} is no whole number") from None
        if not 0 <= value <= most:
            raise self.fault(column, f"{value} is not from 0 to {most}")
        return value

    def time(self, column: str) -> float | None:
        return float(self.whole(column)) if self.values.get(column) else None

    def fault(self, column: str, what: str) -> BadInput:
        return BadInput(f"{self.path}: line {self.line}, column {column}: {what}")


def read_machines(path: Path) -> list[Machine]:
    """The machines of a node list, or of the one in a folder; raises BadInput."""
    found = _find(path / NODES) if path.is_dir() else path
    machines = list[Machine]()
    for row in _rows(found, _NODE_COLUMNS):
        count = row.whole("gpu", most=MOST_GPUS)
        model = row.values["model"] or ""
        if count and not model:
            raise row.fault("model", "it is empty, and the node has GPUs")
        machines.append(
            Machine(
                name=f"n{len(machines):05d}",
                cpus=row.whole("cpu_milli") / 1000,
                memory_mib=row.whole("memory_mib"),
                cards=(Card(model, GPU_MIB),) * count,
            )
        )
    return machines


def read_pods(path: Path, *, with_times: bool = False) -> list[Pod]:
    """The tasks of a list, in its order; raises BadInput, `with_times` also for one without."""
    columns = _POD_COLUMNS + (_TIMES if with_times else ())
    return [_pod(row) for row in _rows(_find(path), columns)]


def read_workload(path: Path, machines: list[Machine], *, with_times: bool) -> Workload:
    """A list as jobs of one tenant. Raises BadInput, also where no machine has a model that a job
    asks for."""
    known = {card.name for machine in machines for card in machine.cards}
    specs: dict[tuple[Any, ...], dict[str, Any]] = {}
    arrivals = []
    for number, pod in enumerate(read_pods(path, with_times=with_times), 2):
        if pod.models and not known.intersection(pod.models):
            raise BadInput(
                f"{path}: line {number}, column gpu_spec: no node has a {'|'.join(pod.models)}; "
                f"the fleet has {', '.join(sorted(known))}"
            )
        key = (pod.cpu_milli, pod.memory_mib, pod.gpus, pod.gpu_milli, pod.models)
        if key not in specs:
            specs[key] = _spec(path, number, pod)
        lasts_s = max(LEAST_S, pod.lasts_s or LEAST_S)
        arrivals.append(Arrival(pod.created_s or 0.0, TENANT, specs[key], lasts_s))
    return Workload(path.name, machines, sorted_by_time(arrivals))


def is_node_list(path: Path) -> bool:
    return "node_list" in path.name


def _pod(row: _Row) -> Pod:
    gpus = row.whole("num_gpu", most=MOST_GPUS)
    milli = row.whole("gpu_milli", most=WHOLE_GPU_MILLI)
    if gpus and not milli:
        raise row.fault("gpu_milli", "it is 0, and the task asks for GPUs")
    if gpus > 1 and milli != WHOLE_GPU_MILLI:
        raise row.fault("gpu_milli", f"{milli} of each of {gpus} GPUs; a share is of one GPU")
    created, deleted = row.time("creation_time"), row.time("deletion_time")
    began = row.time("scheduled_time")
    began = created if began is None else began
    spec = row.values.get("gpu_spec") or ""
    return Pod(
        cpu_milli=row.whole("cpu_milli"),
        memory_mib=row.whole("memory_mib"),
        gpus=gpus,
        gpu_milli=milli,
        models=tuple(filter(None, spec.split("|"))) if gpus else (),
        created_s=created,
        lasts_s=None if began is None or deleted is None else deleted - began,
    )


def _spec(path: Path, line: int, pod: Pod) -> dict[str, Any]:
    body: dict[str, Any] = {"image": "trace", "cpus": pod.cpu_milli / 1000}
    if not pod.cpu_milli:
        del body["cpus"]
    if pod.memory_mib:
        body["memory_mib"] = pod.memory_mib
    if pod.is_share:
        body["gpus"] = {"core_percent": pod.gpu_milli / 10}
    elif pod.gpus:
        body["gpus"] = {"count": pod.gpus}
    if pod.models:
        body["where"] = [f"gpu-name={'|'.join(pod.models)}"]
    try:
        return dict(parse_spec(body).normalised())
    except InvalidJob as fault:
        raise BadInput(f"{path}: line {line}: {fault}") from None


def _find(path: Path) -> Path:
    """The file, or the packed one of that name."""
    for found in (path, path.with_name(f"{path.name}.gz")):
        if found.is_file():
            return found
    raise BadInput(f"{path.parent} has no {path.name} or {path.name}.gz")


def _rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
        reader = csv.DictReader(text.splitlines(), strict=True)
        present = reader.fieldnames or ()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as fault:
        raise BadInput(f"{path}: it cannot be read: {fault}") from fault
    for column in columns:
        if column not in present:
            raise BadInput(f"{path}: line 1: there is no column {column}{_advice(column)}")
    try:
        for values in reader:
            row = _Row(path, reader.line_num, values)
            if any(values.get(column) is None for column in columns) or None in values:
                raise BadInput(f"{path}: line {row.line}: it has not as many columns as line 1")
            yield row
    except csv.Error as fault:
        raise BadInput(f"{path}: line {reader.line_num}: {fault}") from fault


def _advice(column: str) -> str:
    return "; --load draws times at random" if column in _TIMES else ""
