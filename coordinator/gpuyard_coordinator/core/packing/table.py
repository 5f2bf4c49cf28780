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
from gpuyard_coordinator.core.state import Shape

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

    def lay_out(self, keys: Iterable[Key]) -> None:
        """The nodes from now on, in the order that breaks ties."""
        self._states = [self._state(key) for key in keys]
        self._write_all()

    def keys(self) -> list[Key]:
        """Those that nodes have now."""
        return list(dict.fromkeys(state.key for state in self._states))

    def rows_with(self, more: Iterable[Shape]) -> list[Shape]:
        """The rows in their order, then as many of `more` as there is room for."""
        return list(dict.fromkeys((*self.scorer.rows, *more)))[:ROWS_KEPT]

    def rescore(self, scorer: Scorer) -> None:
        """Scores by another scorer from now on, which may have been asked already."""
        rows = self.scorer.rows
        if scorer.rows[: len(rows)] != rows:
            scorer.clear()
            scorer.add(rows)
        self._numbers = {row: number for number, row in enumerate(scorer.rows)}
        self.scorer = scorer
        self._known.clear()
        self.lay_out([state.key for state in self._states])

    def expect(self, rows: Iterable[Shape]) -> None:
        """Scores these from now on: many at once cost little more than one."""
        fresh = [row for row in dict.fromkeys(rows) if row not in self._numbers]
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

    def number(self, row: Shape) -> int:
        """The number of a row, good as long as `age` stays as it is."""
        number = self._numbers.get(row)
        if number is None:
            if len(self._numbers) >= ROWS_KEPT:
                self._forget_rows()
            self.expect([row])
            number = self._numbers[row]
        return number

    def scores(self, number: int) -> NDArray[np.int32]:
        """Of one more job of a row on each node, lower is better; to be read only, and only until
        the next call."""
        if number != self._current:
            for node in self._stale:
                self._scores[:, node] = self._states[node].scores
            self._stale.clear()
            self._current = number
        scores: NDArray[np.int32] = self._scores[number]
        return scores

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
        if self._current >= 0:
            self._scores[self._current, node] = state.scores[self._current]

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
        return Step(taken, self._state(plain.after(self.catalogue, state.key, row, taken)))

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
        self._current = -1
