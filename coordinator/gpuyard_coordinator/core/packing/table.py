"""Scores of all requests on all nodes: a decision is one argmin over a row.

A placement or release changes one node, so one column, which is copied from the scores of its
state. Columns that changed are written when another row is asked for: a run of equal jobs costs a
number each.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core.packing import plain
from gpuyard_coordinator.core.packing.scoring import Scorer
from gpuyard_coordinator.core.packing.states import Catalogue, Key, State, Step
from gpuyard_coordinator.core.shapes import Shape

STATES_KEPT: Final = 20_000
"""States remembered beside those that nodes are in."""
ROWS_KEPT: Final = 1024
"""Requests that are scored; with more, all are forgotten and those asked for come back."""


@dataclass(slots=True)
class Table:
    catalogue: Catalogue
    scorer: Scorer
    age: int = 0
    """Grows when the rows are numbered anew."""
    _states: list[State] = field(default_factory=list)
    """By node."""
    _scores: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.int32))
    """By row and node."""
    _numbers: dict[Shape, int] = field(default_factory=dict)
    _known: dict[Key, State] = field(default_factory=dict)
    _stale: set[int] = field(default_factory=set)
    """Nodes of which only the entry in `_current` is written."""
    _current: int = -1
    """The row that was asked for last; in it every entry is written."""
    _best: int = -1
    """The first of the nodes that are best for it; -1 where that is to be found."""
    _best_score: int = 0

    def lay_out(self, keys: Iterable[Key]) -> None:
        """The nodes from now on, in the order that breaks ties."""
        self._states = [self._state(key) for key in keys]
        self._write_all()

    def rows_with(self, more: Iterable[Shape]) -> list[Shape]:
        """The rows in their order, then as many of `more` as there is room for."""
        return list(dict.fromkeys((*self.scorer.rows, *more)))[:ROWS_KEPT]

    def rescore(self, scorer: Scorer) -> None:
        """Scores by another scorer from now on, which may have been asked already; to be laid out
        anew then."""
        rows = self.scorer.rows
        if scorer.rows[: len(rows)] != rows:
            scorer.clear()
            scorer.add(rows)
        self._numbers = {row: number for number, row in enumerate(scorer.rows)}
        self.scorer = scorer
        self._known.clear()
        self._states.clear()

    def expect(self, rows: Iterable[Shape]) -> None:
        """Scores these from now on: many at once cost little more than one. With too many of them
        all are forgotten first, and numbered anew."""
        fresh = [row for row in dict.fromkeys(rows) if row not in self._numbers]
        if len(self._numbers) >= ROWS_KEPT:
            self._forget_rows()
        fresh = fresh[: ROWS_KEPT - len(self._numbers)]
        if not fresh:
            return
        for row in fresh:
            self._numbers[row] = len(self._numbers)
        self.scorer.add(fresh)
        self._forget_states()
        for state in self._known.values():
            state.scores, state.choices = self.scorer.score(state.key)
        self._write_all()

    def add(self, row: Shape) -> int:
        """Scores one from now on; its number."""
        self.expect([row])
        return self._numbers[row]

    def number(self, row: Shape) -> int | None:
        """The number of a row, good as long as `age` stays; None where it is not scored."""
        return self._numbers.get(row)

    def scores(self, number: int) -> NDArray[np.int32]:
        """Of one more job of a row on each node, lower is better; to be read only, and only until
        the next call."""
        if number != self._current:
            for node in self._stale:
                self._scores[:, node] = self._states[node].scores
            self._stale.clear()
            self._current, self._best = number, -1
        scores: NDArray[np.int32] = self._scores[number]
        return scores

    def best(self, number: int) -> tuple[int, int]:
        """(node, score) of the lowest score of a row, of equal ones the first; there must be nodes.
        Found without a look at the others while a run of equal jobs fills a node."""
        if number != self._current or self._best < 0:
            scores = self.scores(number)
            self._best = int(scores.argmin())
            self._best_score = int(scores[self._best])
        return self._best, self._best_score

    def step(self, number: int, node: int) -> Step:
        """What placing a job of a row that fits there does; nothing is changed."""
        state = self._states[node]
        step = state.after.get(number)
        if step is None:
            step = state.after[number] = self._step(number, state, self.scorer.rows[number])
        return step

    def take(self, node: int, state: State) -> None:
        """A node is now as after a step."""
        self._states[node] = state
        self._stale.add(node)
        if self._current < 0:
            return
        score = self._scores[self._current, node] = int(state.scores[self._current])
        best = self._best
        if best < 0:
            return
        if score < self._best_score or (score == self._best_score and node <= best):
            self._best, self._best_score = node, score
        elif node == best:
            self._best = -1

    def set(self, node: int, key: Key) -> None:
        """A node is now so, whatever became of it."""
        if key != self._states[node].key:
            self.take(node, self._state(key))

    def _step(self, number: int, state: State, row: Shape) -> Step:
        taken: plain.Taken
        if row.is_share:
            taken = (state.key.devices[state.choices[number]],)
        else:
            taken = (
                plain.whole_devices(self.catalogue, state.key.gpus, state.key.devices, row) or ()
            )
        state = self._state(plain.after(self.catalogue, state.key, row, taken))
        is_certain = row.share_mib is None and all(device.mib < 0 for device in taken)
        return Step(taken, state, is_certain)

    def _state(self, key: Key) -> State:
        state = self._known.get(key)
        if state is None:
            if len(self._known) > STATES_KEPT + len(self._states):
                self._forget_states()
            state = self._known[key] = State(key, *self.scorer.score(key))
        return state

    def _forget_states(self) -> None:
        """All but those that nodes are in, and with them what was remembered of placing."""
        self._known = {state.key: state for state in self._states}
        for state in self._known.values():
            state.after.clear()

    def _forget_rows(self) -> None:
        for row in self._numbers:
            self.catalogue.forget(row)
        self._numbers.clear()
        self.scorer.clear()
        self.age += 1

    def _write_all(self) -> None:
        self._scores = np.empty((len(self.scorer.rows), len(self._states)), dtype=np.int32)
        for node, state in enumerate(self._states):
            self._scores[:, node] = state.scores
        self._stale.clear()
        self._current = self._best = -1
