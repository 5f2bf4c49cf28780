"""Fleets, tenants and traces as documents that were read from a file (YAML or JSON) already.

Everything that cannot be meant is one line with the file and the field.
"""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpuyard.errors import InvalidJob, RequestError
from gpuyard.model import ids
from gpuyard.model.intake import parse_spec
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.tenant import parse_tenant
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

MOST_NODES: Final = 100_000
MOST_JOBS: Final = 5_000_000
_LONGEST_S: Final = 100.0 * 366 * 86_400
_TRACE_KEYS: Final = ("v", "nodes", "tenants", "jobs")
_JOB_KEYS: Final = ("at", "lasts", "tenant", "spec")
_NODE_KEYS: Final = (
    *("name", "count", "cpus", "memory_mib", "labels", "driver_version", "cuda_version", "gpus"),
    *("faults", "processes"),
)
_GPU_KEYS: Final = (
    *("name", "count", "memory_mib", "compute_capability", "reserved_mib", "uuids", "minor"),
    *("pci_bus_id", "links"),
)
_NOT_PLAYED: Final = ("after", "array", "deadline", "hold", "not_before")
_CPUS: Final = 64.0
_MEMORY_MIB: Final = 256 * 1024


def is_trace(document: Mapping[str, Any]) -> bool:
    return "jobs" in document


def read_trace(path: Path, document: Mapping[str, Any]) -> Workload:
    """Our own form: `jobs`, each with `at` and `lasts` (seconds, or as 90m), `spec` and perhaps a
    `tenant`; `nodes` as in a fleet file; `tenants`. Raises BadInput."""
    _check_keys(document, _TRACE_KEYS, str(path))
    workload = Workload(path.name)
    if document.get("nodes") is not None:
        workload.machines = read_fleet(path, {"nodes": document["nodes"]})
    if document.get("tenants") is not None:
        workload.tenants = read_tenants(path, _list(document["tenants"], f"{path}: tenants"))
    jobs = _list(document["jobs"], f"{path}: jobs")
    if len(jobs) > MOST_JOBS:
        raise BadInput(f"{path}: jobs: there are {len(jobs)}, the most is {MOST_JOBS}")
    specs: dict[str, Mapping[str, Any]] = {}
    arrivals = [_arrival(job, f"{path}: jobs[{n}]", specs) for n, job in enumerate(jobs)]
    workload.arrivals = sorted_by_time(arrivals)
    return workload


def read_fleet(path: Path, document: Mapping[str, Any]) -> list[Machine]:
    """The nodes of a fleet file, as `gpuyard up --simulate` takes it; what goes wrong on them there
    is not played. Raises BadInput."""
    _check_keys(document, ("nodes", "v"), str(path))
    machines: dict[str, Machine] = {}
    for number, entry in enumerate(_list(document.get("nodes"), f"{path}: nodes")):
        at = f"{path}: nodes[{number}]"
        for machine in _machines(_map(entry, at), at):
            if machine.name in machines:
                raise BadInput(f"{at}.name: {machine.name} stands twice")
            machines[machine.name] = machine
    if not machines:
        raise BadInput(f"{path}: nodes: there is none")
    return list(machines.values())


def read_tenants(path: Path, entries: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Tenants' documents in their kept form, by name; raises BadInput."""
    tenants: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries):
        at = f"{path}: tenant {number + 1}"
        try:
            kept = parse_tenant(_map(entry, at)).normalised()
        except RequestError as fault:
            raise BadInput(f"{at}: {fault}") from None
        if kept["tenant"] in tenants:
            raise BadInput(f"{at}: {kept['tenant']} stands twice")
        tenants[kept["tenant"]] = dict(kept)
    return tenants


def with_quotas(
    tenants: Mapping[str, dict[str, Any]], quotas: Sequence[str], *, owners: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """The tenants with other limits, each given as TENANT=GPUS.

    `owners` are the tenants of jobs. Raises BadInput, also for a tenant that is neither known nor
    has a job: its limit would change nothing.
    """
    known = sorted({*tenants, *owners}) if quotas else []
    changed = dict(tenants)
    for text in quotas:
        name, _, amount = text.partition("=")
        try:
            gpus = float(amount)
        except ValueError:
            raise BadInput(f"--quota {text}: write TENANT=GPUS, as team-a=8") from None
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known[:10])}"
            raise BadInput(f"--quota {text}: there is no tenant {name}; {hint}")
        tenant = changed.get(name, {"tenant": name})
        limits = {**(tenant.get("limits") or {}), "gpus": gpus}
        try:
            changed[name] = dict(parse_tenant({**tenant, "limits": limits}).normalised())
        except RequestError as fault:
            raise BadInput(f"--quota {text}: {fault}") from None
    return changed


