"""Records of ended jobs, looked up while the event that needs them waits its turn."""

from typing import Any, cast

from gpuyard.errors import Unavailable
from gpuyard_coordinator import look_ups
from gpuyard_coordinator.core.events import AwaitedLookedUp, Submitted
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import Arrival

ENDED = {"id": "first", "state": "succeeded", "spec_sha256": "ab", "spec": {"array": None}}
REFUSED = {"id": "bad", "state": "failed", "spec_sha256": "", "spec": {}}
ARRAY = {"id": "x", "state": "cancelled", "spec_sha256": "cd", "spec": {"array": "0-9"}}


class Kept:
    """A store of these records; the first look-up of all fails."""

    def __init__(self) -> None:
        self.records = {record["id"]: record for record in (ENDED, REFUSED, ARRAY)}
        self.is_away = True

    async def get_done(self, tenant: str, id: str) -> Any:
        if self.is_away:
            self.is_away = False
            raise Unavailable("away")
        return self.records.get(id)


async def test_a_new_leader_hears_of_each_that_others_wait_for() -> None:
    inbox = Inbox()
    keys = [("default", id) for id in ("first", "bad", "gone", "x_3", "x_10")]
    await look_ups.look_up_awaited(cast(Any, Kept()), inbox, keys)
    found = [cast(Arrival, item).event for item in inbox.drain()]
    assert found == [
        AwaitedLookedUp("default", "first", "succeeded"),
        AwaitedLookedUp("default", "bad", None),
        AwaitedLookedUp("default", "gone", None),
        AwaitedLookedUp("default", "x_3", "cancelled"),
        AwaitedLookedUp("default", "x_10", None),
    ]


async def test_a_submission_brings_the_states_of_those_that_it_waits_for() -> None:
    kept = Kept()
    kept.is_away = False
    spec = {"after": [{"job": "first", "when": "ended"}, {"job": "gone", "when": "ended"}]}
    event = Submitted("default", "mia", False, "j", spec, "ef")
    arrived = look_ups.arrival(cast(Any, kept), event)
    assert arrived.ended is not None and await arrived.ended == {"first": "succeeded"}
    assert arrived.look_up is not None and await arrived.look_up is None
