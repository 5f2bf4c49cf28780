"""What the loop gets of the beats: read ones, none that is refused, look-ups without waiting."""

import asyncio
from typing import Any

from gpuyard import codec
from gpuyard.bus import Message
from gpuyard.errors import Unavailable
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.beat_intake import MOST_READY, BeatIntake
from gpuyard_coordinator.beat_queue import BeatQueue
from gpuyard_coordinator.core.events import NodeBeat
from gpuyard_coordinator.inbox import Inbox
from tests.shared import golden_examples

BEAT: dict[str, Any] = dict(golden_examples.BEAT)
TELLING = [report for report in BEAT["attempts"] if report.get("wanted")]


class Scene:
    def __init__(self) -> None:
        self.inbox = Inbox()
        self.queue = BeatQueue(self.inbox, beat_s=2.0)
        self.intake = BeatIntake(self.inbox, self.queue, has_ended=self.has_ended)
        self.asked: list[JobKey] = []
        self.answering = asyncio.Event()
        self.fault: Unavailable | None = None

    async def has_ended(self, key: JobKey) -> bool:
        self.asked.append(key)
        await self.answering.wait()
        if self.fault is not None:
            raise self.fault
        return True

    def put(self, body: dict[str, Any], *, data: bytes | None = None) -> None:
        subject = f"gpuyard.beat.{body['node']}"
        data = codec.encode(body) if data is None else data
        self.queue.put(Message(subject=subject, data=data, reply="_INBOX.a.n.t.1", headers=None))


async def test_a_beat_is_read_once_it_is_taken() -> None:
    scene = Scene()
    scene.put(BEAT | {"attempts": []})
    event = scene.intake.take()
    assert isinstance(event, NodeBeat)
    assert event.beat == BEAT | {"attempts": []}
    assert event.ended is None
    assert len(scene.intake) == 0


async def test_what_is_no_beat_is_no_event() -> None:
    scene = Scene()
    scene.put(BEAT, data=b"\xc1")
    assert scene.intake.take() is None
    assert len(scene.intake) == len(scene.inbox) == 0


async def test_a_beat_that_tells_of_jobs_comes_once_it_is_known_which_of_them_ended() -> None:
    scene = Scene()
    scene.put(BEAT | {"attempts": TELLING})
    assert scene.intake.take() is None
    await asyncio.sleep(0)
    assert not len(scene.intake)

    scene.answering.set()
    while not len(scene.intake):
        await asyncio.wait_for(scene.inbox.wait(), 5)
    event = scene.intake.take()
    assert event is not None
    keys = frozenset((report["tenant"], report["job"]) for report in TELLING)
    assert event.ended == keys
    assert set(scene.asked) == keys


async def test_a_look_up_that_fails_leaves_it_to_the_next_beat() -> None:
    scene = Scene()
    scene.fault = Unavailable("away")
    scene.answering.set()
    scene.put(BEAT | {"attempts": TELLING})
    assert scene.intake.take() is None
    scene.put(BEAT | {"attempts": [], "seq": BEAT["seq"] + 1})
    assert scene.intake.take() is None
    while not len(scene.intake):
        await asyncio.wait_for(scene.inbox.wait(), 5)
    event = scene.intake.take()
    assert event is not None
    assert event.ended is None
    assert len(scene.intake) == 0


async def test_a_nodes_beats_stay_in_order_while_one_of_them_is_looked_up() -> None:
    scene = Scene()
    scene.put(BEAT | {"attempts": TELLING})
    assert scene.intake.take() is None
    scene.put(BEAT | {"attempts": [], "seq": BEAT["seq"] + 1})
    assert scene.intake.take() is None
    assert len(scene.intake) == 0

    scene.answering.set()
    while len(scene.intake) < 2:
        await asyncio.wait_for(scene.inbox.wait(), 5)
    first, second = scene.intake.take(), scene.intake.take()
    assert first is not None
    assert second is not None
    assert second.beat["seq"] == first.beat["seq"] + 1


async def test_beats_read_ahead_are_taken_in_their_order_and_nothing_is_read_twice() -> None:
    scene = Scene()
    for number in range(20):
        scene.put(BEAT | {"node": f"n{number}", "attempts": []})
    scene.put(BEAT | {"node": "odd"}, data=b"\xc1")
    while scene.intake.read_ahead():
        pass
    assert not len(scene.queue)
    scene.put(BEAT | {"node": "last", "attempts": []})
    taken = [scene.intake.take() for _ in range(len(scene.intake))]
    names = [event.beat["node"] for event in taken if event is not None]
    assert names == [*(f"n{number}" for number in range(20)), "last"]


async def test_so_many_are_read_ahead_and_the_rest_may_still_be_replaced() -> None:
    scene = Scene()
    for number in range(MOST_READY + 50):
        scene.put(BEAT | {"node": f"n{number}", "attempts": []})
    while scene.intake.read_ahead():
        pass
    assert len(scene.queue) == 50
    assert len(scene.intake) == MOST_READY + 50
    assert not scene.intake.read_ahead()
