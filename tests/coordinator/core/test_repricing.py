"""Prices follow what is submitted, switch at an event, and are the same for whoever leads next."""

from gpuyard_coordinator.core import recovery
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.events import MixPriced
from gpuyard_coordinator.core.headroom import PLACED_BETWEEN, Headroom
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Packer, Placement
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.repricing import Repricing
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Settings
from tests.coordinator.core.packing.builders import share
from tests.support.agents import A100_80
from tests.support.yard import TENANT, Yard

NODES = "abcdefgh"
ASKED = [Shape(gpus=2, cpu_milli=9000), Shape(gpus=1), share(33), Shape(cpu_milli=2000)]


def idle(yard: Yard) -> MixPriced | None:
    """What the loop does between turns, until nothing is left to do."""
    repricing = yard.planner.repricing
    while (event := repricing.go_on()) is None and repricing.is_busy:
        pass
    if event is not None:
        effects = Effects()
        yard._apply(event, effects)
        yard._commit(effects)
    return event


def busy_yard(submissions: int) -> Yard:
    yard = Yard()
    for name in NODES:
        yard.node(name, cards=[A100_80] * 8)
    for number in range(submissions):
        yard.submit(f"j{number}", gpus=1 + number % 2, cpus=3)
        yard.plan()
    return yard


def previews(planner: Planner) -> list[list[Placement]]:
    return [planner.preview(shape) for shape in ASKED]


def test_prices_wait_until_enough_was_submitted() -> None:
    yard = busy_yard(15)
    assert idle(yard) is None
    assert yard.store.mix is None

    yard.submit("one-more", gpus=1)
    event = idle(yard)
    assert event is not None
    assert yard.cluster.priced is event.mix
    assert event.mix == yard.cluster.mix
    assert idle(yard) is None, "nothing new was submitted"


def test_what_comes_while_prices_are_made_is_counted_for_the_next_ones() -> None:
    yard = busy_yard(16)
    repricing = yard.planner.repricing
    assert repricing.go_on() is None
    assert repricing.is_busy
    yard.submit("late", gpus=4)

    event = idle(yard)
    assert event is not None
    assert event.mix.observed == 16
    assert yard.cluster.mix.observed == 17


def test_a_new_leader_has_the_same_mix_prices_and_decisions() -> None:
    yard = busy_yard(20)
    idle(yard)
    for number in range(5):
        yard.submit(f"later{number}", gpus=3)
    yard.plan()
    mix, priced, decided = yard.cluster.mix, yard.cluster.priced, previews(yard.planner)
    assert mix != priced
    assert None not in decided

    yard.restart()
    for name in NODES * 2:
        yard.beat(name)
    assert yard.cluster.mix == mix
    assert yard.cluster.priced == priced
    assert previews(yard.planner) == decided


def test_a_standby_that_followed_counts_on() -> None:
    """Also where jobs ended since: it has seen them come."""
    yard, standby = busy_yard(0), Cluster("yard01", (0, 0), Settings())
    for number in range(20):
        yard.submit(f"j{number}", gpus=2)
        recovery.take_job(standby, yard.store.jobs[TENANT, f"j{number}"])
    priced = idle(yard)
    assert priced is not None
    recovery.take_mix(standby, priced.mix.to_document())
    yard.submit("k", gpus=4)
    recovery.take_job(standby, yard.store.jobs[TENANT, "k"])
    recovery.take_job(standby, yard.store.jobs[TENANT, "k"])
    recovery.drop_job(standby, (TENANT, "j3"))

    assert standby.mix == yard.cluster.mix
    assert standby.priced == yard.cluster.priced


def test_numbers_of_jobs_stay_above_those_that_are_counted() -> None:
    """Although none of these jobs lives any more."""
    mix = Mix.prior()
    for number in range(7):
        mix.observe(Shape(gpus=1), number)
    cluster = Cluster("yard01", (1, 1), Settings())
    recovery.take_mix(cluster, mix.copy().to_document())

    assert cluster.next_submit_seq == 7


def test_a_mix_that_cannot_be_read_leaves_the_prior_and_is_named() -> None:
    cluster = Cluster("yard01", (1, 1), Settings())
    recovery.take_mix(cluster, {"v": 1, "observed": "many"})

    assert cluster.priced == Mix.prior()
    assert len(cluster.unreadable) == 1 and "mix" in cluster.unreadable[0]


def test_only_an_event_changes_prices() -> None:
    """Not the submissions themselves: a decision depends on the events before it."""
    priced: list[int] = []

    def policy(mix, fleet):  # type: ignore[no-untyped-def]
        priced.append(mix.observed)
        return Packer(Settings()).policy(mix, fleet)

    yard = busy_yard(0)
    yard.planner = Planner(yard.cluster, Packer(Settings(), policy=policy))
    yard.cluster.nodes_changed |= set(yard.cluster.nodes)
    for number in range(30):
        yard.submit(f"j{number}", gpus=1)
        yard.plan()
    assert priced == [0]

    idle(yard)
    assert priced == [0, 30], "made ahead"
    yard.submit("next", gpus=1)
    yard.plan()
    assert priced == [0, 30], "and not again when they are used"


def test_prices_follow_the_headroom_and_the_next_leader_has_them() -> None:
    """Nothing new is submitted meanwhile that would call for prices by itself."""
    yard = busy_yard(20)
    assert idle(yard) is not None
    assert yard.cluster.priced.headroom is Headroom.MIDDLE, "few were placed so far"
    before = previews(yard.planner)
    placer = yard.planner.placer
    for _ in range(PLACED_BETWEEN):
        placement = placer.place(Shape(gpus=1))
        assert placement is not None
        placer.release(Shape(gpus=1), placement)

    event = idle(yard)
    assert event is not None
    assert event.mix == yard.cluster.mix.copy(Headroom.HIGH)
    decided = previews(yard.planner)
    assert idle(yard) is None
    yard.restart()
    for name in NODES * 2:
        yard.beat(name)
    assert yard.cluster.priced == event.mix
    assert previews(yard.planner) == decided
    assert [len(places) for places in decided] == [len(places) for places in before]


def test_a_known_mix_stays_whatever_is_submitted() -> None:
    """Its prices follow the headroom alone."""
    yard = busy_yard(0)
    known = yard.cluster.priced
    for number in range(40):
        yard.submit(f"j{number}", gpus=1)
    placer = Packer(Settings(), known)
    for node in yard.cluster.nodes.values():
        placer.node_changed(node)
    repricing = Repricing(yard.cluster, placer, learns=False)
    assert repricing.go_on() is None
    assert not repricing.is_busy

    for _ in range(PLACED_BETWEEN):
        placement = placer.place(Shape(gpus=1))
        assert placement is not None
        placer.release(Shape(gpus=1), placement)
    while (event := repricing.go_on()) is None:
        assert repricing.is_busy
    assert event.mix == known.copy(Headroom.HIGH)
