"""The emulated device in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from pystachio.errors import Cancelled, DataError
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PathTaken, PriorityClass
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.service import IoSchedulerService
from tests import virtual_time
from tests.io_scheduler.scripted_device import ScriptedDevice, ScriptedFile

MIB = 1 << 20
LINK = Link("disk", "1:0")


async def locate(path: str) -> Link:
    return LINK


def chunk(length: int) -> ChunkRequest:
    return ChunkRequest(ScriptedFile("/f"), 0, memoryview(bytearray(length)), length)


async def ends_of(device: EmulatedDevice, lengths: list[int]) -> list[float]:
    """Seconds from now at which chunks that are started together end, in order of their end."""
    loop = asyncio.get_running_loop()
    start, ends = loop.time(), []
    all_ended = asyncio.Event()

    def ended(end: ChunkEnd) -> None:
        assert end.path is PathTaken.EMULATED
        ends.append(loop.time() - start)
        if len(ends) == len(lengths):
            all_ended.set()

    for length in lengths:
        device.start(chunk(length), ended)
    await all_ended.wait()
    return ends


def emulated(
    *, bytes_per_second: float, latency_seconds: float = 0.0, depth: int = 32, parallelism: int = 1
) -> EmulatedDevice:
    return EmulatedDevice(
        ScriptedDevice({"/f": bytes(10_000)}),
        bytes_per_second=bytes_per_second,
        latency_seconds=latency_seconds,
        depth=depth,
        parallelism=parallelism,
        timers=asyncio.get_running_loop(),
    )


def test_bytes_pass_one_after_another() -> None:
    async def main() -> list[float]:
        return await ends_of(emulated(bytes_per_second=1000.0), [100, 200, 100])

    assert virtual_time.run(main()) == pytest.approx([0.1, 0.3, 0.4])


def test_latencies_overlap() -> None:
    async def main() -> list[float]:
        return await ends_of(emulated(bytes_per_second=1000.0, latency_seconds=1.0), [100, 100])

    assert virtual_time.run(main()) == pytest.approx([1.1, 1.2])


def test_depth_bounds_what_overlaps() -> None:
    async def main() -> list[float]:
        return await ends_of(emulated(bytes_per_second=1000.0, latency_seconds=1.0, depth=1), [100, 100])

    assert virtual_time.run(main()) == pytest.approx([1.1, 2.2])


def test_lanes_carry_chunks_side_by_side_at_their_part_of_the_rate() -> None:
    async def main() -> list[float]:
        return await ends_of(emulated(bytes_per_second=1000.0, parallelism=2), [100, 300, 100, 100])

    # 500 bytes a second each: the first lane carries three chunks while the second carries the long one.
    assert virtual_time.run(main()) == pytest.approx([0.2, 0.4, 0.6, 0.6])


class LateTimers:
    """A loop that is always late by the same time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds

    def time(self) -> float:
        return self._loop.time()

    def call_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self._loop.call_at(when + self._seconds, callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        return self._loop.call_soon_threadsafe(callback)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_late_loop_makes_ends_late_but_not_the_wire_slow(depth: int) -> None:
    async def main() -> list[float]:
        inner = ScriptedDevice({"/f": bytes(10_000)})
        timers = LateTimers(asyncio.get_running_loop(), 0.05)
        return await ends_of(EmulatedDevice(inner, bytes_per_second=1000.0, depth=depth, timers=timers), [100] * 20)

    ends = virtual_time.run(main())
    assert ends[-1] == pytest.approx(2.05)


def test_a_slow_device_behind_shows() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        inner = ScriptedDevice({"/f": bytes(100)}, at_once=False)
        device = EmulatedDevice(inner, bytes_per_second=1000.0, timers=loop)
        ended: asyncio.Future[ChunkEnd] = loop.create_future()
        device.start(chunk(100), ended.set_result)
        loop.call_later(5.0, inner.end_next)
        assert (await ended).transferred == 100
        return loop.time()

    assert virtual_time.run(main()) == pytest.approx(5.0)


def test_a_link_without_a_device_behind_takes_time_and_moves_nothing() -> None:
    async def main() -> list[float]:
        device = EmulatedDevice(None, bytes_per_second=1000.0, latency_seconds=1.0, timers=asyncio.get_running_loop())
        assert device.open("there").path == "there"
        return await ends_of(device, [100, 100])

    assert virtual_time.run(main()) == pytest.approx([1.1, 1.2])


def test_an_error_of_the_device_behind_comes_when_the_wire_is_free() -> None:
    async def main() -> tuple[float, ChunkEnd]:
        loop = asyncio.get_running_loop()
        device = EmulatedDevice(ScriptedDevice({"/f": bytes(3)}), bytes_per_second=10.0, timers=loop)
        ended: asyncio.Future[ChunkEnd] = loop.create_future()
        device.start(chunk(10), ended.set_result)
        return loop.time(), await ended

    _, end = virtual_time.run(main())
    assert end.transferred == 3
    assert isinstance(end.error, DataError)


def test_an_abandoned_chunk_ends_early() -> None:
    async def main() -> tuple[float, list[ChunkEnd]]:
        loop = asyncio.get_running_loop()
        device = emulated(bytes_per_second=1.0, depth=1)
        ends: list[ChunkEnd] = []
        reads = [chunk(100), chunk(100)]
        for read in reads:
            device.start(read, ends.append)
        await asyncio.sleep(1.0)
        # One that waits and one whose bytes are there, but not due.
        device.abandon(reads[1])
        device.abandon(reads[0])
        return loop.time(), ends

    ended_at, (waited, inside) = virtual_time.run(main())
    assert ended_at == pytest.approx(1.0)
    assert isinstance(waited.error, Cancelled)
    assert inside == ChunkEnd(100, PathTaken.EMULATED)


def test_priorities_hold_on_a_flooded_disk() -> None:
    """A disk of 100 MiB/s with two greedy batch plans; an interactive plan reads 4 MiB now and then."""

    async def interactive_seconds(batch_plans: int) -> list[float]:
        loop = asyncio.get_running_loop()
        contents = {"/f": bytes(8 * MIB)}
        limits = LinkLimits(chunk_bytes=MIB // 4, window_bytes=MIB // 2)
        service = IoSchedulerService(
            open_device=lambda link: EmulatedDevice(
                ScriptedDevice(contents, limits=limits), bytes_per_second=100 * MIB, timers=loop
            ),
            locate=locate,
            clock=loop.time,
        )
        await service.start()

        async def flood(plan_id: str) -> None:
            client = service.client(plan_id, PriorityClass.BATCH)
            while True:
                await client.read("/f", [Extent(0, 8 * MIB)])

        seconds = []
        async with asyncio.TaskGroup() as group:
            floods = [group.create_task(flood(f"batch {i}")) for i in range(batch_plans)]
            client = service.client("interactive", PriorityClass.INTERACTIVE)
            for _ in range(10):
                await asyncio.sleep(0.1)
                start = loop.time()
                await client.read("/f", [Extent(0, 4 * MIB)])
                seconds.append(loop.time() - start)
            for task in floods:
                task.cancel()
        totals = {entry.plan_id: entry.totals for entry in service.ledger.entries()}
        if batch_plans:
            shares = [totals[f"batch {i}"].transferred_bytes for i in range(batch_plans)]
            assert max(shares) - min(shares) <= 2 * MIB, "plans of a class share the disk"
            assert sum(shares) > 80 * MIB, "the rest of the disk is theirs"
        await service.stop()
        return seconds

    alone = virtual_time.run(interactive_seconds(0))
    flooded = virtual_time.run(interactive_seconds(2))
    assert alone == pytest.approx([0.04] * 10)
    # At most the window is in front of an urgent read.
    assert max(flooded) <= 0.04 + 0.5 / 100 + 1e-6


def test_the_limits_may_be_those_of_the_emulated_device() -> None:
    async def main() -> tuple[LinkLimits, LinkLimits]:
        inner = ScriptedDevice({})
        other = replace(inner.limits, chunk_bytes=7)
        loop = asyncio.get_running_loop()
        plain = EmulatedDevice(inner, bytes_per_second=1.0, timers=loop)
        return plain.limits, EmulatedDevice(inner, bytes_per_second=1.0, timers=loop, limits=other).limits

    plain, own = virtual_time.run(main())
    assert (plain, own.chunk_bytes) == (ScriptedDevice({}).limits, 7)
