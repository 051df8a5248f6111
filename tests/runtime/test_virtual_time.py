"""The tests' own loop: time jumps, and deadlocks fail."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from random import Random

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


def test_a_group_cancels_its_tasks_in_an_order_that_does_not_depend_on_addresses() -> None:
    async def main() -> list[int]:
        cancelled: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(number)
                raise

        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                for number in Random(2).sample(range(200), 40):
                    kept.append(bytearray(Random(number).randrange(2000)))
                    tasks.create_task(wait(number))
                await asyncio.sleep(1)
                raise ValueError
        return cancelled

    kept: list[bytearray] = []
    once = virtual_time.run(main())
    kept.append(bytearray(100_000))
    assert len(once) == 40
    assert all(virtual_time.run(main()) == once for _ in range(3))
