"""A backup on disk: the documents of a yard's state at one moment.

The file is gzip of lines of JSON in UTF-8 (`zcat FILE | head -1` shows what it is):

1. a header: `gpuyard_backup` (the version of this format, 1), `yard`, `generation`, `sequence` (of
   the state's stream, where it was cut), `taken_at` and `made_by`;
2. a line per document, in order of keys: `key`, `data` (base64 of the stored bytes) and, for what
   is kept for a time, `expires_at`;
3. an end: `documents` (how many) and `sha256` of every byte before this line.

It holds the environment of jobs, secrets included, so it is readable for its owner alone.
"""

import base64
import gzip
import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard.errors import GpuyardError

FORMAT: Final = 1
_KEY: Final = re.compile(r"(?!leader\.|wal\.)[a-z]+(\.[A-Za-z0-9_-]+)*")
"""Documents; what coordinators keep for their own order is in no backup."""
_LEVEL: Final = 3
"""Of compression; more takes longer and saves little."""


class BadBackup(GpuyardError):
    """The file cannot be used; the text names it and says what is wrong."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a key of the bucket holds."""

    data: bytes
    expires_at: str | None = None
    """RFC 3339 in UTC; None where it is kept until it is deleted."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A yard's state at one sequence of its stream."""

    yard: str
    generation: int
    sequence: int
    taken_at: str
    made_by: str
    documents: dict[str, Document]

    def count(self, kind: str) -> int:
        """How many documents of a kind (`job`, `done`, `node`, `tenant`) there are."""
        return sum(key.startswith(f"{kind}.") for key in self.documents)


def write_backup(path: Path, backup: Backup) -> str:
    """Write the whole file or none, mode 0600; returns its checksum. Raises OSError."""
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as raw:
            with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_LEVEL, filename="") as file:
                for line in _lines(backup):
                    digest.update(line)
                    file.write(line)
                end = {"documents": len(backup.documents), "sha256": digest.hexdigest()}
                file.write(_line(end))
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return digest.hexdigest()


def read_backup(path: Path) -> tuple[Backup, str]:
    """The backup and its checksum; raises BadBackup for anything but a whole, unchanged file."""
    digest = hashlib.sha256()
    documents: dict[str, Document] = {}
    header: dict[str, Any] = {}
    end: dict[str, Any] = {}
    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                entry = json.loads(line)
                if "sha256" in entry:
                    end = entry
                    break
                digest.update(line)
                if header:
                    documents[_key(entry)] = _document(entry)
                else:
                    header = _header(path, entry)
    except (EOFError, zlib.error) as fault:
        raise BadBackup(f"{path} is cut off or damaged: {fault}") from fault
    except gzip.BadGzipFile as fault:
        raise BadBackup(f"{path} is no backup of a yard: {fault}") from fault
    except OSError as fault:
        raise BadBackup(f"{path}: {(fault.strerror or str(fault)).lower()}") from fault
    except (ValueError, KeyError, TypeError) as fault:
        raise BadBackup(f"{path} is no backup of a yard: {fault}") from fault
    if end.get("sha256") != digest.hexdigest() or end.get("documents") != len(documents):
        raise BadBackup(f"{path} is not what was written: its checksum differs")
    return Backup(documents=documents, **header), digest.hexdigest()


def _lines(backup: Backup) -> Iterator[bytes]:
    yield _line(
        {
            "gpuyard_backup": FORMAT,
            "yard": backup.yard,
            "generation": backup.generation,
            "sequence": backup.sequence,
            "taken_at": backup.taken_at,
            "made_by": backup.made_by,
        }
    )
    for key, document in sorted(backup.documents.items()):
        entry = {"key": key, "data": base64.b64encode(document.data).decode()}
        if document.expires_at is not None:
            entry["expires_at"] = document.expires_at
        yield _line(entry)


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _header(path: Path, entry: dict[str, Any]) -> dict[str, Any]:
    version = entry["gpuyard_backup"]
    if version != FORMAT:
        raise BadBackup(f"{path} has format {version}, and this program reads {FORMAT}")
    return {
        "yard": str(entry["yard"]),
        "generation": int(entry["generation"]),
        "sequence": int(entry["sequence"]),
        "taken_at": str(entry["taken_at"]),
        "made_by": str(entry["made_by"]),
    }


def _key(entry: dict[str, Any]) -> str:
    key = entry["key"]
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(f"{key!r:.80} is no key of a document")
    return key


def _document(entry: dict[str, Any]) -> Document:
    return Document(base64.b64decode(entry["data"], validate=True), entry.get("expires_at"))


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
