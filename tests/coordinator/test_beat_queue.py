"""Beats that wait: the newest of each agent, oldest agent first, bounded; and the wake-ups."""

import asyncio

from gpuyard.bus import Message
from gpuyard_coordinator import beat_queue
from gpuyard_coordinator.beat_queue import BeatQueue
from gpuyard_coordinator.inbox import SOON_S, Inbox


def beat(node: str, number: int, *, agent: str = "a1") -> Message:
    reply = f"_INBOX.a.{node}.{agent}.{number}"
    return Message(subject=f"gpuyard.beat.{node}", data=b"%d" % number, reply=reply, headers=None)


def drained(queue: BeatQueue) -> list[Message]:
    return [queue.take() for _ in range(len(queue))]


async def is_awake(inbox: Inbox, *, within_s: float = SOON_S / 10) -> bool:
    try:
        await asyncio.wait_for(inbox.wait(), within_s)
    except TimeoutError:
        return False
    return True


async def test_of_one_agents_beats_the_newest_waits_in_the_place_of_the_first() -> None:
    queue = BeatQueue(Inbox(), beat_s=2.0)
    for message in (beat("n1", 1), beat("n2", 1), beat("n1", 2), beat("n2", 2), beat("n1", 3)):
        queue.put(message)
    assert [(m.subject, m.data) for m in drained(queue)] == [
        ("gpuyard.beat.n1", b"3"),
        ("gpuyard.beat.n2", b"2"),
    ]
    assert len(queue) == 0


async def test_another_agent_under_the_same_name_is_heard_beside_it() -> None:
    queue = BeatQueue(Inbox(), beat_s=2.0)
    for message in (beat("n1", 9), beat("n1", 1, agent="a2"), beat("n1", 10)):
        queue.put(message)
    assert [message.data for message in drained(queue)] == [b"10", b"1"]


async def test_one_that_is_put_back_does_not_displace_a_newer_one() -> None:
    queue = BeatQueue(Inbox(), beat_s=2.0)
    queue.put(beat("n1", 1))
    older = queue.take()
    queue.put_back(older)
    assert queue.take() is older
    queue.put(beat("n1", 2))
    queue.put_back(older)
    assert [message.data for message in drained(queue)] == [b"2"]


async def test_beats_of_made_up_agents_do_not_pile_up() -> None:
    queue = BeatQueue(Inbox(), beat_s=2.0)
    for number in range(beat_queue.MOST_WAITING + 5):
        queue.put(beat("n1", 1, agent=f"a{number}"))
    assert len(queue) == beat_queue.MOST_WAITING
    assert queue.take().reply == "_INBOX.a.n1.a5.1"


async def test_a_first_beat_and_one_before_its_time_wake_at_once() -> None:
    inbox = Inbox()
    queue = BeatQueue(inbox, beat_s=2.0)
    queue.put(beat("n1", 1))
    assert await is_awake(inbox)
    assert not await is_awake(inbox, within_s=SOON_S * 2)
    queue.put(beat("n1", 2))
    assert await is_awake(inbox)


async def test_a_beat_in_its_time_waits_a_moment_for_others() -> None:
    inbox = Inbox()
    queue = BeatQueue(inbox, beat_s=0.0)
    queue.put(beat("n1", 1))
    assert await is_awake(inbox)
    queue.put(beat("n1", 2))
    assert not await is_awake(inbox)
    assert await is_awake(inbox, within_s=5.0)
