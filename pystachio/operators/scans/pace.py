"""How many rows a worker takes at once of those that are in memory."""

from __future__ import annotations

from typing import Final

from pystachio.operators.small import BRIEF_SECONDS

_LEAST_SECONDS: Final = 0.0005
"""A turn of less does not pay: taking rows and starting a program costs about a tenth of a millisecond, in Python."""

_LEAST_ROWS: Final = 1 << 16
_MOST_LEAST_ROWS: Final = 1 << 18
MOST_ROWS: Final = 1 << 20
"""In one turn, as long as nobody knows how long they take. Programs are written for so many."""

_MOST_SECONDS: Final = 0.003
_MOST_QUICK_ROWS: Final = 1 << 22
"""A turn may take so long, up to so many rows: each costs a tenth of a millisecond, in Python."""


class Pace:
    """How fast rows of a scan go through the operators behind it, on one worker: from turn to turn, and from one run of
    a plan to the next. For several threads; what they tell at once may be lost."""

    def __init__(self) -> None:
        self._seconds_per_row = 0.0

    def note(self, rows: int, seconds: float) -> None:
        """So many rows took so many seconds of a processor."""
        if rows >= _LEAST_ROWS:
            known, now = self._seconds_per_row, seconds / rows
            self._seconds_per_row = (known + now) / 2 if known else now

    @property
    def least_rows(self) -> int:
        """Fewer are not worth a turn."""
        if not self._seconds_per_row:
            return _LEAST_ROWS
        return max(_LEAST_ROWS, min(_MOST_LEAST_ROWS, int(_LEAST_SECONDS / self._seconds_per_row)))

    @property
    def most_rows(self) -> int:
        """More keep others from getting theirs."""
        if not self._seconds_per_row:
            return MOST_ROWS
        return max(MOST_ROWS, min(_MOST_QUICK_ROWS, int(_MOST_SECONDS / self._seconds_per_row)))

    def is_brief(self, rows: int) -> bool:
        """Whether so many rows take no longer than to wake a worker and to hear of its end, as far as is known."""
        return 0 < rows * self._seconds_per_row <= BRIEF_SECONDS

    def jobs_for(self, rows: int) -> int:
        """How many jobs so many rows are worth."""
        return max(1, -(-rows // self.least_rows))

    def turn(self, rows: int, workers: int, *, narrows: bool = False) -> int:
        """How many of so many rows that are left one of the workers takes: much at first, little at the end, so that
        all end together (guided self-scheduling: Polychronopoulos and Kuck, IEEE Transactions on Computers 36, 1987).

        Two thirds of that where rows that were seen `narrow` down the others: all of a turn are compared with what was
        known at its start.
        """
        share = 2 * rows // (3 * workers) if narrows else rows // workers
        return min(max(share, self.least_rows), self.most_rows)