def _arrival(entry: Any, at: str, specs: dict[str, Mapping[str, Any]]) -> Arrival:
    job = _map(entry, at)
    _check_keys(job, _JOB_KEYS, at)
    tenant = job.get("tenant", "default")
    if not isinstance(tenant, str) or not ids.is_name(tenant):
        raise BadInput(f"{at}.tenant: {tenant!r} is no tenant's name")
    spec = job.get("spec")
    text = repr(spec)
    if text not in specs:
        try:
            specs[text] = parse_spec({"image": "trace", **_map(spec, f"{at}.spec")}).normalised()
        except InvalidJob as fault:
            raise BadInput(f"{at}.spec: {fault}") from None
    for key in _NOT_PLAYED:
        if specs[text].get(key):
            raise BadInput(f"{at}.spec.{key}: jobs of a trace wait for room alone; leave it out")
    lasts_s = max(LEAST_S, _seconds(job.get("lasts"), f"{at}.lasts"))
    return Arrival(_seconds(job.get("at"), f"{at}.at"), tenant, specs[text], lasts_s)


def _machines(entry: Mapping[str, Any], at: str) -> Iterator[Machine]:
    _check_keys(entry, _NODE_KEYS, at)
    name, count = entry.get("name"), _whole(entry.get("count", 1), f"{at}.count", most=MOST_NODES)
    if not isinstance(name, str) or (count > 1 and "{i}" not in name):
        raise BadInput(f"{at}.name: a text, with {{i}} in it where count is above 1")
    cards: list[Card] = []
    for number, group in enumerate(_list(entry.get("gpus") or [], f"{at}.gpus")):
        cards += _cards(_map(group, f"{at}.gpus[{number}]"), f"{at}.gpus[{number}]")
    if len(cards) > MOST_GPUS:
        raise BadInput(f"{at}.gpus: a node has at most {MOST_GPUS} GPUs")
    labels = _map(entry.get("labels") or {}, f"{at}.labels")
    driver, cuda = entry.get("driver_version"), entry.get("cuda_version")
    for number in range(count):
        named = name.replace("{i}", str(number))
        if not ids.is_name(named):
            raise BadInput(f"{at}.name: {named!r} is no node's name")
        yield Machine(
            name=named,
            cpus=_number(entry.get("cpus", _CPUS), f"{at}.cpus"),
            memory_mib=_whole(entry.get("memory_mib", _MEMORY_MIB), f"{at}.memory_mib"),
            cards=tuple(cards),
            labels={str(key): str(value) for key, value in labels.items()},
            driver_version=None if driver is None else str(driver),
            cuda_version=None if cuda is None else str(cuda),
        )


def _cards(group: Mapping[str, Any], at: str) -> list[Card]:
    _check_keys(group, _GPU_KEYS, at)
    name, memory = group.get("name"), group.get("memory_mib")
    if not isinstance(name, str):
        raise BadInput(f"{at}.name: the name of a model is needed")
    capability = group.get("compute_capability")
    card = Card(
        name,
        None if memory is None else _whole(memory, f"{at}.memory_mib"),
        None if capability is None else str(capability),
    )
    return [card] * _whole(group.get("count", 1), f"{at}.count", most=MOST_GPUS)


def _check_keys(found: Mapping[str, Any], known: Sequence[str], at: str) -> None:
    for key in found:
        if key not in known:
            raise BadInput(f"{at}: unknown key {key!r}; there are {', '.join(known)}")


def _map(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{at}: a map of names to values is needed")
    return value


def _list(value: Any, at: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise BadInput(f"{at}: a list is needed")
    return value


def _number(value: Any, at: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise BadInput(f"{at}: {value!r} is no number from 0")
    return float(value)


def _whole(value: Any, at: str, *, most: int = 1 << 53) -> int:
    number = _number(value, at)
    if number != int(number) or number > most:
        raise BadInput(f"{at}: {value!r} is no whole number from 0 to {most}")
    return int(number)


def _seconds(value: Any, at: str) -> float:
    if isinstance(value, str):
        try:
            value = parse_duration_s(value)
        except ValueError as fault:
            raise BadInput(f"{at}: {fault}") from None
    seconds = _number(value, at)
    if seconds > _LONGEST_S:
        raise BadInput(f"{at}: {seconds:g} seconds are longer than a hundred years")
    return seconds
