"""Tests in which no time passes but what they say, however long the machine stands still.

A test under `@by_hand` runs on a `StandingLoop`. `pass_time` moves its clock: what is due meanwhile happens exactly
when it is due. `stand_still` moves it past that. `until` waits for what threads do, which takes none of that clock's
time: a test waits for all that is to have happened before it lets time pass. The clock begins at 0: the loop's `time()`
is what has passed.

`tests.virtual_time` is for code without threads: its clock jumps by itself, and would while a thread is at work.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from pystachio.runtime.virtual_loop import Deadlock, stacks

P = ParamSpec("P")

GIVE_UP_SECONDS = 60.0
"""Of real time in which nothing happens."""
_LOOK_SECONDS = 0.01
_DIGITS = 9
"""Of seconds: 0.2 after 0.4 is 0.6, as a test writes it."""


def by_hand(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=StandingLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def pass_time(seconds: float) -> None:
    """With all that follows from it on the loop; with 0, what has been set off on it already."""
    await _running().pass_time(seconds)


def stand_still(seconds: float) -> None:
    """As a process that is stopped: what is due meanwhile happens late, when it goes on."""
    _running().stand_still(seconds)


async def until(holds: Callable[[], object]) -> None:
    """Looked at whenever the loop has nothing to do."""
    await _running().until(holds)


class StandingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        self._passing: tuple[float, asyncio.Future[None]] | None = None
        """Until when, and who waits for that."""
        self._watched: list[tuple[Callable[[], object], asyncio.Future[None]]] = []
        super().__init__(_StandingSelector(self))

    def time(self) -> float:
        return self._now

    async def pass_time(self, seconds: float) -> None:
        assert self._passing is None, "another task lets time pass"
        passed = self.create_future()
        self._passing = round(self._now + seconds, _DIGITS), passed
        try:
            await passed
        finally:
            self._passing = None

    def stand_still(self, seconds: float) -> None:
        self._now = round(self._now + seconds, _DIGITS)

    async def until(self, holds: Callable[[], object]) -> None:
        self._watched.append(watched := (holds, self.create_future()))
        try:
            await watched[1]
        finally:
            if watched in self._watched:
                self._watched.remove(watched)

    def goes_on(self, due: float | None) -> bool:
        """Called when there is nothing to do for so many seconds: whether there is now."""
        held = [each for each in self._watched if each[0]()]
        for each in held:
            self._watched.remove(each)
            _settle(each[1])
        if held or self._passing is None:
            return bool(held)
        end, passed = self._passing
        if due is not None and (next_at := round(self._now + due, _DIGITS)) <= end:
            self._now = next_at
        else:
            self._now, self._passing = end, None
            _settle(passed)
        return True


class _StandingSelector(selectors.DefaultSelector):
    """Asked to wait, it waits for threads and the system, and never because of the loop's clock."""

    def __init__(self, loop: StandingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if timeout == 0:
            return ready
        end = time.monotonic() + GIVE_UP_SECONDS
        while not ready and not self._loop.goes_on(timeout):
            if time.monotonic() > end:
                raise Deadlock(f"nothing happens, and no time is to pass\n{stacks(self._loop)}")
            ready = super().select(_LOOK_SECONDS)
        return ready


def _running() -> StandingLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StandingLoop), "the test is not `by_hand`"
    return loop


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # nor cancelled
        waiter.set_result(None)
