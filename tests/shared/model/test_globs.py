"""Patterns with `*` against all short texts."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model import globs

PATTERNS = st.text("ab*", max_size=4).map(lambda text: text.split("*"))
TEXTS = ["".join(chars) for length in range(8) for chars in product("ab", repeat=length)]


@given(PATTERNS, PATTERNS)
def test_two_patterns_overlap_where_a_text_fits_both(one: list[str], other: list[str]) -> None:
    has_common = any(globs.fits(one, text) and globs.fits(other, text) for text in TEXTS)
    assert globs.overlap(one, other) == globs.overlap(other, one) == has_common


def test_the_ends_may_not_share_letters() -> None:
    assert not globs.fits(["ab", "ba"], "aba")
    assert globs.fits(["ab", "ba"], "abba")
    assert globs.fits(["a", "b", "b", "c"], "abbc")
    assert not globs.fits(["a", "b", "b", "c"], "abc")
