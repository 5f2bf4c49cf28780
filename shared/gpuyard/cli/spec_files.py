"""Jobs and tenants from files: YAML 1.2 or JSON, with limits on everything a file can blow up.

A key that stands twice is refused, and so are values that only YAML has (dates, sets, binary),
since a reader would not get what the writer saw.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

from gpuyard import codec, small_files
from gpuyard.cli.ending import UsageFault
from gpuyard.errors import RemoteProtocolError

MAX_DEPTH: Final = 32
MAX_ALIASES: Final = 100
MAX_NODES: Final = 100_000
MAX_DOCUMENTS: Final = 1000
_YAML_ONLY: Final = {
    "bytes": "binary data",
    "date": "a date",
    "datetime": "a date with a time",
    "TimeStamp": "a date with a time",
    "set": "a set",
}


def read_specs(path: str) -> list[dict[str, Any]]:
    """Every job of the file (`-` is stdin), one per YAML document; raises UsageFault."""
    return read_documents(path, "job", "image: …")


def places(path: str, count: int) -> list[str]:
    """Where each of the documents of a file stands, in words."""
    shown = "stdin" if path == "-" else path
    return [shown] if count == 1 else [f"{shown}: document {n}" for n in range(1, count + 1)]


def read_documents(path: str, what: str, example: str) -> list[dict[str, Any]]:
    """Every `what` of the file, a map a document; raises UsageFault."""
    shown = "stdin" if path == "-" else path
    text = _read(path, shown)
    if path.endswith(".json") or text.lstrip()[:1] == "{":
        try:
            return [codec.decode(text.encode(), headers={codec.CONTENT_TYPE: codec.JSON_TYPE})]
        except RemoteProtocolError as fault:
            if path.endswith(".json") or "stands twice" in str(fault):
                raise UsageFault(f"{shown}: {str(fault).replace('the body', 'it', 1)}") from fault
    found = _documents(text, shown)
    for document in found:
        if not isinstance(document, dict):
            raise UsageFault(f"{shown}: a {what} is a map of names to values, as '{example}'")
        _check(document, shown, what)
    if not found:
        raise UsageFault(f"{shown}: there is no {what} in it")
    return found


def _read(path: str, shown: str) -> str:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(small_files.MAX_BYTES + 1)
            small_files.check_size(data)
        else:
            data = small_files.read_bytes(path)
    except OSError as fault:
        raise UsageFault(f"{shown}: {(fault.strerror or str(fault)).lower()}") from fault
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise UsageFault(f"{shown}: it is not UTF-8 (byte {fault.start})") from fault


def _documents(text: str, shown: str) -> list[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        _check_events(text, shown)
        documents = list(YAML(typ="safe", pure=True).load_all(text))
    except YAMLError as fault:
        raise UsageFault(f"{shown}: {_yaml_line(fault)}") from fault
    except (RecursionError, ValueError) as fault:
        raise UsageFault(f"{shown}: it is not YAML: {fault}") from fault
    return [document for document in documents if document is not None]


def _check_events(text: str, shown: str) -> None:
    """Depth and aliases, told from the stream of events before anything is built."""
    from ruamel.yaml import YAML
    from ruamel.yaml.events import (
        AliasEvent,
        CollectionEndEvent,
        CollectionStartEvent,
        DocumentStartEvent,
    )

    depth = aliases = documents = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        elif isinstance(event, AliasEvent):
            aliases += 1
        elif isinstance(event, DocumentStartEvent):
            documents += 1
        if depth > MAX_DEPTH:
            raise UsageFault(f"{shown}: it is nested more than {MAX_DEPTH} deep")
        if aliases > MAX_ALIASES:
            raise UsageFault(f"{shown}: it has more than {MAX_ALIASES} aliases")
        if documents > MAX_DOCUMENTS:
            raise UsageFault(f"{shown}: it has more than {MAX_DOCUMENTS} documents")


def _yaml_line(fault: Any) -> str:
    mark = getattr(fault, "problem_mark", None)
    problem = getattr(fault, "problem", None) or str(fault).splitlines()[0]
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return f"{where}{str(problem).splitlines()[0]}"


def _check(document: Any, shown: str, what: str) -> None:
    for count, (path, value) in enumerate(_walk(document, what)):
        if count > MAX_NODES:
            # Aliases count as often as they are used: that is what would be sent.
            raise UsageFault(f"{shown}: it is too large, or its aliases refer to themselves")
        if not isinstance(value, str | int | float | bool | None | list | dict):
            kind = _YAML_ONLY.get(type(value).__name__, "a value that only YAML has")
            raise UsageFault(f"{shown}: {path or 'it'} is {kind}; put it in quotes to keep a text")


def _walk(root: Any, what: str) -> Iterator[tuple[str, Any]]:
    """Every value with its path; what is used twice comes twice."""
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, value = stack.pop()
        yield path, value
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise UsageFault(
                        f"the key {key!r} in {path or f'the {what}'} is no text; quote it"
                    )
                stack.append((f"{path}.{key}" if path else key, item))
        elif isinstance(value, list):
            stack += [(f"{path}[{place}]", item) for place, item in enumerate(value)]
