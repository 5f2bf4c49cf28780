"""The leader's codec: byte for byte that of everybody else, and as strict with what is ours."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard import codec
from gpuyard.errors import LocalProtocolError, RemoteProtocolError
from gpuyard.messages import Applied
from gpuyard_coordinator import fast_codec
from tests.shared.golden_examples import EXAMPLES, golden_file

_WORD = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | _WORD
    | st.binary(max_size=300)
)
_PLAIN = st.recursive(
    _SCALAR,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(_WORD, inner, max_size=20),
    max_leaves=30,
)


@given(st.dictionaries(_WORD, _PLAIN, max_size=4))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_it_packs_any_plain_body_as_the_codec_does(body: dict[str, Any]) -> None:
    body.pop("v", None)
    packed = fast_codec.encode(body)

    assert packed == codec.encode(body)
    assert fast_codec.decode_own(packed) == body


@pytest.mark.parametrize("kind", EXAMPLES)
def test_golden_bytes_are_its_own(kind: str) -> None:
    golden = golden_file(kind).read_bytes()

    assert fast_codec.encode(EXAMPLES[kind]) == golden
    assert fast_codec.decode_own(golden) == EXAMPLES[kind]


def test_a_part_that_is_packed_already_goes_in_as_it_is() -> None:
    spec = {"image": "busybox", "gpus": 1}
    body = {"id": "one", "spec": fast_codec.Raw(codec.encode(spec))}

    assert fast_codec.encode(body) == codec.encode({"id": "one", "spec": spec})


@pytest.mark.parametrize("body", [{"a": object()}, {"a": 2**70}, {"a": "\ud800"}])
def test_what_cannot_be_encoded_is_our_fault(body: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="cannot encode"):
        fast_codec.encode(body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x90",
        b"\x81\xa1a",
        b"\x81\xa1a\x01\x02",
        b"\x81\x01\x02",
        b"\x81\xa1a\xa1\xff",
        b"\x81\xa1v\x02",
        b"\x81\xa1v\x00",
        b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
    ],
)
def test_what_is_no_document_of_ours_is_told_in_one_line(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as told:
        fast_codec.decode_own(data)
    assert "\n" not in str(told.value)


def test_a_reader_names_the_field_that_is_wrong_and_leaves_out_what_it_does_not_know() -> None:
    read = fast_codec.reader(Applied)

    assert read(codec.encode({"token": [1, 2], "revision": 3, "new": 4})) == {
        "token": [1, 2],
        "revision": 3,
    }
    with pytest.raises(RemoteProtocolError, match=r"\$\.revision"):
        read(codec.encode({"token": [1, 2], "revision": "three"}))
