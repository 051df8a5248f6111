"""The last records of a kind, kept so that the garbage collector never looks at them.

Python's collector stops every thread while it goes through all objects that may refer to others, named tuples among
them: 130,000 remembered chunks cost 35 ms at every full collection. It leaves out plain tuples of numbers and texts
once it has seen them, and then also tuples of such tuples. So records are kept as rows of plain values, in blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

R = TypeVar("R", bound=tuple[Any, ...])

BLOCK_RECORDS = 256
_LATE_SECONDS = 1.0


class Numbers:
    """Numbers for a few different objects: links, members of enumerations. Used on any thread."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        # By identity too: hashing an enumeration's member, or what contains one, runs Python code.
        self.by_id: dict[int, int] = {}
        self._known: list[object] = []
        self._lock = threading.Lock()

    def of(self, value: object) -> int:
        number = self.by_id.get(id(value))
        return self._number(value) if number is None else number

    def __getitem__(self, number: int) -> Any:
        """The object with the number."""
        return self._known[number]

    def _number(self, value: object) -> int:
        with self._lock:
            number = self._numbers.get(value)
            if number is None:
                number = self._numbers[value] = len(self._known)
                # Kept, so that nothing else ever has its identity.
                self._known.append(value)
                self.by_id[id(value)] = number
            return number


class Ring(Generic[R]):
    """Takes records on any thread. Keeps at most `capacity`, and forgets the oldest a block at a time.

    `objects` are the positions of fields whose values are neither numbers nor texts, and of which there are few
    different ones (links, members of enumerations); they are kept by number.
    """

    def __init__(self, make: Callable[[tuple[Any, ...]], R], capacity: int, objects: tuple[int, ...] = ()) -> None:
        """`make` makes a record of its values: a named tuple's `_make`."""
        self._make = make
        self._objects = objects
        self.numbers = Numbers()
        self._block_records = max(1, min(BLOCK_RECORDS, capacity // 16))
        blocks = capacity // self._block_records - (1 if self._block_records > 1 else 0)
        self._blocks: deque[tuple[tuple[Any, ...], ...]] = deque(maxlen=max(0, blocks))
        self._recent: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()

    def append(self, record: R) -> None:
        row: tuple[Any, ...] = tuple(record)
        if self._objects:
            values, known = list(row), self.numbers.by_id
            for position in self._objects:
                value = values[position]
                number = known.get(id(value))
                values[position] = self.numbers.of(value) if number is None else number
            row = tuple(values)
        self._recent.append(row)
        if len(self._recent) >= self._block_records:
            self._close_block()

    def append_row(self, row: tuple[Any, ...]) -> None:
        """What `make` makes a record of, with numbers in place of objects; it may contain rows itself."""
        self._recent.append(row)
        if len(self._recent) >= self._block_records:
            self._close_block()

    def __iter__(self) -> Iterator[R]:
        """Oldest first; what comes meanwhile is left out."""
        with self._lock:
            rows = [row for block in self._blocks for row in block]
            rows += self._recent
        for row in rows:
            yield self._record(row)

    def since(self, moment: float, ended: Callable[[R], float]) -> Iterator[R]:
        """Those that ended at `moment` or later, oldest first, without a look at most of the others.

        Records arrive about in the order of their ends: threads may be late by as much as the system lets them wait.
        """
        with self._lock:
            blocks, recent = tuple(self._blocks), tuple(self._recent)
        first = len(blocks)
        while first and ended(self._record(blocks[first - 1][-1])) >= moment - _LATE_SECONDS:
            first -= 1
        for rows in (*blocks[first:], recent):
            for row in rows:
                record = self._record(row)
                if ended(record) >= moment:
                    yield record

    @property
    def forgetting(self) -> R | None:
        """The oldest record once others have been forgotten; None while all are there."""
        with self._lock:
            is_full = len(self._blocks) == self._blocks.maxlen
            return self._record(self._blocks[0][0]) if is_full and self._blocks else None

    def _close_block(self) -> None:
        with self._lock:
            count = self._block_records
            if len(self._recent) >= count:
                self._blocks.append(tuple(self._recent[:count]))
                del self._recent[:count]

    def _record(self, row: tuple[Any, ...]) -> R:
        if not self._objects:
            return self._make(row)
        values = list(row)
        for position in self._objects:
            values[position] = self.numbers[values[position]]
        return self._make(tuple(values))
