"""The codec: golden bytes of every kind, and a door that nothing malformed passes."""

import json
import struct
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard import codec, messages
from gpuyard.errors import LocalProtocolError, RemoteProtocolError
from tests.shared.golden_examples import EXAMPLES, GOLDEN, LOG_CHUNK, golden_file


@pytest.mark.parametrize("kind", EXAMPLES)
def test_golden_bytes_decode_to_the_example_and_encode_to_themselves(kind: str) -> None:
    golden = golden_file(kind).read_bytes()

    assert codec.decode(golden) == EXAMPLES[kind]
    assert codec.encode(EXAMPLES[kind]) == golden


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_example_has_every_field_of_its_kind(kind: str) -> None:
    assert set(EXAMPLES[kind]) == set(getattr(messages, kind).__annotations__)


def test_every_golden_file_has_an_example() -> None:
    assert {path.stem for path in GOLDEN.glob("*.bin")} == set(EXAMPLES)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_json_carries_the_same_body(kind: str) -> None:
    body = EXAMPLES[kind]

    assert codec.decode(codec.encode_json(body)) == codec.to_json_ready(body)


def test_the_header_decides_the_form_before_the_first_byte_does() -> None:
    data = codec.encode({"v": 1})

    assert codec.decode(data, headers={"Content-Type": "application/msgpack"}) == {"v": 1}
    with pytest.raises(RemoteProtocolError, match="not JSON"):
        codec.decode(data, headers={"Content-Type": "application/json; charset=utf-8"})
    with pytest.raises(RemoteProtocolError, match="msgpack"):
        codec.decode(b'{"v": 1}', headers={"Content-Type": "application/msgpack"})


@pytest.mark.parametrize("data", [b'{"v":1}', b' \n{"v":1}', b'\xef\xbb\xbf{"v":1}'])
def test_json_is_told_from_msgpack_without_a_header(data: bytes) -> None:
    assert codec.decode(data) == {"v": 1}
    assert codec.is_json(data)


def test_one_key_is_read_without_the_rest() -> None:
    body = {"v": 1, "items": [{"next": "inner"}], "next": "7"}
    for data in (codec.encode(body), codec.encode_json(body)):
        assert (codec.peek(data, "next"), codec.peek(data, "v")) == ("7", 1)
        assert codec.peek(data, "none") is None
        assert codec.peek(data[:-3], "next") is None
    assert [codec.peek(data, "v") for data in (b"", b"\x93\x01\x02\x03", b"[1]")] == [None] * 3


def test_a_missing_version_is_the_first_and_a_later_one_is_refused() -> None:
    assert codec.decode(b'{"image": "a"}') == {"image": "a"}
    with pytest.raises(RemoteProtocolError, match="v is 2"):
        codec.decode(codec.encode({"v": 2}))


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0, None])
def test_a_version_that_is_no_positive_integer_is_refused(version: object) -> None:
    with pytest.raises(RemoteProtocolError, match="v must be"):
        codec.decode(codec.encode({"v": version}))


