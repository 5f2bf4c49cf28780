"""From a body that somebody sent to a `JobSpec`, or to every fault it has."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from gpuyard.errors import FieldFault, InvalidJob
from gpuyard.model.faults import faults_of
from gpuyard.model.job import JobSpec
from gpuyard.model.plain import unusable

_LATER: Final = (
    ("enforcement", "a floor of enforcement"),
    ("stdin", "standard input"),
)


def parse_spec(body: Mapping[str, Any]) -> JobSpec:
    """The spec of a submitted body.

    Raises InvalidJob with one fault per wrong field. Keys of the envelope (`v`, `tenant`,
    `dry_run`) are passed over: the subject says the tenant.
    """
    fields = {key: value for key, value in body.items() if key not in ("v", "tenant", "dry_run")}
    if faults := [*unusable(fields), *_unreadable(fields)]:
        raise InvalidJob(faults)
    try:
        spec = JobSpec.model_validate(fields)
    except ValidationError as error:
        raise InvalidJob(list(faults_of(error, JobSpec, fields))) from None
    if later := list(_not_yet(spec)):
        raise InvalidJob(later)
    return spec


def _unreadable(fields: Mapping[str, Any]) -> Iterable[FieldFault]:
    """A name stands in lists and lines, where a line end or an escape would do harm."""
    name = fields.get("name")
    if isinstance(name, str) and not all(c.isprintable() for c in name):
        yield FieldFault("name", "invalid", "holds a control character, which no line can show")


@functools.cache
def _defaults() -> JobSpec:
    """Made once: it costs as much as reading many specs."""
    return JobSpec.model_construct(image="")


def _not_yet(spec: JobSpec) -> Iterable[FieldFault]:
    defaults = _defaults()
    for name, what in _LATER:
        if getattr(spec, name) != getattr(defaults, name):
            yield FieldFault(name, "not_supported_yet", f"{what}: not supported yet")
