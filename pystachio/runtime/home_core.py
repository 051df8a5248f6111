"""Where a worker thread waits and runs."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_KNOWS_CORES = hasattr(os, "sched_setaffinity")
_C_LIBRARY: Final = ctypes.PyDLL(None)  # keeps the interpreter: each call takes a microsecond
_running_core = getattr(_C_LIBRARY, "sched_getcpu", None)
_LONGEST_LINE: Final = 128

CORES_TO_STAY: Final = 2
"""On more, a thread that is to run finds another idle one, and which is best (another hyperthread, an efficient core)
is the system's to know."""
WANDERING_SECONDS: Final = 1.0
_LEAST_WAIT_SECONDS: Final = 0.005
_MOST_WAITED: Final = 0.4
"""Of the time of a few jobs: beside another thread that computes all the time it is half. Who leaves his core for less,
for the loop and the client's thread, disturbs the other worker, who leaves as well."""


class HomeCore:
    """A core that is a thread's own while it waits and, on a machine of two, while it runs unless others use it.

    Linux puts a thread that it wakes on the core where it ran last, unless that is busy and another one idle. When two
    workers are woken in a row, the loop is still running on the other core: both come to one, and stay there after the
    loop has gone to sleep, for up to 11 ms beside an idle core (seen with `perf sched`). The same befalls a worker that
    gets the interpreter's lock while the loop is on its core: of two cores, one was idle for 5 ms of a query that came
    after 30 ms of rest. So each worker has a core of its own where there is one for each, as by default. Who wakes one
    should not take the one that would wake on his own core (`is_here`): it would wait for him to go to sleep.

    A thread that others keep waiting on its core, by what the system counts, is anywhere for a while. Not used where
    there are fewer workers than cores: several processes would choose the same ones. Whoever changes the thread's cores
    from outside has the last word, unless he chooses the very core that is its own.
    """

    def __init__(self, number: int, workers: int) -> None:
        """For worker `number` of so many, which may use the cores that the running thread may use now."""
        self.number = number
        self._everywhere = _allowed_cores()
        cores = sorted(self._everywhere)
        self._home = {cores[number]} if number < workers == len(cores) > 1 else None
        self._stays = len(cores) <= CORES_TO_STAY
        self._is_there = False
        self._delays: Delays | None = None
        self._waited = self._ran = 0.0
        """Seconds, of the last jobs most."""
        self._wanders_until = 0.0

    def is_here(self) -> bool:
        """Whether the running thread, another one, is on this core."""
        home = self._home  # the thread may give it up meanwhile
        return home is not None and _running_core is not None and _running_core() in home

    def before_wait(self, now: float) -> None:
        """On the thread, at this time in seconds; so are the others."""
        home = self._home
        if home is not None and not self._is_there and now >= self._wanders_until:
            self._is_there = True
            self._move(self._everywhere, home)

    def before_job(self, now: float) -> None:
        home = self._home
        if home is None or not self._is_there:
            return
        if self._stays and self._delays is None:
            self._delays = Delays.of_this_thread()
            self._stays = self._delays is not None
        if not self._stays or now < self._wanders_until:
            self._is_there = False
            self._move(home, self._everywhere)
        elif self._cores() != home:
            self._home = None
        elif self._delays is not None:
            self._delays.since_last()  # waking up behind the loop does not count

    def after_job(self, now: float, seconds: float) -> None:
        """It had a core for so many seconds."""
        if self._delays is not None and self._is_there:
            self._waited = self._waited / 2 + self._delays.since_last()
            self._ran = self._ran / 2 + seconds
            if self._waited > max(_LEAST_WAIT_SECONDS, _MOST_WAITED * (self._waited + self._ran)):
                self._wanders_until = now + WANDERING_SECONDS
                self._waited = self._ran = 0.0

    def close(self) -> None:
        """At the thread's end."""
        if self._delays is not None:
            self._delays.close()

    def _move(self, before: set[int], after: set[int]) -> None:
        if self._cores() == before:
            try:
                os.sched_setaffinity(0, after)
                return
            except OSError:
                pass  # not allowed here
        self._home = None

    @staticmethod
    def _cores() -> set[int]:
        try:
            return os.sched_getaffinity(0)
        except OSError:
            return set()


class Delays:
    """How long a thread has been able to run and has not, because others had its core: Linux counts it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._line = ctypes.create_string_buffer(_LONGEST_LINE)
        self._last = 0

    @staticmethod
    def of_this_thread() -> Delays | None:
        """None where nobody counts, or the process may open no more files."""
        try:
            descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        delays = Delays(descriptor)
        if not any(delays._numbers()):
            delays.close()
            return None
        return delays

    def since_last(self) -> float:
        """Seconds since this was asked last."""
        numbers = self._numbers()
        last, self._last = self._last, numbers[1] if len(numbers) > 1 else self._last
        return (self._last - last) / 1e9

    def close(self) -> None:
        os.close(self._descriptor)

    def _numbers(self) -> list[int]:
        """Nanoseconds on a core and in a queue for it, and how often it has had one."""
        length = _C_LIBRARY.pread(self._descriptor, self._line, ctypes.c_size_t(_LONGEST_LINE), ctypes.c_long(0))
        return [int(number) for number in self._line.raw[: max(0, length)].split()]


def _allowed_cores() -> set[int]:
    """Of the running thread; none where that is not known."""
    try:
        return os.sched_getaffinity(0) if _KNOWS_CORES else set()
    except OSError:
        return set()
