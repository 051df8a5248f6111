"""Tests in virtual time.

`run(main())` runs a coroutine on a `VirtualTimeLoop` as `asyncio.run` does; a deadlock fails at once. `clock()` gives
the runtime's `Clock` on the running loop. A test that uses worker threads or executors says so with `threads=True`.
Where threads are only a detail, give the code under test `InlineStreams`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import torch

from pystachio.runtime.virtual_loop import VirtualTimeLoop

P = ParamSpec("P")
R = TypeVar("R")


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


class InlineStream:
    """`pystachio.runtime.streams.Stream` that runs each job at once on the loop's thread."""

    device = torch.device("cpu")

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    async def run_small(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)


class InlineStreams:
    """`pystachio.runtime.streams.StreamFactory` of inline streams."""

    def open(self, plan: object, metrics: object) -> InlineStream:
        return InlineStream()

    async def close(self) -> None:
        pass
