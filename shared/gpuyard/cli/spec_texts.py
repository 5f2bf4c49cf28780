"""Each flag's text as the part of a spec that it means; raises UsageFault with one line."""

import csv
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gpuyard import small_files
from gpuyard.cli.ending import UsageFault
from gpuyard.model.quantities import parse_duration_s, parse_size_mib

if TYPE_CHECKING:
    from datetime import datetime

DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
_NO_EFFECT: Final = frozenset({"rw", "z", "Z", "cached", "delegated", "consistent"})


def size_mib(flag: str, text: str | None) -> int | None:
    """MiB in docker's manner; 0 is docker's word for no limit."""
    if text is None:
        return None
    try:
        return parse_size_mib(text) or None
    except ValueError as fault:
        raise UsageFault(f"{flag}: {fault}") from fault


def duration(flag: str, text: str | None) -> str | None:
    """The text as it stands, once it is known to be one: a refusal then shows what was written."""
    duration_s(flag, text)
    return text


def duration_s(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration_s(text)
    except ValueError as fault:
        raise UsageFault(f"{flag}: {fault}") from fault


def moment(flag: str, text: str | None) -> str | None:
    """A time that a person typed without a zone is one of this machine's clock."""
    if text is None:
        return None
    from datetime import datetime

    from gpuyard.model.moments import parse_moment

    try:
        local = datetime.fromisoformat(text.strip())
    except ValueError:
        local = None
    try:
        if local is not None and local.tzinfo is None and "-" in text.strip()[:5]:
            text = _of_this_clock(local, text)
        parse_moment(text)
    except ValueError as fault:
        raise UsageFault(f"{flag}: {fault}") from fault
    return text


def _of_this_clock(local: "datetime", text: str) -> str:
    try:
        return local.astimezone().isoformat()
    except (OverflowError, ValueError):  # the first and the last day that Python's clock knows
        raise ValueError(f"'{text[:40]}' is no time that this machine's clock can tell") from None


def gpus(text: str | None) -> int | str | None:
    """A number as one; docker's long form without what the yard sets itself; else as it stands."""
    if text is None:
        return None
    cleaned = text.strip()
    if not cleaned.strip("\"'"):
        raise UsageFault("--gpus is empty; write --gpus 0 for none")
    if re.fullmatch("[0-9]{1,18}", cleaned):
        return int(cleaned)
    is_long = re.search(r"capabilities=|driver=|count=|options=", cleaned)
    return _long_gpus(cleaned) if is_long else cleaned


def _long_gpus(cleaned: str) -> int | str:
    kept = []
    for part in next(csv.reader([cleaned]), []):
        name, _, value = part.partition("=")
        if name in ("capabilities", "utility", "compute", "graphics", "video", "display"):
            continue
        if name == "driver" and value == "nvidia":
            continue
        if name == "options":
            raise UsageFault("--gpus: options= cannot be used here; leave it out")
        kept.append(value if name == "count" else part)
    if len(kept) > 1:
        raise UsageFault(f"--gpus: only one of {', '.join(kept)} can be asked for; see README")
    if not kept or kept == ["-1"]:
        return "all"
    return int(kept[0]) if re.fullmatch("[0-9]{1,18}", kept[0]) else kept[0]


def env(texts: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` for the value it has here (left out where it has none)."""
    found: dict[str, str] = {}
    for text in texts:
        name, has_value, value = text.partition("=")
        if not name:
            raise UsageFault(f"-e {text!r} has no name; write -e NAME=VALUE")
        if not has_value:
            if name not in environ:
                continue
            value = environ[name]
        if name == DEVICES:
            raise UsageFault(f"{DEVICES} is set by the yard; {instead_of_devices(value)}")
        found[name] = value
    return found


def instead_of_devices(value: str) -> str:
    """The `--gpus` that means the same as a value of NVIDIA_VISIBLE_DEVICES."""
    cleaned = value.strip()
    if cleaned in ("", "void", "none"):
        return "leave it out: a job without --gpus has none"
    wanted = "all" if cleaned == "all" else f"device={cleaned}"
    return f"use --gpus {wanted} instead"


def env_file(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """docker's format: a `NAME=VALUE` a line, values as they stand, `#` for comments."""
    try:
        content = small_files.read_text(path)
    except OSError as fault:
        raise UsageFault(f"--env-file {path}: {(fault.strerror or str(fault)).lower()}") from fault
    except UnicodeDecodeError as fault:
        raise UsageFault(f"--env-file {path}: it is not UTF-8") from fault
    lines = [line.lstrip() for line in content.splitlines()]
    return env((line for line in lines if line and not line.startswith("#")), environ)


def pairs(texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key:
            raise UsageFault(f"-l {text!r} has no key; write -l KEY=VALUE")
        found[key] = value
    return found


def mount(text: str) -> dict[str, Any]:
    """`SOURCE:TARGET[:OPTIONS]`; a relative source is taken from this folder, as docker does."""
    source, *rest = text.split(":")
    if not source or not rest or len(rest) > 2 or not rest[0]:
        raise UsageFault(f"-v {text!r} is no mount; write -v SOURCE:TARGET or SOURCE:TARGET:ro")
    options = rest[1].split(",") if len(rest) == 2 else []
    unknown = [option for option in options if option not in _NO_EFFECT and option != "ro"]
    if unknown:
        raise UsageFault(f"-v {text!r}: option {unknown[0]!r} cannot be used here; ro and rw can")
    if source.startswith((".", "~")):
        source = os.path.abspath(os.path.expanduser(source))
    return {"source": source, "target": rest[0], "read_only": "ro" in options}


def ulimit(text: str) -> dict[str, Any]:
    name, has_value, value = text.partition("=")
    soft, _, hard = value.partition(":")
    numbers = [soft, hard or soft]
    if not name or not has_value or not all(re.fullmatch(r"-1|\d+", n) for n in numbers):
        raise UsageFault(
            f"--ulimit {text!r} is none; write --ulimit memlock=-1 or nofile=1024:2048"
        )
    return {"name": name, "soft": int(numbers[0]), "hard": int(numbers[1])}


def tmpfs(text: str) -> tuple[str, str]:
    path, _, options = text.partition(":")
    if not path.startswith("/"):
        raise UsageFault(f"--tmpfs {text!r} is no absolute path; write --tmpfs /scratch:size=1g")
    return path, options


def after(text: str) -> dict[str, str]:
    job, _, when = text.partition(":")
    if not job:
        raise UsageFault(f"--after {text!r} names no job; write --after ID or ID:ended")
    return {"job": job, "when": when} if when else {"job": job}


# The rules of `where` load for a job that has a condition: most have none.


def conditions(flag: str, texts: Sequence[str]) -> list[str]:
    """Lines of `where` or `prefer`; a bare key is what an unquoted `>` leaves behind."""
    if not texts:
        return []
    from gpuyard.model import where_flags

    return [_line(flag, text, where_flags.check_command_line) for text in texts]


def gpu_model(text: str) -> str:
    """The line that holds a model, named as a whole or in part."""
    from gpuyard.model import where_flags

    return _line("--gpu-model", text, where_flags.from_gpu_model)


def gpu_memory(text: str) -> str:
    from gpuyard.model import where_flags

    return _line("--gpu-memory", text, where_flags.from_gpu_memory)


def cuda(text: str) -> str:
    from gpuyard.model import where_flags

    return _line("--cuda", text, where_flags.from_cuda)


def check_together(lines: Sequence[str]) -> None:
    """Refuses lines that no GPU could ever satisfy at once."""
    if not lines:
        return
    from gpuyard.model.contradictions import contradiction
    from gpuyard.model.where import parse

    if fault := contradiction(map(parse, lines)):
        raise UsageFault(f"--where: {fault}; leave one out")


def tolerate(text: str) -> str:
    """`cordon` or `cordon:REASON`; nothing else can be tolerated."""
    kind, colon, reason = text.strip().partition(":")
    if kind.strip().casefold() != "cordon" or (colon and not reason.strip()):
        raise UsageFault(
            f"--tolerate {text!r} tolerates nothing; write cordon or cordon:REASON, "
            "as cordon:maintenance"
        )
    return f"cordon:{reason.strip()}" if colon else "cordon"


def _line(flag: str, text: str, read: Callable[[str], object]) -> str:
    try:
        return str(read(text))
    except ValueError as fault:
        raise UsageFault(f"{flag}: {fault}") from fault
