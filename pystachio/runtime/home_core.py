"""Where a worker thread waits for its next job."""

from __future__ import annotations

import ctypes
import os

_KNOWS_CORES = hasattr(os, "sched_setaffinity")
_running_core = getattr(ctypes.PyDLL(None), "sched_getcpu", None)


class HomeCore:
    """A core that is a thread's own while it waits, and which it may leave as soon as it runs.

    Linux puts a thread that it wakes on the core where it ran last, unless that is busy and another one idle. When two
    workers are woken in a row, the loop is still running on the other core: both come to one, and stay there after the
    loop has gone to sleep, for up to 11 ms beside an idle core (seen with `perf sched`). Where there is a worker for
    each core, as by default, each has its own to wake on. Who wakes one should not take the one that would wake on his
    own core (`is_here`): it would wait for him to go to sleep.

    Not used where there are fewer workers: several processes would choose the same cores. Whoever changes the thread's
    cores from outside has the last word, unless he chooses the very core where it waits.
    """

    def __init__(self, number: int, workers: int) -> None:
        """For worker `number` of so many, which may use the cores that the running thread may use now."""
        self.number = number
        self._everywhere = _allowed_cores()
        cores = sorted(self._everywhere)
        self._home = {cores[number]} if number < workers == len(cores) > 1 else None

    def is_here(self) -> bool:
        """Whether the running thread, another one, is on this core."""
        home = self._home  # the thread may give it up meanwhile
        return home is not None and _running_core is not None and _running_core() in home

    def enter(self) -> None:
        """Before the thread waits, on it; so is `leave`."""
        home = self._home
        if home is not None:
            self._move(self._everywhere, home)

    def leave(self) -> None:
        """When it runs again."""
        home = self._home
        if home is not None:
            self._move(home, self._everywhere)

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
