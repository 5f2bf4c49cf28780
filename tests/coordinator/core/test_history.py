"""What a tenant held of late: decayed, and the same however often it was looked at."""

from hypothesis import given
from hypothesis import strategies as st

from gpuyard_coordinator.core.history import HALF_LIFE_S, SLOT_MS, SPAN_MS, History, settled

HALF_LIFE_MS = HALF_LIFE_S * 1000
amounts = st.tuples(st.integers(0, 9000), st.integers(0, 64_000), st.integers(0, 500_000))
moments = st.integers(0, 40 * HALF_LIFE_MS)


def test_half_of_it_is_left_after_the_half_life() -> None:
    spent = (8_000_000_000, 0, 3_000_000_000)
    gpu, _, memory = settled(History(spent, 500), (0, 0, 0), 500 + HALF_LIFE_MS).spent

    assert abs(gpu / spent[0] - 0.5) < 1e-6 and abs(memory / spent[2] - 0.5) < 1e-6


def test_a_use_that_never_changed_adds_up_to_itself_times_the_span() -> None:
    gpu, cpu, _ = settled(History(), (8000, 100, 0), 30 * HALF_LIFE_MS).spent

    assert abs(gpu / SPAN_MS / 8000 - 1) < 0.002 and abs(cpu / SPAN_MS / 100 - 1) < 0.002


@given(held=amounts, spent=amounts, begins=moments, ends=moments, looks=st.lists(moments))
def test_looking_in_between_changes_nothing(
    held: tuple[int, int, int],
    spent: tuple[int, int, int],
    begins: int,
    ends: int,
    looks: list[int],
) -> None:
    """Beyond what rounding takes at each slot, one unit."""
    begin = History((spent[0] * SLOT_MS, spent[1] * SLOT_MS, spent[2] * SLOT_MS), begins)
    ends = begins + ends % (18 * HALF_LIFE_MS)
    by_steps = begin
    for look in sorted({begins + look % max(ends - begins, 1) for look in looks}):
        by_steps = settled(by_steps, held, look)
    by_steps = settled(by_steps, held, ends)
    at_once = settled(begin, held, ends)

    assert by_steps.until_ms == at_once.until_ms == ends
    for one, other in zip(by_steps.spent, at_once.spent, strict=True):
        assert abs(one - other) <= 400 + other // 10**6


def test_days_at_once_are_what_they_are_slot_by_slot() -> None:
    held, end = (8000, 0, 262_144), 9 * HALF_LIFE_MS + 1234
    by_slots = History((0, 0, 0), 777)
    for at in range(SLOT_MS, end, SLOT_MS):
        by_slots = settled(by_slots, held, at)
    by_slots, at_once = settled(by_slots, held, end), settled(History((0, 0, 0), 777), held, end)

    for one, other in zip(by_slots.spent, at_once.spent, strict=True):
        assert abs(one - other) <= 1000
