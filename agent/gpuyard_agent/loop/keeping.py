"""The keeper as the agent sees it: started where nobody else does, asked, and known to answer."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import structlog

from gpuyard_agent.keeper.client import DetachedKeeper, KeeperClient, KeeperSilent
from gpuyard_agent.keeper.ledger import Fence as Held

log = structlog.get_logger()
CHECK_EVERY_S: Final = 5.0
_START_AGAIN_S: Final = 0.1
_START_TRIES: Final = 30
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

    `detached` starts one, where that is this process's matter, whenever none answers.
    """

    def __init__(self, client: KeeperClient, *, detached: DetachedKeeper | None) -> None:
        self._client = client
        self._detached = detached
        self._checking: asyncio.Task[None] | None = None
        self.answers = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when `answers` is another than before."""

    def open(self) -> None:
        """Sees to a keeper from now on; until one answers, nothing is held."""
        self._checking = asyncio.create_task(self._check(), name="keeper")

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        await self._client.close()
        if self._detached is not None:
            self._detached.let_go()

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

    async def _check(self) -> None:
        """Sees it go and come back, and starts it anew where that is ours to do."""
        said_at = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            if await self._probe() or await self._started():
                await asyncio.sleep(CHECK_EVERY_S)
                continue
            if self._detached is None and loop.time() - said_at > _SAY_AGAIN_S:
                said_at = loop.time()
                log.warning("no keeper on this host: systemctl start gpuyard-keeper")
            await asyncio.sleep(CHECK_EVERY_S)

    async def _started(self) -> bool:
        """Starts one where that is ours to do; True once it answers."""
        if self._detached is None:
            return False
        try:
            self._detached.start()
        except OSError as fault:
            log.error("keeper not started", fault=str(fault))
            return False
        for _ in range(_START_TRIES):
            await asyncio.sleep(_START_AGAIN_S)
            if await self._probe():
                return True
        return False
