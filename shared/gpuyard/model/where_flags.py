"""Conditions as the command line has them: `--where`, `--gpu-model`, `--gpu-memory`, `--cuda`."""

import re

from gpuyard.model.measures import quantity
from gpuyard.model.where import Condition, parse, shown


def check_command_line(text: str) -> Condition:
    """The condition of one `--where`; a bare key is what the shell leaves of an unquoted `>`.

    Raises ValueError as `parse`, and for a bare key with the hint to quote.
    """
    condition = parse(text)
    if condition.op == "has":
        raise ValueError(
            f"'{shown(text)}' compares with nothing: quote the line, as 'gpu-memory>=24', or the "
            f"shell takes > for itself; for any value write '{shown(condition.key)}=*'"
        )
    return condition


def from_gpu_model(text: str) -> str:
    """The line of a `--gpu-model`: whole words of the GPU's name, in any case.

    `RTX 4090`, `rtx4090` and `4090` take NVIDIA-GeForce-RTX-4090; `A10` takes NVIDIA-A10 but not
    NVIDIA-A100; `A100|H100` takes either; `A100*` leaves the end open.
    """
    globs: dict[str, None] = {}
    for part in text.split("|"):
        name = re.sub(r"\b([rg]tx)(?=\d)", r"\1-", part, flags=re.IGNORECASE)
        name = re.sub(r"(?<=\d)(ti|super)\b", r"-\1", name, flags=re.IGNORECASE)
        name = re.sub(r"[^A-Za-z0-9._*-]+", "-", name.strip()).strip("-._")
        if "," in part or not re.search(r"[A-Za-z0-9]", name):
            raise ValueError(f"'{shown(text)}' is no GPU model; write 'RTX 4090' or 'A100|H100'")
        heads = [""] if name.startswith("*") else ["", "*-"]
        tails = [""] if name.endswith("*") else ["", "-*"]
        globs |= {head + name + tail: None for head in heads for tail in tails}
    return str(parse("gpu-name=" + "|".join(globs)))


def from_gpu_memory(text: str) -> str:
    """The line of a `--gpu-memory`: at least so much, as `24`, `24G` or `24GB+`, or with an OP."""
    op, value = _shorthand(text)
    size = quantity(value)
    if size is None or size.number is None or size.number <= 0:
        raise ValueError(f"'{shown(text)}' is no GPU memory; write 24, 24GB, 24576MiB or '<=24'")
    return str(parse(f"gpu-memory{op}{value}"))


def from_cuda(text: str) -> str:
    """The line of a `--cuda`: at least this version, as `12.1`, or with an OP.

    A third part is dropped: drivers name the CUDA version they support by two.
    """
    op, value = _shorthand(text)
    version = quantity(value)
    if version is None or version.parts is None:
        raise ValueError(f"'{shown(text)}' is no CUDA version; write 12.1 or '=12'")
    return str(parse(f"gpu-cuda-version{op}{'.'.join(value.split('.')[:2])}"))


def _shorthand(text: str) -> tuple[str, str]:
    """(OP, value) of a short flag; OP is `>=` unless one is written."""
    match = re.fullmatch(r"(>=|<=|>|<|=)?(.+?)(\+?)", re.sub(r"\s+", "", text))
    if match is None or (match[1] and match[3]):
        raise ValueError(f"'{shown(text)}' is no bound; write 24, 24+ or '>=24'")
    return match[1] or ">=", match[2]
