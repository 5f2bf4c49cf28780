"""The keeper as the agent sees it: started where nobody else does, asked, and known to answer."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import structlog

from gpuyard_agent.keeper.client import KeeperClient, KeeperSilent
from gpuyard_agent.keeper.ledger import Fence as Held

log = structlog.get_logger()
CHECK_EVERY_S: Final = 5.0
_START_AGAIN_S: Final = 0.1
_START_S: Final = 3.0
_SAY_AGAIN_S: Final = 300.0


class Keeper(Protocol):
    """What a node needs of the keeper of its host."""

    @property
    def answers(self) -> bool:
        """True while the last question was answered."""

    async def ask(
        self,
        *,
        arm: "dict[str, Held] | None" = None,
        release: Iterable[str] = (),
        find: Iterable[str] = (),
    ) -> "KeeperAnswer | None":
        """Arms, releases and looks; None where the keeper does not answer."""

    def records(self) -> dict[str, Held]:
        """What the keeper has on its disk, whether or not it answers."""


class KeeperAnswer:
    """What the keeper holds, by key with the deadline, and which of those asked about live."""

    def __init__(self, held: dict[str, float], found: frozenset[str]) -> None:
        self.held = held
        self.found = found


class NoKeeper:
    """For attempts that end with their agent: there is nothing behind a fence."""

    answers = False

    async def ask(self, **question: Any) -> KeeperAnswer | None:
        return None

    def records(self) -> dict[str, Held]:
        return {}


class HostKeeper:
    """The one keeper of this host and folder, shared by the nodes of this process.

    `start` makes one, where that is this process's matter; it is called whenever none answers.
    """

    def __init__(self, client: KeeperClient, *, start: Callable[[], None] | None) -> None:
        self._client = client
        self._start = start
        self._checking: asyncio.Task[None] | None = None
        self.answers = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when `answers` is another than before."""

    async def open(self) -> None:
        """Returns once it answers, or after a moment without; goes on looking in the background."""
        self._started()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S if self._start else 0):
                while not await self._probe():
                    await asyncio.sleep(_START_AGAIN_S)
        self._checking = asyncio.create_task(self._check(), name="keeper")

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        await self._client.close()

    async def ask(
        self,
        *,
        arm: dict[str, Held] | None = None,
        release: Iterable[str] = (),
        find: Iterable[str] = (),
    ) -> KeeperAnswer | None:
        if not self.answers:
            return None  # `_check` finds out; nothing else waits for it
        return await self._ask(arm, release, find)

    async def _probe(self) -> bool:
        return await self._ask(None, (), ()) is not None

    async def _ask(
        self, arm: dict[str, Held] | None, release: Iterable[str], find: Iterable[str]
    ) -> KeeperAnswer | None:
        records = {key: fence.as_record() for key, fence in (arm or {}).items()}
        question = {"arm": records, "release": list(release), "find": list(find)}
        try:
            answer = await self._client.ask(question)
            told = KeeperAnswer(dict(answer["held"]), frozenset(answer["found"]))
        except (KeeperSilent, KeyError, TypeError, ValueError) as fault:
            self._answered(False, str(fault))
            return None
        self._answered(True)
        return told

    def records(self) -> dict[str, Held]:
        return self._client.records()

    def _answered(self, answers: bool, why: str = "") -> None:
        if answers == self.answers:
            return
        self.answers = answers
        if answers:
            log.info("keeper answers")
        else:
            log.warning("keeper does not answer: attempts are not fenced", fault=why)
        self.on_change()

    def _started(self) -> None:
        if self._start is None:
            return
        try:
            self._start()
        except OSError as fault:
            log.error("keeper not started", fault=str(fault))

    async def _check(self) -> None:
        """Sees it go and come back, and starts it anew where that is ours to do."""
        said_at = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            if await self._probe():
                continue
            self._started()
            if self._start is None and loop.time() - said_at > _SAY_AGAIN_S:
                said_at = loop.time()
                log.warning("no keeper on this host: systemctl start gpuyard-keeper")
