"""Time that neither runs backwards nor leaps, made from a clock that may do both."""

from __future__ import annotations

import math

LARGEST_STEP_SECONDS = 10.0
"""A busy scheduler hears of the time every second; after a longer silence the process or the machine stood still."""
STEP_AFTER_LEAP_SECONDS = 1.0


class SteadyClock:
    """Shows the outer time less what was smoothed away; `jumps` counts how often.

    Time-outs are measured on it: a machine that wakes from sleep must not fail every transfer at once.
    """

    __slots__ = ("_outer", "_skew", "_steady", "jumps")

    def __init__(self) -> None:
        self._outer = 0.0
        self._skew = 0.0
        self._steady = -math.inf
        self.jumps = 0

    def read(self, outer: float, is_busy: bool) -> float:
        """The steady time when the outer clock shows `outer`."""
        step = outer - self._outer
        if step < 0.0 or (is_busy and step > LARGEST_STEP_SECONDS):
            self.jumps += 1
            self._skew += step if step < 0.0 else step - STEP_AFTER_LEAP_SECONDS
        self._outer = outer
        # What is smoothed away can be rounded up.
        self._steady = steady = max(outer - self._skew, self._steady)
        return steady

    def outer(self, steady: float) -> float:
        """What the outer clock will show at a steady time, or just after, if it does not jump again."""
        outer = steady + self._skew
        while outer - self._skew < steady:
            # Rounded down: whoever is woken then would find that it is not yet time.
            outer = math.nextafter(outer, math.inf)
        return outer
