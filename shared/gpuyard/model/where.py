"""Conditions on labels: the lines of `where` and `prefer`, and tolerations.

Rules of this file:
1. A line is `key`, `!key` or `key OP value`; its kept form has no blanks round OP and `|`.
2. Values that read as numbers compare as such. Digits with dots are versions: missing parts are 0,
   and `=535` takes 535.183 too. A size counts in GiB, and so does a bare number beside a size.
   All else is text, in which case matters but for what the vendor spells: GPU names and UUIDs.
3. A label that is absent satisfies `!=` and `!key` and nothing else; one that cannot be ordered
   satisfies no order comparison.
4. No label is unknown: a key that no node publishes is no error.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from gpuyard.model import globs

MAX_LINE: Final = 4096
_NODE_FACTS: Final = {"gpu-count", "gpu-cuda-version", "gpu-driver-version", "gpu-runtime"}
_GPU_FACTS: Final = {"compute-capability", "gpu-memory", "gpu-name", "gpu-uuid"}
_VENDOR_SPELT: Final = {"gpu-name", "gpu-uuid"}

_KEY: Final = re.compile(r"\w(?:[\w./-]*\w)?")
_LINE: Final = re.compile(r"([^=!<>]*)([=!<>]+)(.*)")
_NOT_IN_A_LINE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ORDERS: Final = {">": (1,), ">=": (0, 1), "<": (-1,), "<=": (-1, 0)}  # by `_order`
_MEANT: Final = {"==": "=", "=>": ">=", "=<": "<=", "<>": "!=", "=!": "!=", "!==": "!="}
_EXAMPLES: Final = "write zone=a, zone!=a|b, gpu-memory>=24, zone or !zone"

_VERSION: Final = re.compile(r"(?a)\d{1,18}(?:\.\d{1,18})*")
_NUMBER: Final = re.compile(r"(?ai)[+-]?\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?")
_SIZE: Final = re.compile(r"(?ai)(\d{1,18}(?:\.\d{1,18})?) ?(b|[kmgt](?:b|i|ib)?)")
_GIB_PER: Final = {unit: 1024.0 ** (power - 3) for power, unit in enumerate("bkmgt")}


class Quantity(NamedTuple):
    """A value that can be ordered: digits with dots by `version`, anything else by `number`."""

    number: float | None
    """GiB where a unit stands; None for three or more parts."""
    parts: tuple[int, ...] | None = None
    """None for a size and for a number with a sign or an exponent."""
    version: tuple[int, ...] = ()
    """`parts` without zeros at the end, so that comparing tuples takes missing parts as 0."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One alternative of `=` or `!=`, ready to be compared."""

    text: str
    pieces: tuple[str, ...]
    """What stands between the `*`; one piece where there is none."""
    quantity: Quantity | None

    def matches(self, value: str) -> bool:
        if self.quantity is not None and (have := _quantity(value)) is not None:
            return _is_same(self.quantity, have)
        return globs.fits(self.pieces, value)


@dataclass(frozen=True, slots=True)
class Condition:
    """One parsed line; equal to every other that keeps to the same text."""

    text: str
    """The kept form: `parse` reads it back equal."""
    key: str = field(compare=False)
    op: str = field(compare=False)
    """`has`, `lacks`, or the comparison."""
    patterns: tuple[Pattern, ...] = field(default=(), compare=False)
    """The alternatives of `=` and `!=`."""
    bound: Quantity | None = field(default=None, compare=False)
    """What an order comparison compares with."""

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def parse(line: str) -> Condition:
    """The condition that a line of `where` means.

    Raises ValueError with one line that says what is wrong and how to write it.
    """
    cleaned = line.strip()
    if not cleaned:
        raise ValueError(f"an empty line is no condition; {_EXAMPLES}")
    if len(cleaned) > MAX_LINE:
        raise ValueError(f"'{_shown(cleaned)}' is longer than {MAX_LINE} characters")
    if _NOT_IN_A_LINE.search(cleaned):
        raise ValueError(f"'{_shown(cleaned)}' holds a character that no label has; {_EXAMPLES}")
    match = _LINE.fullmatch(cleaned)
    if match is None:
        return Condition(_key(cleaned, cleaned), cleaned, "has")
    key, op, value = match[1].strip(), match[2], match[3].strip()
    if not key and op == "!":
        return Condition(f"!{_key(value, cleaned)}", value, "lacks")
    if op in _MEANT:
        meant = _shown(f"{key}{_MEANT[op]}{value}")
        raise ValueError(f"'{_shown(cleaned)}': write {_MEANT[op]}, not {op}, as {meant}")
    if op not in ("=", "!=", *_ORDERS):
        raise ValueError(f"'{_shown(cleaned)}' has no comparison; use = != > >= < or <=")
    return _comparison(cleaned, _key(key, cleaned), op, value)


