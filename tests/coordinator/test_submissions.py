"""From any bytes on the submit subject to one event, with every fault named and nothing raised."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard import codec
from gpuyard.messages import MAX_SPEC_BYTES
from gpuyard.model import ids
from gpuyard_coordinator.core.events import CancelRequested, Refused, Submitted
from gpuyard_coordinator.submissions import Submission, read_submission

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ASSIGNED = "jlm4k2abc-7"


def read(
    body: dict[str, Any] | bytes,
    *,
    user: str | None = "mia",
    headers: dict[str, str] | None = None,
) -> Submission:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_submission(
        tenant="team-a",
        user=user,
        data=data,
        headers=headers,
        assigned_id=ASSIGNED,
        sequence=7,
        ref="handle",
    )


def refused(body: dict[str, Any] | bytes, headers: dict[str, str] | None = None) -> Refused:
    event = read(body, headers=headers)
    assert isinstance(event, Refused)
    assert (event.sequence, event.ref) == (7, "handle")
    return event


def submitted(body: dict[str, Any] | bytes, **arguments: Any) -> Submitted:
    event = read(body, **arguments)
    assert isinstance(event, Submitted)
    assert (event.sequence, event.ref) == (7, "handle")
    return event


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff\xfe",
        b"hello",
        b'{"image": ',
        b"[1, 2]",
        b'"image"',
        b"\xc1",
        b'{"image": "x", "image": "y"}',
        b'{"image": NaN}',
        b"[" * 5000,
        b'{"image": "\xff"}',
    ],
)
def test_garbage_is_refused_under_the_id_that_the_yard_gives(data: bytes) -> None:
    event = refused(data)

    assert event.id == ASSIGNED
    (fault,) = event.faults
    assert fault.field == "" and "\n" not in fault.message
    assert "the body is neither a JSON nor a msgpack map" in fault.message


@UNHURRIED
@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    read(data)


@UNHURRIED
@given(
    st.dictionaries(
        st.sampled_from(["image", "id", "gpus", "memory_mib", "max_runtime", "env", "cancel", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-10, 2**63) | st.text(max_size=9) | st.floats(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    )
)
def test_no_map_raises_and_what_passes_can_be_stored(body: dict[str, Any]) -> None:
    event = read(codec.encode(body))

    if isinstance(event, Submitted):
        assert codec.decode(codec.encode(event.spec)) == event.spec
    assert ids.is_job_id(event.id) or ids.is_assigned_id(event.id)


def test_json_and_msgpack_mean_the_same() -> None:
    body = {"image": "busybox", "command": ["true"], "gpus": 1}

    one, other = submitted(body), submitted(codec.encode(body))

    assert one == other
    assert one.spec["gpus"]["count"] == 1


def test_a_body_that_is_too_large_is_refused_with_both_numbers() -> None:
    event = refused({"image": "x", "command": ["y" * MAX_SPEC_BYTES]})

    (fault,) = event.faults
    assert fault.code == "too_large"
    assert str(MAX_SPEC_BYTES) in fault.message and "65" in fault.message
    assert submitted({"image": "x", "command": ["y" * (MAX_SPEC_BYTES - 100)]})


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "d", "1e400", "9" * 400 + "g", "0x10"])
@pytest.mark.parametrize("field", ["memory_mib", "max_runtime", "shm_mib", "stop_grace"])
def test_absurd_quantities_are_faults_of_their_field(field: str, text: str) -> None:
    (fault,) = refused({"image": "x", field: text}).faults

    assert fault.field == field
    assert len(fault.message) < 150


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    (fault,) = refused({"image": "x", "comand": ["y"]}).faults

    assert (fault.field, fault.code, fault.did_you_mean) == ("comand", "unknown_field", "command")


def test_a_body_that_is_neither_a_job_nor_a_cancel_is_told_what_is_missing() -> None:
    faults = {fault.field: fault.code for fault in refused({"hello": "world"}).faults}

    assert faults == {"image": "required", "hello": "unknown_field"}


def test_a_job_without_an_id_gets_the_yards() -> None:
    assert submitted({"image": "x"}).id == ASSIGNED
    assert submitted({"image": "x", "id": "mine"}).id == "mine"


@pytest.mark.parametrize(
    "id", ["jlm4k2abc-2", "j12345678-123", "Upper", "a.b", "a" * 49, "", 5, ["a"]]
)
def test_an_id_that_a_client_may_not_choose_is_refused(id: object) -> None:
    event = refused({"image": "x", "id": id})

    assert event.id == ASSIGNED
    assert [fault.field for fault in event.faults] == ["id"]


@pytest.mark.parametrize("message_id", ["run-17", "team-a/run-17"])
def test_a_message_id_that_fits_is_the_jobs_id(message_id: str) -> None:
    event = submitted({"image": "x"}, headers={"Nats-Msg-Id": message_id})

    assert (event.id, event.note) == ("run-17", None)


@pytest.mark.parametrize("message_id", ["Run 17", "team-b/run-17", "jlm4k2abc-2", "a" * 49])
def test_a_message_id_that_does_not_fit_is_hashed_and_says_so(message_id: str) -> None:
    event = submitted({"image": "x"}, headers={"Nats-Msg-Id": message_id})
    again = submitted({"image": "x"}, headers={"Nats-Msg-Id": message_id})

    assert event.id == again.id
    assert hashlib.sha256(message_id.encode()).hexdigest()[:16] in event.id
    assert event.note and "Nats-Msg-Id" in event.note


def test_the_id_in_the_body_wins_over_the_message_id() -> None:
    event = submitted({"image": "x", "id": "mine"}, headers={"Nats-Msg-Id": "other"})

    assert (event.id, event.note) == ("mine", None)


def test_a_refused_body_keeps_the_id_that_its_message_brings() -> None:
    assert refused({"image": ""}, headers={"Nats-Msg-Id": "run-1"}).id == "run-1"


def test_the_spec_kept_of_a_refusal_is_what_a_reader_may_see() -> None:
    event = refused({"image": "x", "name": "n", "env": {"SECRET": "s"}, "gpu": 1})

    assert event.spec == {"image": "x", "name": "n"}


def test_the_user_is_the_subjects_else_the_bodys_claim() -> None:
    body = {"image": "x", "user": "eve"}

    assert submitted(body).user == "mia"
    assert submitted(body, user=None).user == "eve"
    assert submitted({"image": "x"}, user=None).user == "_"
    assert not submitted(body, user=None).user_verified


def test_id_user_and_the_way_of_writing_do_not_change_the_digest() -> None:
    one = submitted({"image": "x", "gpus": "2", "max_runtime": "1h", "id": "a", "user": "eve"})
    other = submitted({"max_runtime": 3600, "gpus": {"count": 2}, "image": "x", "tenant": "t"})

    assert one.spec_sha256 == other.spec_sha256
    assert one.spec_sha256 != submitted({"image": "x", "gpus": 1}).spec_sha256


@pytest.mark.parametrize("id", ["mine", "jlm4k2abc-2"])
def test_a_cancel_names_a_job(id: str) -> None:
    event = read({"cancel": id, "reason": "enough"})

    assert isinstance(event, CancelRequested)
    assert (event.tenant, event.id, event.actor, event.message) == ("team-a", id, "mia", "enough")
    assert event.ref == "handle"


@pytest.mark.parametrize("target", [None, 5, "", "NO", "a/b", ["j"], {"id": "j"}])
def test_a_cancel_of_no_id_is_refused(target: object) -> None:
    (fault,) = refused({"cancel": target}).faults

    assert fault.field == "cancel"


def test_a_cancel_beside_an_image_is_a_job_with_an_unknown_field() -> None:
    (fault,) = refused({"cancel": "j", "image": "x"}).faults

    assert (fault.field, fault.code) == ("cancel", "unknown_field")
