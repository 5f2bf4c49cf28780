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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from gpuyard.model import globs
from gpuyard.model.measures import Quantity, is_same, order, quantity

MAX_LINE: Final = 4096
_NODE_FACTS: Final = {"gpu-count", "gpu-cuda-version", "gpu-driver-version", "gpu-runtime"}
_GPU_FACTS: Final = {"compute-capability", "gpu-memory", "gpu-name", "gpu-uuid"}
_VENDOR_SPELT: Final = {"gpu-name", "gpu-uuid"}
_KEY: Final = re.compile(r"\w(?:[\w./-]*\w)?")
_LINE: Final = re.compile(r"([^=!<>]*)([=!<>]+)(.*)")
_NOT_IN_A_LINE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ORDERS: Final = {">": (1,), ">=": (0, 1), "<": (-1,), "<=": (-1, 0)}  # by `order`
_MEANT: Final = {"==": "=", "=>": ">=", "=<": "<=", "<>": "!=", "=!": "!=", "!==": "!="}
_EXAMPLES: Final = "write zone=a, zone!=a|b, gpu-memory>=24, zone or !zone"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One alternative of `=` or `!=`, ready to be compared."""

    text: str
    pieces: tuple[str, ...]
    """What stands between the `*`; one piece where there is none."""
    quantity: Quantity | None

    def matches(self, value: str) -> bool:
        if self.quantity is not None and (have := quantity(value)) is not None:
            return is_same(self.quantity, have)
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
        raise ValueError(f"'{shown(cleaned)}' is longer than {MAX_LINE} characters")
    if _NOT_IN_A_LINE.search(cleaned):
        raise ValueError(f"'{shown(cleaned)}' holds a character that no label has; {_EXAMPLES}")
    match = _LINE.fullmatch(cleaned)
    if match is None:
        return Condition(_key(cleaned, cleaned), cleaned, "has")
    key, op, value = match[1].strip(), match[2], match[3].strip()
    if not key and op == "!":
        return Condition(f"!{_key(value, cleaned)}", value, "lacks")
    if op in _MEANT:
        meant = shown(f"{key}{_MEANT[op]}{value}")
        raise ValueError(f"'{shown(cleaned)}': write {_MEANT[op]}, not {op}, as {meant}")
    if op not in ("=", "!=", *_ORDERS):
        raise ValueError(f"'{shown(cleaned)}' has no comparison; use = != > >= < or <=")
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
    have = quantity(value)
    return have is not None and order(have, condition.bound) in _ORDERS[op]


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
    # A `*` of the pattern is met by a `*` of the condition alone, which then takes all it stands
    # for.
    return condition.op == "!=" and any(p.matches(pattern) for p in condition.patterns)


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


def shown(text: str) -> str:
    """What was written, as a message may hold it: short, and without what a terminal obeys."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 60 else text[:57] + "..."


def _key(text: str, line: str) -> str:
    if not _KEY.fullmatch(text):
        raise ValueError(f"'{shown(line)}' does not start with a label; {_EXAMPLES}")
    return text


def _comparison(line: str, key: str, op: str, value: str) -> Condition:
    if not value:
        raise ValueError(
            f"'{shown(line)}' has no value; write zone=a, zone=* for any or !zone for none"
        )
    if "," in value:
        raise ValueError(f"'{shown(line)}': alternatives are written with |, as zone=a|b")
    if re.search(r"[=<>!]", value):
        raise ValueError(f"'{shown(line)}' holds two comparisons; write one a line, as zone=a")
    if value[0] in "\"'":
        raise ValueError(f"'{shown(line)}': write the value without quotes, as zone=a")
    return _equality(line, key, op, value) if op in ("=", "!=") else _ordering(line, key, op, value)


def _equality(line: str, key: str, op: str, value: str) -> Condition:
    alternatives = list(dict.fromkeys(text.strip() for text in value.split("|")))
    if "" in alternatives:
        raise ValueError(f"'{shown(line)}' has an empty alternative; write {shown(key)}{op}a|b")
    text = f"{key}{op}{'|'.join(alternatives)}"
    folded = [a.casefold() if key in _VENDOR_SPELT else a for a in alternatives]
    patterns = [Pattern(a, tuple(a.split("*")), quantity(a)) for a in folded]
    return Condition(text, key, op, tuple(patterns))


def _ordering(line: str, key: str, op: str, value: str) -> Condition:
    if "|" in value or "*" in value:
        raise ValueError(f"'{shown(line)}': * and | go with = and != alone, as {shown(key)}=a|b*")
    bound = quantity(value)
    if bound is None:
        raise ValueError(
            f"'{shown(value)}' cannot be ordered; {op} takes a size, a version or a number, "
            f"as gpu-memory{op}24"
        )
    return Condition(f"{key}{op}{value}", key, op, bound=bound)
