"""Where a worker thread waits and runs."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_LEAST_WAIT_SECONDS: Final = 0.005
"""Less may have gone by waiting for the interpreter."""
_WANDERING_SECONDS: Final = 1.0

_KNOWS_CORES = hasattr(os, "sched_setaffinity")
_running_core = getattr(ctypes.PyDLL(None), "sched_getcpu", None)


class HomeCore:
    """A core that is a thread's own while it waits, and while it runs unless somebody else uses it.

    Linux puts a thread that it wakes on the core where it ran last, unless that is busy and another one idle. When two
    workers are woken in a row, the loop is still running on the other core: both come to one, and stay there after the
    loop has gone to sleep, for up to 11 ms beside an idle core (seen with `perf sched`). The same befalls a worker that
    gets the interpreter's lock while the loop is on its core. Where there is a worker for each core, as by default,
    each has its own. A query after 30 ms of rest takes 0.86 of the time that it takes where they wander (TPC-H at scale
    1, two cores, of which one was idle for 5 ms), right behind another query 0.93, beside another process that computes
    all the time, or one that runs the same, 0.95. Who wakes one should not take the one that would wake on his own core
    (`is_here`): it would wait for him to go to sleep.

    A thread that gets little of its core while it runs, because another program computes there, runs anywhere for a
    while. Not used where there are fewer workers: several processes would choose the same cores. Whoever changes the
    thread's cores from outside has the last word, unless he chooses the very core that is its own.
    """

    def __init__(self, number: int, workers: int) -> None:
        """For worker `number` of so many, which may use the cores that the running thread may use now."""
        self.number = number
        self._everywhere = _allowed_cores()
        cores = sorted(self._everywhere)
        self._home = {cores[number]} if number < workers == len(cores) > 1 else None
        self._is_there = False
        self._wanders_until = 0.0

    def is_here(self) -> bool:
        """Whether the running thread, another one, is on this core."""
        home = self._home  # the thread may give it up meanwhile
        return home is not None and _running_core is not None and _running_core() in home

    def enter(self) -> None:
        """Before the thread waits, on it; so are `leave` and `ran`."""
        home = self._home
        if home is not None and not self._is_there:
            self._is_there = True
            self._move(self._everywhere, home)

    def leave(self, now: float) -> None:
        """When it runs again, at this time in seconds."""
        home = self._home
        if home is not None and now < self._wanders_until:
            self._is_there = False
            self._move(home, self._everywhere)

    def ran(self, now: float, seconds: float, processor_seconds: float) -> None:
        """It has run for so long, until now, and had a core for a part of that."""
        waited = seconds - processor_seconds
        if waited > _LEAST_WAIT_SECONDS and waited > processor_seconds:
            self._wanders_until = now + _WANDERING_SECONDS

    def _move(self, before: set[int], after: set[int]) -> None:
        try:
            if os.sched_getaffinity(0) == before:
                os.sched_setaffinity(0, after)
                return
        except OSError:
            pass  # not allowed here
        self._home = None


def _allowed_cores() -> set[int]:
    """Of the running thread; none where that is not known."""
    try:
        return os.sched_getaffinity(0) if _KNOWS_CORES else set()
    except OSError:
        return set()
