"""The tests' own loop: time jumps, and deadlocks fail."""

from __future__ import annotations

import asyncio
import time

import pytest

from pystachio.runtime.virtual_loop import Deadlock
from tests import virtual_time


def test_an_hour_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return virtual_time.clock().now()

    started = time.monotonic()
    assert virtual_time.run(main()) == pytest.approx(3600)
    assert time.monotonic() - started < 10


def test_sleepers_wake_in_order() -> None:
    async def main() -> list[int]:
        woken = []

        async def sleep(seconds: int) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(sleep(seconds) for seconds in (3, 1, 2)))
        return woken

    assert virtual_time.run(main()) == [1, 2, 3]


def test_a_deadlock_fails_and_shows_who_waits_where() -> None:
    async def wait_for_godot() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_godot())

    with pytest.raises(Deadlock, match="wait_for_godot"):
        virtual_time.run(main())


def test_threads_report_in_real_time() -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 5)

    assert virtual_time.run(main(), threads=True) == 5
