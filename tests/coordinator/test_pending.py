"""The pending writes by themselves: a crash at any moment, replayed, gives the same state."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuyard_coordinator.store import Write, delete, put
from gpuyard_coordinator.store.pending import MESSAGE_BYTES, Pending
from gpuyard_coordinator.store.records import WalNumber

KEYS = [f"job.{n}" for n in range(6)]


class Checkpoints(RuleBasedStateMachine):
    """Commits, checkpoints in parts, batches whose answer is lost, and take-overs, in any order.

    `bucket` and `logs` are what a server would have, `state` is what every reader must get.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bucket: dict[str, bytes] = {}
        self.logs: dict[WalNumber, list[Write]] = {}
        self.state: dict[str, bytes] = {}
        self.forgotten: set[str] = set()
        self.pending = Pending()
        self.epoch, self.number, self.out = 1, 0, 0

    @rule(
        changes=st.dictionaries(st.sampled_from(KEYS), st.booleans(), min_size=1), out=st.booleans()
    )
    def commit(self, changes: dict[str, bool], out: bool) -> None:
        while self.pending.taken_over:
            self.checkpoint(3, 5, is_stored=True, is_heard_of=True)
        self.number += 1
        body = b"%d" % self.number
        writes = [put(key, body) if kept else delete(key) for key, kept in changes.items()]
        if out:
            self.out += 1
            writes.append(put(f"out.{self.out}", body))
        number = (self.epoch, self.number)
        self.logs[number] = writes
        self.pending.add(writes, number)
        apply(self.state, writes)
        self.forgotten -= {write.key for write in writes}

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if self.state:
            key = data.draw(st.sampled_from(sorted(self.state)))
            del self.state[key]
            self.forgotten.add(key)
            self.pending.add([delete(key)], None)

    @rule(
        count=st.integers(1, 9),
        size=st.integers(1, 5),
        is_stored=st.booleans(),
        is_heard_of=st.booleans(),
    )
    def checkpoint(self, count: int, size: int, is_stored: bool, is_heard_of: bool) -> None:
        part = self.pending.part(max_messages=count, max_bytes=size * MESSAGE_BYTES)
        assert part.is_empty == (not len(self.pending))
        assert len(part.writes) + len(part.logs) <= count
        self.pending.note_sent(part)
        if is_stored:
            apply(self.bucket, part.writes)
            for number in part.logs:
                self.logs.pop(number, None)
        if is_stored and is_heard_of:
            self.pending.note_stored(part)
            assert part.is_whole == (not len(self.pending))

    @rule()
    def take_over(self) -> None:
        self.pending = Pending()
        for number in sorted(self.logs):
            self.pending.add(self.logs[number], number, is_replay=True)
        self.state = dict(self.bucket)
        apply(self.state, list(self.pending.writes()))
        self.forgotten.clear()
        self.epoch += 1

    @invariant()
    def a_replay_gives_the_state(self) -> None:
        replayed = dict(self.bucket)
        for number in sorted(self.logs):
            apply(replayed, self.logs[number])
        # What was only to be forgotten may come back.
        assert without(replayed, self.forgotten) == without(self.state, self.forgotten)

    @invariant()
    def what_is_pending_over_the_bucket_gives_the_state(self) -> None:
        merged = dict(self.bucket)
        apply(merged, list(self.pending.writes()))
        assert merged == self.state

    @invariant()
    def the_size_is_right(self) -> None:
        assert self.pending.bytes == sum(write.size for write in self.pending.writes())


def apply(bucket: dict[str, bytes], writes: list[Write]) -> None:
    for write in writes:
        bucket.pop(write.key, None)
        if write.data is not None:
            bucket[write.key] = write.data


def without(state: dict[str, bytes], keys: set[str]) -> dict[str, bytes]:
    return {key: data for key, data in state.items() if key not in keys}


TestCheckpoints = Checkpoints.TestCase
TestCheckpoints.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_record_that_was_relayed_before_the_checkpoint_leaves_no_trace() -> None:
    pending = Pending()
    pending.add([put("out.1", b"x"), put("job.1", b"x")], (5, 1))
    pending.add([delete("out.1"), delete("job.1"), delete("out.7")], None)

    part = pending.part(max_messages=100, max_bytes=1000)

    # What the bucket may have, from before, is deleted there.
    assert part.writes == [delete("job.1"), delete("out.7")]
    assert part.logs == [(5, 1)]


def test_after_an_unanswered_checkpoint_a_relayed_record_is_deleted() -> None:
    pending = Pending()
    pending.add([put("out.1", b"x")], (5, 1))
    pending.note_sent(pending.part(max_messages=100, max_bytes=1000))

    pending.add([delete("out.1")], None)

    assert pending.part(max_messages=100, max_bytes=1000).writes == [delete("out.1")]


def test_many_updates_of_one_key_are_one_write() -> None:
    pending = Pending()
    for n in range(50):
        pending.add([put("job.1", b"%d" % n)], (5, n))

    part = pending.part(max_messages=100, max_bytes=1000)

    assert part.writes == [put("job.1", b"49")]
    assert len(part.logs) == 50
    assert part.is_whole


def test_a_part_has_at_least_one_write_and_stays_below_its_size() -> None:
    pending = Pending()
    for n in range(10):
        pending.add([put(f"job.{n}", b"x" * 500)], (5, n))

    sizes = []
    while len(pending):
        part = pending.part(max_messages=100, max_bytes=1400)
        sizes.append((len(part.writes), len(part.logs)))
        assert sum(write.size + MESSAGE_BYTES for write in part.writes) <= 1400
        pending.note_stored(part)

    assert sizes == [(2, 2)] * 5
    pending.add([put("job.1", b"x" * 5000)], (5, 11))
    assert pending.part(max_messages=100, max_bytes=1400).is_whole


def test_a_key_that_is_written_again_after_it_was_forgotten_keeps_its_record() -> None:
    pending = Pending()
    pending.add([put("job.1", b"x")], (5, 1))
    pending.add([delete("job.2")], None)
    pending.add([put("job.2", b"x")], (5, 2))

    part = pending.part(max_messages=100, max_bytes=2 * MESSAGE_BYTES)

    assert part.writes == [put("job.1", b"x")]
    assert part.logs == [(5, 1)]
