"""Time as an argument: whoever decides by time is handed a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never go back. Two clocks share no origin: only differences mean something."""

    def now(self) -> float: ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()  # by its name in each call: simulations put another one there