def holds(condition: Condition, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy a condition; make them with `node_view` or `gpu_view`."""
    value = labels.get(condition.key)
    return condition.op in ("lacks", "!=") if value is None else _is_met(condition, value)


@lru_cache(maxsize=16384)  # a fleet has few models, sizes and versions, and is asked often
def _is_met(condition: Condition, value: str) -> bool:
    op = condition.op
    if op in ("=", "!="):
        if condition.key in _VENDOR_SPELT:
            value = value.casefold()
        return (op == "=") == any(pattern.matches(value) for pattern in condition.patterns)
    if condition.bound is None:
        return op == "has"
    have = _quantity(value)
    return have is not None and _order(have, condition.bound) in _ORDERS[op]


def is_per_gpu(condition: Condition) -> bool:
    """True if each GPU of a grant has to satisfy it, false if the node does."""
    key = condition.key
    if key in _NODE_FACTS or key.startswith("gpu-count."):
        return False
    return key.startswith("gpu-") or key in _GPU_FACTS


def node_view(
    node_labels: Mapping[str, str], node_name: str, *, driver_version: str | None = None
) -> dict[str, str]:
    """What the conditions on a node are held against: its labels and `node`.

    The published label has the driver's major version only; the whole one, given here, takes its
    place, so that `gpu-driver-version>=535.104` can be told.
    """
    view = {**node_labels, "node": node_name}
    if driver_version:
        view["gpu-driver-version"] = driver_version
    return view


def gpu_view(
    node_labels: Mapping[str, str], gpu_labels: Mapping[str, str], uuid: str
) -> dict[str, str]:
    """What the conditions on a GPU are held against: the node's labels under the GPU's own.

    What is a fact of a GPU is never taken from the node: neither `gpu-name=mixed` nor the
    neighbours' model says anything about a GPU whose own is not known.
    """
    view = {key: value for key, value in node_labels.items() if key not in _GPU_FACTS}
    return {**view, **gpu_labels, "gpu-uuid": uuid}


def gpu_value(
    node_labels: Mapping[str, str], gpu_labels: Mapping[str, str], uuid: str, key: str
) -> str | None:
    """What `gpu_view` has under one key, without the others."""
    own = uuid if key == "gpu-uuid" else gpu_labels.get(key)
    return node_labels.get(key) if own is None and key not in _GPU_FACTS else own


def contradiction(conditions: Iterable[Condition]) -> str | None:
    """Which conditions can never hold together, in one line; None where none was found.

    Never wrong about what it names; conditions whose `*` overlap may pass unseen.
    """
    groups: dict[str, list[Condition]] = {}
    for condition in dict.fromkeys(conditions):
        groups.setdefault(condition.key, []).append(condition)
    for group in groups.values():
        if _can_never_hold(group):
            named = next(filter(_can_never_hold, combinations(group, 2)), group)
            return f"{' and '.join(map(str, named))} can never hold together"
    return None


def leaves_none(condition: Condition, pattern: str) -> bool:
    """True if it is certain that no value which fits a pattern of `=` satisfies the condition on
    its key; where both are `*` patterns that overlap, it is not."""
    if condition.key in _VENDOR_SPELT:
        pattern = pattern.casefold()
    if condition.op == "=":
        pieces = pattern.split("*")
        return not any(
            p.quantity is not None or globs.overlap(p.pieces, pieces) for p in condition.patterns
        )
    # A `*` of the pattern is met by a `*` of the condition alone, which then takes all it stands for.
    return condition.op == "!=" and any(p.matches(pattern) for p in condition.patterns)


def check_command_line(text: str) -> Condition:
    """The condition of one `--where`; a bare key is what the shell leaves of an unquoted `>`.

    Raises ValueError as `parse`, and for a bare key with the hint to quote.
    """
    condition = parse(text)
    if condition.op == "has":
        raise ValueError(
            f"'{_shown(text)}' compares with nothing: quote the line, as 'gpu-memory>=24', or the "
            f"shell takes > for itself; for any value write '{_shown(condition.key)}=*'"
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
            raise ValueError(f"'{_shown(text)}' is no GPU model; write 'RTX 4090' or 'A100|H100'")
        heads = [""] if name.startswith("*") else ["", "*-"]
        tails = [""] if name.endswith("*") else ["", "-*"]
        globs |= {head + name + tail: None for head in heads for tail in tails}
    return str(parse("gpu-name=" + "|".join(globs)))


def from_gpu_memory(text: str) -> str:
    """The line of a `--gpu-memory`: at least so much, as `24`, `24G` or `24GB+`, or with an OP."""
    op, value = _shorthand(text)
    size = _quantity(value)
    if size is None or size.number is None or size.number <= 0:
        raise ValueError(f"'{_shown(text)}' is no GPU memory; write 24, 24GB, 24576MiB or '<=24'")
    return str(parse(f"gpu-memory{op}{value}"))


def from_cuda(text: str) -> str:
    """The line of a `--cuda`: at least this version, as `12.1`, or with an OP.

    A third part is dropped: drivers name the CUDA version they support by two.
    """
    op, value = _shorthand(text)
    version = _quantity(value)
    if version is None or version.parts is None:
        raise ValueError(f"'{_shown(text)}' is no CUDA version; write 12.1 or '=12'")
    return str(parse(f"gpu-cuda-version{op}{'.'.join(value.split('.')[:2])}"))


def tolerates(tolerate: Sequence[str], reason: str | None) -> bool:
    """Whether a job may use a node that was cordoned for a reason.

    `cordon` takes every cordon, `cordon:maintenance` those whose whole reason is this word, in any
    case; `*` stands for any text. Other forms tolerate nothing.
    """
    given = (reason or "").strip().casefold()
    for text in tolerate:
        kind, colon, wanted = text.casefold().partition(":")
        wanted = wanted.strip()
        is_meant = not colon or (wanted and globs.fits(wanted.split("*"), given))
        if kind == "cordon" and is_meant:
            return True
    return False


def _shown(text: str) -> str:
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 60 else text[:57] + "..."


def _key(text: str, line: str) -> str:
    if not _KEY.fullmatch(text):
        raise ValueError(f"'{_shown(line)}' does not start with a label; {_EXAMPLES}")
    return text


def _comparison(line: str, key: str, op: str, value: str) -> Condition:
    if not value:
        raise ValueError(
            f"'{_shown(line)}' has no value; write zone=a, zone=* for any or !zone for none"
        )
    if "," in value:
        raise ValueError(f"'{_shown(line)}': alternatives are written with |, as zone=a|b")
    if re.search(r"[=<>!]", value):
        raise ValueError(f"'{_shown(line)}' holds two comparisons; write one a line, as zone=a")
    if value[0] in "\"'":
        raise ValueError(f"'{_shown(line)}': write the value without quotes, as zone=a")
    return _equality(line, key, op, value) if op in ("=", "!=") else _ordering(line, key, op, value)


def _equality(line: str, key: str, op: str, value: str) -> Condition:
    alternatives = list(dict.fromkeys(text.strip() for text in value.split("|")))
    if "" in alternatives:
        raise ValueError(f"'{_shown(line)}' has an empty alternative; write {_shown(key)}{op}a|b")
    text = f"{key}{op}{'|'.join(alternatives)}"
    folded = [a.casefold() if key in _VENDOR_SPELT else a for a in alternatives]
    patterns = [Pattern(a, tuple(a.split("*")), _quantity(a)) for a in folded]
    return Condition(text, key, op, tuple(patterns))


def _ordering(line: str, key: str, op: str, value: str) -> Condition:
    if "|" in value or "*" in value:
        raise ValueError(f"'{_shown(line)}': * and | go with = and != alone, as {_shown(key)}=a|b*")
    bound = _quantity(value)
    if bound is None:
        raise ValueError(
            f"'{_shown(value)}' cannot be ordered; {op} takes a size, a version or a number, "
            f"as gpu-memory{op}24"
        )
    return Condition(f"{key}{op}{value}", key, op, bound=bound)


def _shorthand(text: str) -> tuple[str, str]:
    """(OP, value) of a short flag; OP is `>=` unless one is written."""
    match = re.fullmatch(r"(>=|<=|>|<|=)?(.+?)(\+?)", re.sub(r"\s+", "", text))
    if match is None or (match[1] and match[3]):
        raise ValueError(f"'{_shown(text)}' is no bound; write 24, 24+ or '>=24'")
    return match[1] or ">=", match[2]


@lru_cache(maxsize=8192)
def _quantity(text: str) -> Quantity | None:
    if _VERSION.fullmatch(text):
        digits = text.split(".")
        kept = len(digits)
        while kept > 1 and not digits[kept - 1].strip("0"):
            kept -= 1
        parts = tuple(map(int, digits))
        return Quantity(float(".".join(digits[:kept])) if kept < 3 else None, parts, parts[:kept])
    if _NUMBER.fullmatch(text):
        return Quantity(float(text))
    if match := _SIZE.fullmatch(text):
        return Quantity(float(match[1]) * _GIB_PER[match[2][0].lower()])
    return None


def _order(have: Quantity, bound: Quantity) -> int | None:
    """-1, 0 or 1; None where the two cannot be compared."""
    if have.parts is not None and bound.parts is not None:
        return (have.version > bound.version) - (have.version < bound.version)
    if have.number is None or bound.number is None:
        return None
    return (have.number > bound.number) - (have.number < bound.number)


def _is_same(wanted: Quantity, have: Quantity) -> bool:
    if wanted.parts is None or have.parts is None:
        return _order(have, wanted) == 0
    return _padded(have.parts, len(wanted.parts)) == wanted.parts


def _padded(parts: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (parts + (0,) * (length - len(parts)))[:length]


_MAX_ALTERNATIVES: Final = 128  # with more on one key, contradictions are not looked for


def _can_never_hold(group: Sequence[Condition]) -> bool:
    """Whether it is certain that no value of their one key satisfies all."""
    ops = {condition.op for condition in group}
    if ops <= {"lacks", "!="}:
        return False
    if "lacks" in ops:
        return True
    equal = [condition.patterns for condition in group if condition.op == "="]
    denied = {p.text for c in group if c.op == "!=" for p in c.patterns}
    if len(group) + len(denied) + sum(map(len, equal)) > _MAX_ALTERNATIVES:
        return False
    for patterns in equal:
        if all(len(p.pieces) == 1 and p.quantity is None for p in patterns):
            tried = [{group[0].key: pattern.text} for pattern in patterns]
            return not any(all(holds(c, labels) for c in group) for labels in tried)
    if "*" in denied or any(denied.issuperset(p.text for p in patterns) for patterns in equal):
        return True
    return any(_are_apart(low, high) for low in group for high in group)


def _are_apart(low: Condition, high: Condition) -> bool:
    """True if whatever satisfies `low` is too large for `high`."""
    if low.op not in (">", ">=", "=") or high.op not in ("<", "<=", "="):
        return False
    floors = [p.quantity for p in low.patterns] or [low.bound]
    tops = [p.quantity for p in high.patterns] or [high.bound]
    is_open, is_equal = low.op == ">" or high.op == "<", high.op == "="
    return all(_is_above(a, b, is_open=is_open, is_equal=is_equal) for a in floors for b in tops)


def _is_above(low: Quantity | None, top: Quantity | None, *, is_open: bool, is_equal: bool) -> bool:
    """True if no label, be it a version, a size or a number, reaches `low` and not `top`."""
    if low is None or top is None or low.number is None or top.number is None:
        return False
    above = low.number > top.number or (is_open and low.number == top.number)
    if low.parts is not None and top.parts is not None:
        if is_equal:
            return above and _padded(low.parts, len(top.parts)) > top.parts
        is_later = low.version > top.version or (is_open and low.version == top.version)
        return above and is_later
    if len(low.version) > 1 or len(top.version) > 1:
        return False  # beside a size, the dots of the other would be a fraction
    return low.number >= top.number + 1 if is_equal and top.parts else above
