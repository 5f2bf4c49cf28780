"""The inbox: order, limits, and a loop that neither sleeps over news nor spins without any."""

import asyncio

import pytest

from gpuyard_coordinator.inbox import SOON_S, Inbox


async def is_waiting(inbox: Inbox) -> bool:
    try:
        await asyncio.wait_for(inbox.wait(), 0.02)
    except TimeoutError:
        return True
    return False


async def test_events_come_out_in_order_up_to_the_limit() -> None:
    inbox = Inbox()
    for number in range(5):
        inbox.put(number)

    assert (len(inbox), inbox.drain(2)) == (5, [0, 1])
    assert not await is_waiting(inbox)
    assert inbox.drain() == [2, 3, 4]
    assert inbox.drain() == []
    assert await is_waiting(inbox)


async def test_a_put_ends_the_waiting() -> None:
    inbox = Inbox()
    waiting = asyncio.ensure_future(inbox.wait())
    await asyncio.sleep(0)
    inbox.put("news")

    await asyncio.wait_for(waiting, 1)
    assert inbox.drain() == ["news"]


async def test_a_wake_ends_one_waiting_and_no_more() -> None:
    inbox = Inbox()
    inbox.wake()

    assert not await is_waiting(inbox)
    assert await is_waiting(inbox)


async def test_soon_is_once_and_not_at_once() -> None:
    inbox = Inbox()
    inbox.wake_soon()
    inbox.wake_soon()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(inbox.wait(), SOON_S / 10)
    await asyncio.wait_for(inbox.wait(), 5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(inbox.wait(), SOON_S * 2)


async def test_who_was_woken_meanwhile_is_not_woken_soon_as_well() -> None:
    inbox = Inbox()
    inbox.wake_soon()
    inbox.put("news")
    await asyncio.wait_for(inbox.wait(), 5)
    assert inbox.take() == "news"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(inbox.wait(), SOON_S * 2)


async def test_waiting_ends_at_its_timeout() -> None:
    await asyncio.wait_for(Inbox().wait(0.01), 1)
    await asyncio.wait_for(Inbox().wait(0), 1)


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_cleared_inbox_is_empty(limit: int | None) -> None:
    inbox = Inbox()
    inbox.put(1)
    inbox.clear()

    assert inbox.drain(limit) == []
    assert await is_waiting(inbox)
