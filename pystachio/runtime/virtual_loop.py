"""An asyncio loop whose clock jumps: hours of sleeps pass in milliseconds, and a deadlock is found at once.

Whenever every task waits, the clock moves to the next deadline; when nothing is due either, the loop ends with
`Deadlock`, which shows the stack of every task.
"""

from __future__ import annotations

import asyncio
import io
import selectors
from collections.abc import Coroutine
from itertools import count
from typing import Any

THREAD_GRACE_SECONDS = 5.0


class Deadlock(AssertionError):
    """Every task waits and nothing is due."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Threads live in real time: with `threads`, the loop waits up to `THREAD_GRACE_SECONDS` of it for one to report
    before it calls the situation a deadlock, and jumps only when none reports at once."""

    def __init__(self, *, threads: bool = False) -> None:
        self._virtual_now = 0.0
        super().__init__(_JumpingSelector(self, threads))
        numbers = count()
        self.set_task_factory(
            lambda loop, coroutine, **options: _NumberedTask(next(numbers), coroutine, loop=loop, **options)
        )

    def time(self) -> float:
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        self._virtual_now += seconds


class _NumberedTask(asyncio.Task[Any]):
    """A set of tasks, such as a group cancels, is in an order that a replay repeats: not in that of their addresses."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number  # first: a task joins the set of all tasks when it is made
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class _JumpingSelector(selectors.DefaultSelector):
    """Asked to wait, it does not: it moves the loop's clock by as much."""

    def __init__(self, loop: VirtualTimeLoop, threads: bool) -> None:
        super().__init__()
        self._loop = loop
        self._threads = threads

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            if self._threads:
                ready = super().select(THREAD_GRACE_SECONDS)
            if not ready:
                raise Deadlock(f"every task waits and nothing is due\n{stacks(self._loop)}")
            return ready
        self._loop.jump(timeout)
        return ready


def stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Of every task of the loop."""
    text = io.StringIO()
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=text)
    return text.getvalue()
