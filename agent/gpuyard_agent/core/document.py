"""Wanted documents as the agent reads them: checked once at the door, trusted inside.

A document that fails here is as good as not received: what runs is kept, nothing is started.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gpuyard.errors import RemoteProtocolError
from gpuyard.messages import Token, WantedEntry
from gpuyard.model.ids import is_name
from gpuyard_agent.core.launch import AttemptKey

_TEXTS = ("tenant", "job", "user", "machine_id", "boot_id", "spec_sha256")
_GPU_TYPES = {"uuid": str, "milli": int}
_LONGEST_FENCE_S = 1e9
"""Thirty years: what is longer is a mistake, and infinity would be one that nobody notices."""


@dataclass(frozen=True, slots=True)
class Document:
    """The whole wanted set of one node; (token, revision) orders documents."""

    yard: str
    node: str
    token: Token
    revision: int
    entries: dict[AttemptKey, WantedEntry]

    @property
    def order(self) -> tuple[Token, int]:
        return self.token, self.revision


def parse_token(value: object) -> Token:
    """A fencing token from its list form; raises RemoteProtocolError for anything else."""
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int for n in value):
        return int(value[0]), int(value[1])
    raise RemoteProtocolError(f"not a token: {value!r:.80}")


def parse_document(raw: object, *, node: str) -> Document:
    """The document for `node`; raises RemoteProtocolError where any part cannot be trusted."""
    if not isinstance(raw, Mapping):
        raise RemoteProtocolError("a wanted document is a map")
    revision, entries, yard = raw.get("revision"), raw.get("entries"), raw.get("yard")
    if raw.get("node") != node:
        raise RemoteProtocolError(f"a wanted document for {raw.get('node')!r:.80}, not for {node}")
    if not isinstance(yard, str) or not is_name(yard):
        raise RemoteProtocolError(f"a wanted document of no yard: {yard!r:.80}")
    if type(revision) is not int or not isinstance(entries, list):
        raise RemoteProtocolError("a wanted document needs a revision and entries")
    known = {entry_key(entry): entry for entry in _entries(entries)}
    if len(known) != len(entries):
        raise RemoteProtocolError("a wanted document names one attempt twice")
    return Document(yard, node, parse_token(raw.get("token")), revision, known)


def entry_key(entry: WantedEntry) -> AttemptKey:
    return AttemptKey(entry["tenant"], entry["job"], entry["attempt"])


def _entries(raw: list[Any]) -> Iterator[WantedEntry]:
    for entry in raw:
        if not isinstance(entry, Mapping) or not _is_entry(entry):
            shown = entry.get("job") if isinstance(entry, Mapping) else entry
            raise RemoteProtocolError(f"a wanted entry cannot be read: {shown!r:.80}")
        yield cast(WantedEntry, {"name": None, "stop": None} | dict(entry))


def _is_entry(entry: Mapping[str, Any]) -> bool:
    return (
        all(isinstance(entry.get(name), str) for name in _TEXTS)
        and all(_is_token_safe(entry[name]) for name in ("tenant", "job"))
        and type(entry.get("attempt")) is int
        and entry["attempt"] >= 1
        and type(entry.get("generation")) is int
        and isinstance(entry.get("spec"), Mapping)
        and (isinstance(entry["spec"].get("image"), str) or entry.get("stop") is not None)
        and isinstance(entry.get("gpus"), list)
        and all(_is_grant(gpu) for gpu in entry["gpus"])
        and _is_stop(entry.get("stop"))
        and _is_fence(entry.get("fence_s"))
        and _is_gang(entry.get("gang"))
    )


def _is_token_safe(text: str) -> bool:
    """True for what may become part of a subject, a path and a container's name."""
    return 0 < len(text) <= 80 and all(
        char.isascii() and (char.isalnum() or char in "-_") for char in text
    )


def _is_grant(gpu: object) -> bool:
    return isinstance(gpu, Mapping) and all(
        isinstance(gpu.get(name), kind) for name, kind in _GPU_TYPES.items()
    )


def _is_fence(fence_s: object) -> bool:
    is_number = isinstance(fence_s, int | float) and not isinstance(fence_s, bool)
    return fence_s is None or (is_number and 0 < cast(float, fence_s) < _LONGEST_FENCE_S)


def _is_gang(gang: object) -> bool:
    return gang is None or (
        isinstance(gang, Mapping)
        and all(type(gang.get(name)) is int for name in ("rank", "size", "port"))
        and isinstance(gang.get("address"), str)
        and isinstance(gang.get("may_start"), bool)
    )


def _is_stop(stop: object) -> bool:
    return stop is None or (
        isinstance(stop, Mapping)
        and isinstance(stop.get("reason"), str)
        and isinstance(stop.get("signal"), str)
        and isinstance(stop.get("grace_s"), int | float)
    )
