"""One node's lease and the fences that hang on it: what is renewed, armed, told and let go.

Level-triggered: a renewal, a start, a stop or a keeper that came back only says look again;
`_due` says which fences the keeper has to be told, and one question tells it all of them.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpuyard.errors import RuntimeFailure
from gpuyard.model.reasons import EndReason
from gpuyard_agent.core.attempt import NEVER, Attempt, Intent
from gpuyard_agent.core.fence import Fence, absence, fence_of
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.memory import intent_record
from gpuyard_agent.core.stepping import may_start
from gpuyard_agent.core.times import rfc3339
from gpuyard_agent.keeper.ledger import Fence as Held
from gpuyard_agent.loop.keeping import Keeper, KeeperAnswer
from gpuyard_agent.runtime import Reach

if TYPE_CHECKING:
    from gpuyard_agent.loop.node import NodeAgent

_LATE: Final = "the node's lease was over before its container could be started"


class Fences:
    """The lease of one node, and its attempts' fences with the keeper."""

    def __init__(self, node: "NodeAgent", keeper: Keeper) -> None:
        self._node = node
        self._keeper = keeper
        self.renewed_at = NEVER
        """When the last beat was sent that the leader answered."""
        self.lease_until = NEVER
        self._before: dict[str, Held] = {}
        self._reaches: dict[AttemptKey, Reach] = {}
        self._told: dict[AttemptKey, tuple[Reach | None, bool]] = {}
        """What the keeper was told beside the deadline: where, and that we stop it ourselves."""
        self._found: dict[AttemptKey, bool] = {}
        """Whether the keeper found the processes, once it was asked."""
        self._tasks: set[asyncio.Future[None]] = set()
        self._arming: asyncio.Task[None] | None = None
        self._is_due = False

    @property
    def answers(self) -> bool:
        """True while the keeper does."""
        return self._keeper.answers

    def resume(self) -> None:
        """Takes over what the keeper holds since before this process began."""
        self._before = self._keeper.records()
        for attempt in self._node.memory.attempts.values():
            self._restore(attempt)

    def renewed(self, sent_at: float, lease_s: float) -> None:
        """The leader answered a beat that was sent at `sent_at`."""
        now = self._node.now()
        keeps_waiting = self.lease_until <= now or self._puts_off_a_start(now)
        self.renewed_at = max(self.renewed_at, sent_at)
        self.lease_until = max(self.lease_until, sent_at + lease_s)
        if keeps_waiting and self.lease_until > now:
            self._node.wake_all()
        if any(True for _ in self._due()):
            self._arm_soon()

    def _puts_off_a_start(self, now: float) -> bool:
        """True where a fence that counts from the last renewal was over before it could be armed:
        one that is shorter than the lease ends while the lease still lives."""
        beat_s = self._node.parts.beat_s
        return any(
            (fence := fence_of(attempt.entry, self.renewed_at, beat_s=beat_s)) is not None
            and now >= fence.term_at
            for attempt in self._node.memory.attempts.values()
            if attempt.entry is not None
            and attempt.fence is None
            and attempt.launched is None
            and attempt.result is None
        )

    def keeper_changed(self) -> None:
        """The keeper answers again, or does no longer."""
        if self.answers:
            self._sweep()
            self._arm_soon()
        else:
            self._told.clear()
            for attempt in self._node.memory.attempts.values():
                attempt.is_held = False
        self._node.changed()

    async def arm(self, attempt: Attempt, fence: Fence) -> None:
        """Before anything of it is made; where no keeper answers it goes on unfenced."""
        await self._arm({attempt.key: fence})

    async def hold(self, attempt: Attempt, reach: Reach) -> None:
        """Between create and start: tells the keeper where the processes are going to be.

        Raises RuntimeFailure where the time to start is over.
        """
        self._reaches[attempt.key] = reach
        if attempt.fence is not None:
            await self._arm({attempt.key: attempt.fence})
        if not may_start(attempt, self._node.here(), self._node.now()):
            raise RuntimeFailure(_LATE, temporary=True)

    def follow(self, attempt: Attempt) -> None:
        """Something of it runs: the keeper is asked to find it."""
        self._restore(attempt)
        if attempt.container is not None:
            reach = self._node.engine.runtime.reach(attempt.container)
            if reach is not None:
                self._reaches[attempt.key] = reach
        self.look(attempt)

    def look(self, attempt: Attempt) -> None:
        """Something that the keeper is told of an attempt may be different now."""
        if attempt.fence is not None:
            self._arm_soon()

    def inquire(self, attempt: Attempt) -> bool:
        """Reads whether the keeper has begun to end it; False where the journal refuses."""
        attempt.is_inquired = True
        held = self._keeper.records().get(self._name(attempt.key))
        intent = None if held is None else _intent_of(held)
        if intent is not None:
            attempt.is_inquired = self._node.write(intent_record(attempt.key, intent))
        return attempt.is_inquired

    def forget(self, key: AttemptKey) -> None:
        """Nothing is left of it."""
        name = self._name(key)
        if key in self._told or name in self._before:
            self._keep(self._release([name]))
        self._told.pop(key, None)
        self._before.pop(name, None)
        self._reaches.pop(key, None)
        self._found.pop(key, None)

    def on_listed(self) -> None:
        """All that exists is known now."""
        self._sweep()

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._arming] if self._arming else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _name(self, key: AttemptKey) -> str:
        return f"{self._node.name}/{key}"

    def _restore(self, attempt: Attempt) -> None:
        held = self._before.get(self._name(attempt.key))
        if held is not None and attempt.fence is None and attempt.result is None:
            attempt.fence = Fence(held.fence_s, held.grace_s, held.deadline)

    def _due(self) -> Iterator[tuple[AttemptKey, Fence]]:
        """The fences that the keeper has to be told anew."""
        for key, attempt in self._node.memory.attempts.items():
            fresh = self._fresh(attempt)
            if fresh is None:
                continue
            before = attempt.fence
            is_untold = self._told.get(key) != self._about(attempt) or self._is_sought(attempt)
            if before is None or before.is_worth(fresh) or (self.answers and is_untold):
                yield key, fresh

    def _fresh(self, attempt: Attempt) -> Fence | None:
        """The fence as the last renewal has it; None for what has none or needs none any more."""
        if attempt.result is not None or attempt.exit is not None:
            return None
        if attempt.intent is not None and attempt.intent.reason == EndReason.NODE_LOST:
            return attempt.fence
        if attempt.fence is not None:
            return attempt.fence.renewed(self.renewed_at)
        if attempt.entry is None or attempt.container is None or self.renewed_at == NEVER:
            return None  # what is not made yet is armed as a step of its own
        return fence_of(attempt.entry, self.renewed_at, beat_s=self._node.parts.beat_s)

    def _about(self, attempt: Attempt) -> tuple[Reach | None, bool]:
        is_stopping = attempt.intent is not None
        return self._reaches.get(attempt.key), is_stopping

    def _arm_soon(self) -> None:
        """Tells the keeper, in the background, every fence that is due."""
        self._is_due = True
        if self._arming is None or self._arming.done():
            self._arming = asyncio.create_task(self._arm_due())

    async def _arm_due(self) -> None:
        while self._is_due:
            self._is_due = False
            due = dict(self._due())
            if due:
                await self._arm(due)

    async def _arm(self, fences: dict[AttemptKey, Fence]) -> None:
        attempts = self._node.memory.attempts
        about = {key: self._about(attempts[key]) for key in fences}
        sought = [key for key in fences if self._is_sought(attempts[key])]
        answer = await self._keeper.ask(
            arm={self._name(key): _held(fences[key], *about[key]) for key in fences},
            find=[self._name(key) for key in sought],
        )
        for key, fence in fences.items():
            attempt = attempts.get(key)
            if attempt is not None:
                if answer is not None and key in sought:
                    self._note_found(attempt, self._name(key) in answer.found)
                self._take(attempt, fence, about[key], answer)
        self._node.wake(*fences)

    def _take(
        self,
        attempt: Attempt,
        fence: Fence,
        about: tuple[Reach | None, bool],
        answer: KeeperAnswer | None,
    ) -> None:
        deadline = None if answer is None else answer.held.get(self._name(attempt.key))
        is_held = deadline is not None and self._found.get(attempt.key, True)
        # The keeper's own deadline counts: what it has begun to end it does not prolong.
        attempt.fence = fence if deadline is None else replace(fence, deadline=deadline)
        attempt.is_inquired = False
        if deadline is not None:
            self._told[attempt.key] = about
        if is_held != attempt.is_held:
            attempt.is_held = is_held
            self._node.changed()

    def _is_sought(self, attempt: Attempt) -> bool:
        """True where something runs that the keeper has not found yet."""
        runs = attempt.started is not None and attempt.exit is None
        return runs and attempt.key in self._reaches and attempt.key not in self._found

    def _note_found(self, attempt: Attempt, is_found: bool) -> None:
        self._found[attempt.key] = is_found
        if not is_found and attempt.exit is None:
            self._node.log.warning("keeper finds no process", job=str(attempt.key))

    def _sweep(self) -> None:
        """Lets go of what the keeper holds for attempts that this node knows nothing of."""
        if not self._node.engine.is_listed:
            return
        known = {self._name(key) for key in self._node.memory.attempts}
        mine = f"{self._node.name}/"
        stray = [key for key in self._keeper.records() if key.startswith(mine) and key not in known]
        if stray:
            self._keep(self._release(stray))

    async def _release(self, names: list[str]) -> None:
        await self._keeper.ask(release=names)

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _held(fence: Fence, reach: Reach | None, is_stopping: bool) -> Held:
    held = Held(fence.deadline, fence.fence_s, fence.grace_s)
    held.reach, held.stopping = reach, is_stopping
    return held


def _intent_of(held: Held) -> Intent | None:
    """The keeper's will to end an attempt, as if it were ours; None where it has done nothing."""
    moment = held.termed or held.killed
    if moment is None:
        return None
    at, wall = moment
    fence = Fence(held.fence_s, held.grace_s, held.deadline)
    return Intent(
        reason=EndReason.NODE_LOST,
        signal="SIGTERM" if held.termed else "SIGKILL",
        grace_s=max(0.0, held.deadline - at),
        at=at,
        wall=rfc3339(wall),
        message=f"ended by the keeper: {absence(fence, at)}",
        killed_at=held.killed[0] if held.killed else None,
    )
