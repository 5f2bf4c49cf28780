"""MIG: the instances that a GPU is split into, as NVML tells of them. Nothing here changes them.

Each instance is a GPU of its own; the GPU that is split takes no work itself. Part of the NVML
child process: only light imports.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

_ENABLED: Final = 1
_NOT_SUPPORTED: Final = 3
_NOT_FOUND: Final = 6
_FUNCTION_NOT_FOUND: Final = 13
_NAMED: Final = re.compile(r"\s+MIG\s+(\S*\dg\.\d+gb\S*)$")
_EIGHTHS: Final = 8
"""Memory is split in eighths; profiles are named after their part of the whole, not after what the
driver leaves of it."""
_T = TypeVar("_T")


class MigReader(Protocol):
    """The calls of the NVML binding that are made here."""

    def nvmlDeviceGetMigMode(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any: ...
    def nvmlDeviceGetAttributes(self, handle: Any) -> Any: ...


class Guard(Protocol):
    """Makes a call: what it returns and None, or None and NVML's error code."""

    def read_or_code(self, call: Callable[[], _T | None]) -> tuple[_T | None, int | None]: ...


class Split(NamedTuple):
    """How a GPU is split."""

    is_split: bool
    """True in MIG mode, with or without instances."""
    instances: list[Any]
    """Their handles, in the driver's order."""
    is_known: bool
    """False where NVML did not tell all of it."""


_WHOLE: Final = Split(False, [], True)


def read_split(nvml: MigReader, guard: Guard, handle: Any) -> Split:
    mode, code = guard.read_or_code(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    if mode is None:
        return _WHOLE._replace(is_known=code in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, -1))
    if mode != _ENABLED:
        return _WHOLE
    count, _ = guard.read_or_code(lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)))
    found, is_known = list[Any](), count is not None
    for slot in range(count or 0):
        instance, code = guard.read_or_code(
            lambda slot=slot: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)  # type: ignore[misc]
        )
        if instance is not None:
            found.append(instance)
        elif code != _NOT_FOUND:
            is_known = False
    return Split(True, found, is_known)


def read_profile(
    nvml: MigReader, guard: Guard, instance: Any, *, name: str | None, parent_mib: int | None
) -> str | None:
    """The profile that an instance's name ends with, else the one that its slices and its part of
    the parent's memory make; None where NVML tells neither."""
    if named := _NAMED.search(name or ""):
        return named[1]
    profile, _ = guard.read_or_code(
        lambda: _profile(nvml.nvmlDeviceGetAttributes(instance), parent_mib)
    )
    return profile


def name_of_card(name: str | None) -> str | None:
    """The name of an instance without what is the instance's own."""
    return None if name is None else _NAMED.sub("", name)


def _profile(attributes: Any, parent_mib: int | None) -> str | None:
    compute, slices = attributes.computeInstanceSliceCount, attributes.gpuInstanceSliceCount
    if not parent_mib or not slices or not compute:
        return None
    eighths = math.ceil(attributes.memorySizeMB * _EIGHTHS / parent_mib)
    gib = math.floor(eighths * math.ceil(parent_mib / 1024) / _EIGHTHS + 0.5)
    part = "" if compute == slices else f"{compute}c."
    return f"{part}{slices}g.{gib}gb"
