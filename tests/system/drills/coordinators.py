"""Three coordinators on one yard, by what `gpuyard status` says of them."""

from collections.abc import Callable
from typing import Any, TypeVar

from gpuyard import Client
from gpuyard.errors import Unavailable
from tests.support.running_yard import Daemon, RunningYard, eventually

T = TypeVar("T")


class Coordinators:
    """The yard's own and two more, which run at once; close it at the end."""

    def __init__(self, yard: RunningYard) -> None:
        self.yard = yard
        self.all = [yard.coordinator, *(yard.add_coordinator(f"standby-{n}") for n in (1, 2))]
        for standby in self.all[1:]:
            standby.start()

    def status(self, client: Client) -> dict[str, Any] | None:
        try:
            return client.status()
        except Unavailable:
            return None

    def settled(self, client: Client, standbys: int) -> Daemon:
        """The leader, once that many standbys are ready."""

        def look() -> Daemon | None:
            status = self.status(client) or {"leader": {"pid": None}, "standbys": []}
            ready = [standby for standby in status["standbys"] if standby["ready"]]
            return self._by_pid(status["leader"]["pid"]) if len(ready) == standbys else None

        found = self.eventually(look, what=f"a leader and {standbys} standbys")
        assert found is not None
        return found

    def eventually(self, check: Callable[[], T], *, what: str) -> T:
        """As the function of that name; fails with what each of them logged."""
        try:
            return eventually(check, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from None

    def _by_pid(self, pid: int | None) -> Daemon | None:
        return next((each for each in self.all if each.is_running and each.pid == pid), None)

    def tails(self) -> str:
        return "\n".join(
            f"--- {each.log.name}, exit code {each.exit_code}\n{each.tail()}" for each in self.all
        )

    def close(self) -> None:
        for each in self.all:
            each.kill()
