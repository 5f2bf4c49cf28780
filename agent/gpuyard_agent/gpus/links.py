"""How the GPUs of a node reach each other.

A link's kind comes from the peer-to-peer status and the number of active NVLink lanes, with the
common ancestor as the fallback: behind a switch a lane does not tell which GPU is at its far end.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from gpuyard.model.node import GpuLink, LinkKind

MAX_LANES: Final = 36
"""More than any GPU has; the first lane that NVML does not know ends the count."""
_P2P_OVER_NVLINK: Final = 2
_P2P_OK: Final = 0
_KINDS: Final[tuple[tuple[int, LinkKind], ...]] = ((20, "pcie"), (40, "numa"), (50, "system"))
"""Highest topology level of each kind: up to a PCIe switch, one NUMA node, across sockets."""


class LinkReader(Protocol):
    """The calls of the NVML binding that are made here."""

    NVMLError: Any

    def nvmlDeviceGetP2PStatus(self, a: Any, b: Any, index: int) -> Any: ...
    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> Any: ...
    def nvmlDeviceGetTopologyCommonAncestor(self, a: Any, b: Any) -> Any: ...


def read_links(nvml: LinkReader, handles: list[tuple[str, Any]]) -> tuple[list[GpuLink], bool]:
    """The link of every pair that NVML can tell of, and whether that is all of them."""
    lanes: dict[str, int] = {}
    links: list[GpuLink] = []
    pairs = list(combinations(handles, 2))
    for (a, at), (b, bt) in pairs:
        if _over_nvlink(nvml, at, bt):
            for uuid, handle in ((a, at), (b, bt)):
                if uuid not in lanes:
                    lanes[uuid] = _active_lanes(nvml, handle)
            links.append(
                {"a": a, "b": b, "kind": "nvlink", "links": min(lanes[a], lanes[b]) or None}
            )
        elif (kind := _by_ancestor(nvml, at, bt)) is not None:
            links.append({"a": a, "b": b, "kind": kind, "links": None})
    return links, len(links) == len(pairs)


def _over_nvlink(nvml: LinkReader, a: Any, b: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetP2PStatus(a, b, _P2P_OVER_NVLINK) == _P2P_OK)
    except (nvml.NVMLError, AttributeError):
        return False


def _active_lanes(nvml: LinkReader, handle: Any) -> int:
    active = 0
    for lane in range(MAX_LANES):
        try:
            active += 1 if nvml.nvmlDeviceGetNvLinkState(handle, lane) else 0
        except (nvml.NVMLError, AttributeError):
            break
    return active


def _by_ancestor(nvml: LinkReader, a: Any, b: Any) -> LinkKind | None:
    try:
        level = nvml.nvmlDeviceGetTopologyCommonAncestor(a, b)
    except (nvml.NVMLError, AttributeError):
        return None
    return next((kind for most, kind in _KINDS if level <= most), "system")
