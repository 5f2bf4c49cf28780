"""What a node lets jobs do to it: its operator's file, never the job's to change.

Without a file everything is allowed but what would hand the host over: the engine's socket as a
mount. The coordinator never overrides this.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from gpuyard.errors import GpuyardError
from gpuyard.messages import POLICY_REFUSED

ENGINE_SOCKETS: Final = (
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/podman/podman.sock",
)
"""Whoever talks to one of these is root on the host."""


class PolicyError(GpuyardError):
    """The node's policy file cannot be used; the text names the key."""


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """None allows all. `images` and `networks` are patterns in the manner of a shell's globs."""

    allowed_mounts: tuple[str, ...] | None = None
    """Prefixes of host paths, and names of volumes, that jobs may mount."""
    images: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None


PERMISSIVE: Final = NodePolicy()


def parse_policy(raw: Mapping[str, Any]) -> NodePolicy:
    """The policy of a file's content; raises PolicyError for keys and values it cannot mean."""
    known = {field.name for field in fields(NodePolicy)}
    for key, value in raw.items():
        if key not in known:
            raise PolicyError(f"{key}: unknown key; known are {', '.join(sorted(known))}")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise PolicyError(f"{key}: must be a list of texts")
    return NodePolicy(**{key: tuple(value) for key, value in raw.items()})


def refusals(spec: Mapping[str, Any], policy: NodePolicy) -> list[str]:
    """Why this node does not run the job, one line each; empty where it does."""
    return list(_refusals(spec, policy))


def _refusals(spec: Mapping[str, Any], policy: NodePolicy) -> Iterator[str]:
    image, network = str(spec["image"]), str(spec.get("network", "bridge"))
    sources = [str(mount["source"]) for mount in spec.get("mounts") or ()]
    allowed = policy.allowed_mounts
    for source in sources:  # first, since no other node allows it either
        if _reaches_engine(_path(source)):
            yield f"mounting {source} would hand the host to the job"
    if policy.images is not None and not _matches(image, policy.images):
        yield f"{POLICY_REFUSED} the image {image}"
    if policy.networks is not None and not _matches(network, policy.networks):
        yield f"{POLICY_REFUSED} the network {network}"
    for source in sources:
        if allowed is not None and not _is_below(_path(source), allowed):
            yield f"{POLICY_REFUSED} mounting {source}"


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def _is_below(source: str, prefixes: tuple[str, ...]) -> bool:
    return any(
        prefix == "/" or source == prefix or source.startswith(prefix + "/")
        for prefix in map(_path, prefixes)
    )


def _reaches_engine(source: str) -> bool:
    """True for an engine's socket and for every folder that holds one."""
    return source.startswith("/") and any(
        source == socket or _is_below(socket, (source,)) for socket in ENGINE_SOCKETS
    )


def _path(text: str) -> str:
    """A path in its shortest form, /var/run being /run; a volume's name stays as it is."""
    if not text.startswith("/"):
        return text
    parts: list[str] = []
    for part in re.split(r"/+", text):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    path = "/" + "/".join(parts)
    return path.removeprefix("/var") if re.match(r"/var/run(/|$)", path) else path
