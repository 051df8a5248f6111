"""An asyncio loop whose clock jumps: hours of sleeps pass in milliseconds, and a deadlock fails at once.

`run(main())` runs a coroutine as `asyncio.run` does. Whenever every task waits, the clock moves to the next deadline;
when nothing is due either, the test fails with `Deadlock`, which shows the stack of every task. `clock()` gives the
runtime's `Clock` on the running loop.

Threads live in real time. A test that uses worker threads or executors says so with `threads=True`: then the loop waits
up to `THREAD_GRACE_SECONDS` of real time for a thread to report before it calls the situation a deadlock, and jumps
only when no thread reports at once. Where threads are only a detail, give the code under test `InlineStreams`.
"""

from __future__ import annotations

import asyncio
import io
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

THREAD_GRACE_SECONDS = 5.0


class Deadlock(AssertionError):
    """Every task waits and nothing is due."""


class VirtualClock:
    """`pystachio.runtime.clock.Clock` on a loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()


def clock() -> VirtualClock:
    return VirtualClock(asyncio.get_running_loop())


def run(main: Coroutine[Any, Any, R], *, threads: bool = False) -> R:
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(threads=threads)) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self, *, threads: bool = False) -> None:
        self._virtual_now = 0.0
        super().__init__(_JumpingSelector(self, threads))

    def time(self) -> float:
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        self._virtual_now += seconds


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
                raise Deadlock(f"every task waits and nothing is due\n{_stacks(self._loop)}")
            return ready
        self._loop.jump(timeout)
        return ready


def _stacks(loop: asyncio.AbstractEventLoop) -> str:
    text = io.StringIO()
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=text)
    return text.getvalue()


class InlineStream:
    """`pystachio.runtime.streams.Stream` that runs each job at once on the loop's thread."""

    device = torch.device("cpu")

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await asyncio.sleep(0)
        return function(*args, **kwargs)


class InlineStreams:
    """`pystachio.runtime.streams.StreamFactory` of inline streams."""

    def open(self, plan: object, metrics: object) -> InlineStream:
        return InlineStream()

    async def close(self) -> None:
        pass
