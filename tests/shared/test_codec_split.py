"""Taking a stored map apart up to one of its keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard import codec
from gpuyard.errors import RemoteProtocolError

VALUES = st.recursive(
    st.none() | st.integers(-(2**31), 2**31) | st.text() | st.just("\u00e4spec \u00a4spec"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text().filter(lambda key: key not in ("spec", "v")), VALUES), VALUES)
def test_the_last_entry_stays_packed(before: dict[str, object], value: object) -> None:
    data = codec.encode({**before, "spec": value})

    assert codec.split_own(data, "spec", at=-1) == (before, data[len(data) - packed(value) :])


def packed(value: object) -> int:
    return len(codec.encode({"": value})) - len(codec.encode({})) - len(b"\xa0")


@pytest.mark.parametrize("count", [0, 1, 15, 16, 300])
def test_an_entry_in_the_middle_is_found_by_its_place(count: int) -> None:
    before = {f"k{n}": "\u00e4next" for n in range(count)}
    data = codec.encode({**before, "next": 1, "last": 2})

    assert codec.split_own(data, "next", at=count) == (before, b"\x01\xa4last\x02")
    assert codec.split_own(data, "next", at=count + 1) is None
    assert codec.split_own(data, "next", at=-1) is None


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x80", b"\x82\xa1a\xc1\xa4spec\x01"])
def test_what_has_no_such_entry_is_not_split(data: bytes) -> None:
    assert codec.split_own(data, "spec", at=-1) is None


def test_a_version_from_the_future_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="v is 99"):
        codec.split_own(codec.encode({"v": 99, "spec": {}}), "spec", at=-1)
