"""A loop that does not turn any more ends its process: others take it for lost anyway, and what it holds is freed."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

WEDGED_EXIT_CODE = 70
"""Of a process whose loop has made no progress (`EX_SOFTWARE` of sysexits.h)."""
WATCHDOG_SECONDS = 10.0
"""Far beyond what a loaded machine keeps a loop waiting, and what peers wait before they give a node up."""
BEAT_SECONDS = 0.25
CHECK_SECONDS = 0.5


class ProgressCheck:
    """Whether a loop is wedged, by what was seen at checks `check_seconds` apart.

    Checks are counted and not timed, so that time in which the whole process stood still (SIGSTOP, a suspended machine)
    counts as one check at most: the watching thread was stopped as well.
    """

    def __init__(self, *, seconds: float, check_seconds: float) -> None:
        self._allowed = max(2, round(seconds / check_seconds))
        self._stalled = 0
        self._seen = -1

    def is_wedged(self, progress: int) -> bool:
        """To be called at each check, with the loop's counter."""
        self._stalled = self._stalled + 1 if progress == self._seen else 0
        self._seen = progress
        return self._stalled >= self._allowed


def end_process() -> None:
    """Write the stacks of all threads to the standard error, and exit with WEDGED_EXIT_CODE: nothing is cleaned up."""
    sys.stderr.write("the event loop has made no progress: the process ends\n")
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(WEDGED_EXIT_CODE)


class Watchdog:
    """`with Watchdog():` on the loop that is watched; a thread of its own looks at the loop's beats.

    It cannot see a thread that keeps the interpreter's lock for ever, since its own needs it: that node is lost to its
    peers, by its heartbeats, and goes on to exist. `end` is called once, on the watching thread.
    """

    def __init__(
        self,
        *,
        seconds: float = WATCHDOG_SECONDS,
        end: Callable[[], None] = end_process,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._check = ProgressCheck(seconds=seconds, check_seconds=check_seconds)
        self._check_seconds = check_seconds
        self._beat_seconds = min(BEAT_SECONDS, check_seconds / 2)
        self._end = end
        self._beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pystachio-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._beat(asyncio.get_running_loop())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stopped.set()
        self._thread.join()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beats += 1
        self._timer = loop.call_later(self._beat_seconds, self._beat, loop)

    def _watch(self) -> None:
        while not self._stopped.wait(self._check_seconds):
            if self._check.is_wedged(self._beats):
                self._end()
                return
