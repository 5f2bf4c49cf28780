"""What is due of a fence, and when: pure."""

import pytest

from gpuyard_agent.keeper.ledger import AGENT_FIRST_S, Fence, parse

CONTAINER = ("container", "c" * 64)


def fence(deadline: float = 100.0, *, grace_s: float = 30.0, fence_s: float = 90.0) -> Fence:
    return Fence(deadline, fence_s, grace_s)


def test_sigterm_comes_the_grace_before_the_deadline_and_sigkill_at_it() -> None:
    held = fence()
    assert held.due(70) is None
    assert held.next_at(70) == pytest.approx(70 + AGENT_FIRST_S)
    assert held.due(70 + AGENT_FIRST_S) == "SIGTERM"
    held.termed = (71.0, 0.0)
    assert held.due(99.9) is None
    assert held.next_at(72) == 100
    assert held.due(100) == "SIGKILL"


def test_sigkill_stays_due_however_often_it_was_sent() -> None:
    held = fence()
    held.killed = (100.0, 0.0)
    assert held.due(5000) == "SIGKILL"


def test_what_the_agent_stops_itself_gets_no_second_sigterm() -> None:
    held = fence()
    held.stopping = True
    assert held.due(99) is None
    assert held.due(100) == "SIGKILL"


def test_without_grace_the_first_signal_is_sigkill() -> None:
    held = fence(grace_s=0)
    assert held.due(99.99) is None
    assert held.due(100) == "SIGKILL"


def test_a_short_grace_is_not_eaten_up_by_waiting_for_the_agent() -> None:
    held = fence(grace_s=2)
    assert held.due(98.5) == "SIGTERM"


def test_arming_moves_the_deadline_and_never_unlearns_where() -> None:
    held = fence()
    later = fence(160)
    later.reach = CONTAINER
    held.arm(later)
    held.arm(fence(220))
    held.arm(fence(180))
    assert (held.deadline, held.reach) == (220, CONTAINER)


@pytest.mark.parametrize("mark", ["termed", "killed"])
def test_what_has_begun_to_be_ended_is_prolonged_by_nobody(mark: str) -> None:
    held = fence()
    setattr(held, mark, (99.0, 0.0))
    held.arm(fence(500))
    assert (held.deadline, held.is_sealed) == (100, True)


def test_a_record_is_read_as_it_was_written() -> None:
    held = fence()
    held.reach, held.stopping, held.termed = CONTAINER, True, (71.0, 1.7e9)
    again = parse(held.as_record())
    assert again.as_record() == held.as_record()


@pytest.mark.parametrize(
    "changes",
    [
        {"deadline": None},
        {"deadline": float("nan")},
        {"deadline": float("inf")},
        {"deadline": True},
        {"grace_s": -1},
        {"reach": ("container", "")},
        {"reach": ("container", "/")},
        {"reach": ("folder", "relative")},
        {"reach": ("pid", "1")},
        {"termed": 3},
    ],
)
def test_nonsense_is_no_fence(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse(fence().as_record() | changes)


def test_something_else_is_no_fence() -> None:
    with pytest.raises(ValueError, match="not a fence"):
        parse([1, 2])
