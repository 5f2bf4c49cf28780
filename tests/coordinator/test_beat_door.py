"""The door for beats: what is wrong is refused, facts that did not change are not read twice."""

from typing import Any

import msgpack
import pytest

from gpuyard import codec
from gpuyard.bus import Message
from gpuyard.errors import RemoteProtocolError
from gpuyard_coordinator.beat_door import BeatDoor
from tests.shared import golden_examples

BEAT: dict[str, Any] = dict(golden_examples.BEAT)
NODE = BEAT["node"]


def message(body: dict[str, Any], *, node: str = "", as_json: bool = False) -> Message:
    data = codec.encode_json(body) if as_json else codec.encode(body)
    subject = f"gpuyard.beat.{node or body['node']}"
    return Message(subject=subject, data=data, reply="", headers=None)


def test_facts_that_stay_are_the_same_object_and_the_rest_is_new() -> None:
    door = BeatDoor()
    first = door.read(message(BEAT))
    second = door.read(message(BEAT | {"seq": BEAT["seq"] + 1}))
    assert second["facts"] is first["facts"]
    assert second["facts"] == BEAT["facts"]
    assert second["seq"] == first["seq"] + 1
    assert {**second, "seq": first["seq"]} == first


def test_facts_that_changed_are_read_and_checked() -> None:
    door = BeatDoor()
    door.read(message(BEAT))
    changed = BEAT | {"facts": BEAT["facts"] | {"cpus": 3.0}}
    assert door.read(message(changed))["facts"]["cpus"] == 3.0
    with pytest.raises(RemoteProtocolError, match="facts"):
        door.read(message(BEAT | {"facts": BEAT["facts"] | {"cpus": "many"}}))


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rest_is_checked_each_time(as_json: bool) -> None:
    door = BeatDoor()
    door.read(message(BEAT, as_json=as_json))
    with pytest.raises(RemoteProtocolError, match="seq"):
        door.read(message(BEAT | {"seq": "next"}, as_json=as_json))
    with pytest.raises(RemoteProtocolError, match="another node"):
        door.read(message(BEAT, node="other", as_json=as_json))


def test_samples_are_read_and_checked_each_time() -> None:
    door = BeatDoor()
    door.read(message(BEAT))
    changed = [sample | {"memory_used_mib": 77} for sample in BEAT["samples"]]
    assert door.read(message(BEAT | {"samples": changed}))["samples"] == changed
    with pytest.raises(RemoteProtocolError, match=r"samples\[0\].power_w"):
        hot = [sample | {"power_w": "hot"} for sample in BEAT["samples"]]
        door.read(message(BEAT | {"samples": hot}))
    with pytest.raises(RemoteProtocolError, match="samples"):
        door.read(message(BEAT | {"samples": None}))


def test_a_spec_that_a_beat_tells_is_looked_at_closely() -> None:
    door = BeatDoor()
    door.read(message(BEAT))
    report = next(report for report in BEAT["attempts"] if report.get("wanted"))
    told = message(BEAT | {"attempts": [report]})
    assert door.read(told)["attempts"] == [report]
    for odd in (float("nan"), {b"key": 1}, msgpack.ExtType(1, b"x")):
        wanted = report["wanted"] | {"spec": {"env": odd}}
        data = msgpack.packb(BEAT | {"attempts": [report | {"wanted": wanted}]})
        with pytest.raises(RemoteProtocolError):
            door.read(Message(subject=f"gpuyard.beat.{NODE}", data=data, reply="", headers=None))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_refused_below_known_facts_too(number: float) -> None:
    door = BeatDoor()
    door.read(message(BEAT))
    for single in (False, True):
        data = msgpack.packb(BEAT | {"sample_age_s": number}, use_single_float=single)
        with pytest.raises(RemoteProtocolError, match="not finite"):
            door.read(Message(subject=f"gpuyard.beat.{NODE}", data=data, reply="", headers=None))


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "fact",
    [{"cpus": 1e308}, {"cpus": -1e308}, {"memory_mib": 2**64 - 1}, {"gang_ports": [1, 2**40]}],
)
def test_a_number_that_no_machine_has_is_refused(fact: dict[str, Any], as_json: bool) -> None:
    door = BeatDoor()
    told = message(BEAT | {"facts": BEAT["facts"] | fact}, as_json=as_json)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="more than any machine has"):
            door.read(told)
    assert door.read(message(BEAT, as_json=as_json)) == BEAT


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("milli", [2**64 - 1, -(2**63)])
def test_a_grant_that_no_machine_has_is_refused(milli: int, as_json: bool) -> None:
    door = BeatDoor()
    report = next(report for report in BEAT["attempts"] if report.get("wanted"))
    gpus = [granted | {"milli": milli} for granted in report["wanted"]["gpus"]]
    told = report | {"wanted": report["wanted"] | {"gpus": gpus}}
    with pytest.raises(RemoteProtocolError, match="more than any machine has"):
        door.read(message(BEAT | {"attempts": [told]}, as_json=as_json))


@pytest.mark.parametrize("field", ["started_at", "ended_at"])
@pytest.mark.parametrize("at", ["soon", "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00"])
def test_a_time_of_an_attempt_that_nobody_can_reckon_with_is_refused(field: str, at: str) -> None:
    door = BeatDoor()
    report = BEAT["attempts"][0]
    with pytest.raises(RemoteProtocolError, match="is no time of an attempt"):
        door.read(message(BEAT | {"attempts": [report | {field: at}]}))
    for fine in (None, "", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.123456789+02:00"):
        door.read(message(BEAT | {"attempts": [report | {field: fine}]}))


@pytest.mark.parametrize("key", [b"", b"key", 1])
def test_a_key_that_is_no_text_is_refused_below_known_facts_too(key: object) -> None:
    door = BeatDoor()
    door.read(message(BEAT))
    data = msgpack.packb(BEAT | {key: 1})
    with pytest.raises(RemoteProtocolError):
        door.read(Message(subject=f"gpuyard.beat.{NODE}", data=data, reply="", headers=None))


def test_known_facts_deeper_down_are_not_the_facts() -> None:
    door = BeatDoor()
    door.read(message(BEAT))
    changed = BEAT["facts"] | {"cpus": 3.0}
    body = {"note": {"facts": BEAT["facts"]}} | BEAT | {"facts": changed}
    assert door.read(message(body))["facts"]["cpus"] == 3.0


def test_what_all_nodes_have_alike_is_kept_once() -> None:
    door = BeatDoor()
    one = door.read(message(BEAT))
    other = door.read(message(BEAT | {"node": "other"}))
    assert one["facts"]["gpus"][0]["name"] is other["facts"]["gpus"][0]["name"]
    assert one["samples"][0]["missing"] is other["samples"][0]["missing"]
    assert other == BEAT | {"node": "other"}


def test_what_is_no_beat_is_refused() -> None:
    for data in (b"", b"\x80", b"\xc1", b"\x81\xa5facts", codec.encode(BEAT) + b"\x00", b"[1]"):
        with pytest.raises(RemoteProtocolError):
            BeatDoor().read(Message(subject="gpuyard.beat.n", data=data, reply="", headers=None))
