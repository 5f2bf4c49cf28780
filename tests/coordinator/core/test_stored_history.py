"""What tenants held of late outlives the leader that counted it."""

import pytest

from gpuyard import codec
from gpuyard_coordinator.core import fairshare, stored_history
from gpuyard_coordinator.core.history import HALF_LIFE_S, SLOT_MS
from gpuyard_coordinator.core.state import Now
from tests.support.yard import Yard

HOUR_MS = 3_600_000


def spent(yard: Yard, tenant: str = "a") -> int:
    """milli-GPU milliseconds, decayed."""
    return fairshare.history_of(yard.cluster, tenant, yard.now).spent[0]


def holding(hours: float) -> Yard:
    """Tenant `a` has held one GPU, and holds another since."""
    yard = Yard()
    yard.node("n", gpus=2)
    yard.submit("old", tenant="a", gpus=1)
    yard.submit("long", tenant="a", gpus=1)
    yard.plan()
    for id in ("old", "long"):
        yard.start(id, tenant="a")
    yard.spend(hours * 3600)
    yard.end("old", tenant="a", exit_code=0)
    yard.spend(hours * 3600)
    return yard


def test_a_new_leader_knows_what_ended_and_what_still_runs() -> None:
    yard = holding(1)
    before = spent(yard)
    assert before == pytest.approx(3 * 1000 * HOUR_MS, rel=0.2)

    yard.restart()

    assert spent(yard) == pytest.approx(before, rel=1e-6)


def test_what_passes_without_a_leader_counts_as_well() -> None:
    one, other = holding(1), holding(1)
    one.spend(1800)
    other.mono += 1800
    other.restart()

    assert spent(other) == pytest.approx(spent(one), rel=1e-6)


def test_a_restart_wins_nobody_a_turn() -> None:
    yard = Yard()
    yard.node("n", gpus=1)
    yard.submit("old", tenant="a", gpus=1)
    yard.plan()
    yard.start("old", tenant="a")
    yard.spend(3600)
    yard.end("old", tenant="a", exit_code=0)
    yard.submit("first", tenant="a", gpus=1)
    yard.submit("second", tenant="b", gpus=1)
    yard.restart()
    yard.beat("n")
    yard.beat("n")
    yard.plan()

    assert yard.job("second", tenant="b").last is not None
    assert yard.job("first", tenant="a").last is None


def test_half_of_a_share_is_left_where_nobody_led_for_a_half_life() -> None:
    yard = Yard()
    yard.node("n", gpus=1)
    yard.submit("old", tenant="a", gpus=1)
    yard.plan()
    yard.start("old", tenant="a")
    yard.spend(3600)
    yard.end("old", tenant="a", exit_code=0)
    before = spent(yard)
    yard.mono += HALF_LIFE_S
    yard.restart()

    assert spent(yard) == pytest.approx(before / 2, rel=0.01)


def test_a_leader_whose_clocks_read_otherwise_goes_on_from_the_same_share() -> None:
    yard = holding(1)
    before = spent(yard)
    later = Now(7.5, yard.now.at)  # another machine, which has just booted

    cluster = yard.store.recovered((1, 2), later)

    assert fairshare.history_of(cluster, "a", later).spent[0] == pytest.approx(before, rel=1e-6)


def test_a_document_of_a_clock_that_was_ahead_holds_up_nothing() -> None:
    yard = holding(1)
    document = codec.decode(yard.store.histories["a"])
    yard.store.histories["a"] = codec.encode(document | {"until_ms": document["until_ms"] + 10**9})
    cluster = yard.store.recovered((1, 2), yard.now)
    yard.mono += 60
    history = fairshare.history_of(cluster, "a", yard.now)

    assert history.until_ms == cluster.clock_ms(yard.now)
    assert history.spent[0] > document["spent"][0]


def test_a_yard_of_before_shares_were_kept_counts_what_runs() -> None:
    yard = holding(1)
    yard.store.histories.clear()
    cluster = yard.store.recovered((1, 2), yard.now)

    told = fairshare.history_of(cluster, "a", yard.now).spent[0]
    assert told == pytest.approx(2 * 1000 * HOUR_MS, rel=0.2)


def test_a_share_is_written_where_an_attempt_ends_and_nowhere_else() -> None:
    yard = Yard()
    yard.node("n", gpus=1)
    yard.submit("j", tenant="a", gpus=1)
    yard.plan()
    yard.start("j", tenant="a")
    yard.spend(60)
    assert yard.store.histories == {}

    yard.end("j", tenant="a", exit_code=0)
    assert set(yard.store.histories) == {"a"}


def test_a_share_that_is_none_is_refused_whole() -> None:
    yard = Yard()
    for document in ({}, {"tenant": "a", "until_ms": 1, "spent": [1, 2]}):
        with pytest.raises((KeyError, ValueError)):
            stored_history.take_history(yard.cluster, document)
    assert yard.cluster.history == {}


def test_documents_are_kept_as_long_as_they_weigh_anything() -> None:
    assert stored_history.DOCUMENT_KEPT_S * 1000 == 20 * HALF_LIFE_S * 1000
    assert stored_history.DOCUMENT_KEPT_S * 1000 % SLOT_MS == 0