def _deep(levels: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(levels):
        body = {"a": [body]}
    return body


MALFORMED: Mapping[str, tuple[bytes, str]] = {
    "nothing": (b"", "empty"),
    "a JSON list": (b"[]", "not a map"),
    "a JSON string": (b'"a"', "not a map"),
    "a msgpack list": (msgpack.packb([1]), "not a map"),
    "a msgpack integer": (b"\x07", "not a map"),
    "broken JSON": (b'{"a":', "not JSON"),
    "JSON that is not UTF-8": (b'{"a":"\xff"}', "not JSON"),
    "a JSON key twice": (b'{"gpus":1,"gpus":2}', "stands twice"),
    "a JSON key twice, deep": (b'{"a":[{"b":1,"b":1}]}', "'b' stands twice"),
    "NaN in JSON": (b'{"a":NaN}', "NaN is no number"),
    "Infinity in JSON": (b'{"a":-Infinity}', "no number"),
    "an overflowing number": (b'{"a":1e999}', "too large"),
    "an integer without end": (b'{"a":' + b"9" * 5000 + b"}", "too large"),
    "an integer above 64 bit": (b'{"a":18446744073709551616}', "cannot be kept"),
    "a lone surrogate": (b'{"a":"\\ud800"}', "cannot be kept"),
    "a deep JSON tree": (json.dumps(_deep(40)).encode(), "nested"),
    "a JSON bomb": (b'{"a":' + b"[" * 100_000, "not JSON"),
    "a deep msgpack tree": (msgpack.packb(_deep(40)), "nested"),
    "a msgpack bomb": (b"\x81\xa1a" + b"\x91" * 100_000, "msgpack"),
    "msgpack with a rest": (codec.encode({"a": 1}) + b"\x00", "msgpack"),
    "msgpack cut short": (codec.encode({"a": "b" * 50})[:-1], "msgpack"),
    "a list that claims four billion": (b"\x81\xa1a\xdd\xff\xff\xff\xff", "msgpack"),
    "a map that claims four billion": (b"\xdf\xff\xff\xff\xff", "msgpack"),
    "a string that claims four billion": (b"\x81\xa1a\xdb\xff\xff\xff\xff", "msgpack"),
    "msgpack text that is not UTF-8": (b"\x81\xa1a\xa1\xff", "msgpack"),
    "a msgpack integer key": (msgpack.packb({1: 2}), "msgpack"),
    "a msgpack bytes key": (msgpack.packb({b"a": 1}), "a key that is not text"),
    "a msgpack timestamp": (b"\x81\xa1a" + msgpack.packb(msgpack.Timestamp(5, 6)), "msgpack"),
    "a msgpack extension": (b"\x81\xa1a" + msgpack.packb(msgpack.ExtType(9, b"x")), "msgpack"),
    "NaN in msgpack": (b"\x81\xa1a\xcb" + struct.pack(">d", float("nan")), "not finite"),
    "too many bytes": (b"{" + b" " * codec.MAX_BYTES, "more than"),
}


@pytest.mark.parametrize(("data", "reason"), MALFORMED.values(), ids=list(MALFORMED))
def test_malformed_bytes_are_refused_in_one_line(data: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason) as caught:
        codec.decode(data)

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_decode_to_a_map_or_are_refused(data: bytes) -> None:
    try:
        body = codec.decode(data)
    except RemoteProtocolError:
        return
    assert isinstance(body, dict)


WORD = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(WORD, PLAIN, max_size=4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_both_forms_carry_any_plain_body(body: dict[str, Any]) -> None:
    body.pop("v", None)

    assert codec.decode(codec.encode(body)) == body
    assert codec.decode(codec.encode_json(body)) == body


@pytest.mark.parametrize("body", [{"a": object()}, {"a": 2**70}, {"a": "\ud800"}])
def test_what_cannot_be_encoded_is_our_fault(body: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="cannot encode"):
        codec.encode(body)


_LEAVES = st.floats(width=32) | st.text(max_size=4) | st.binary(max_size=2) | st.integers(-9, 2**40)
_KEYS = st.text(max_size=3) | st.sampled_from([b"", b"k"])
_REST = st.recursive(
    _LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(_KEYS, part, max_size=3)
)


@given(_REST, st.booleans())
def test_a_number_that_is_not_finite_is_never_overlooked(rest: Any, is_single: bool) -> None:
    data = msgpack.packb({"rest": rest}, use_single_float=is_single)
    try:
        codec.decode(data)
    except RemoteProtocolError as fault:
        assert codec.may_have_odd_number(data) or "not finite" not in str(fault)


def test_of_a_key_that_stands_twice_the_last_value_counts() -> None:
    one, two = b"\xa5facts\x01", b"\xa5facts\x02"

    assert codec.decode(b"\x82" + one + two) == {"facts": 2}


def test_bytes_become_base64_or_readable_text() -> None:
    assert codec.to_json_ready(LOG_CHUNK)["data"] == "bG9zcyAwLjI1Cv8A"
    assert codec.to_json_ready(LOG_CHUNK, binary="text")["data"] == "loss 0.25\n�\x00"
    assert json.loads(codec.encode_json(LOG_CHUNK))["data"] == "bG9zcyAwLjI1Cv8A"
