"""Things that are due at a time: the earliest first, without a walk over those that are not."""

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key")


@dataclass(slots=True)
class Deadlines(Generic[Key]):
    """Each key is due once. Filing, dropping and taking cost a heap's logarithm; times are
    monotonic seconds. Keys that are due together come in their own order."""

    _due: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, Key]] = field(default_factory=list)

    def file(self, key: Key, due: float) -> None:
        """A key that is filed already keeps the earlier of its times."""
        kept = self._due.get(key)
        if kept is None or due < kept:
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))

    def drop(self, key: Key) -> None:
        """A key that is not filed is no error."""
        self._due.pop(key, None)

    def take(self, now: float) -> Key | None:
        """The key that is due longest, taken out; None where none is due."""
        while self._heap and (self._heap[0][0] <= now or self._is_stale()):
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                return key
        return None

    def _is_stale(self) -> bool:
        due, key = self._heap[0]
        return self._due.get(key) != due

    def filed(self) -> list[Key]:
        """The keys that wait, in no order."""
        return list(self._due)

    def items(self) -> list[tuple[Key, float]]:
        """What is filed, with its time, in no order."""
        return list(self._due.items())

    def __contains__(self, key: Key) -> bool:
        return key in self._due

    def __len__(self) -> int:
        return len(self._due)
