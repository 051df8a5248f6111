"""Copies between memories, behind an emulated wire and real timers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from pystachio.errors import Cancelled, DataError, NotFound, PystachioError
from pystachio.io_scheduler.core.request import Direction, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, Device
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.devices.memory import MemoryDevice
from pystachio.io_scheduler.devices.timers import PreciseTimers

CONTENT = os.urandom(100_000)
MIB = 1 << 20


def end_of(device: Device, request: ChunkRequest) -> ChunkEnd:
    ends: SimpleQueue[ChunkEnd] = SimpleQueue()
    device.start(request, ends.put)
    return ends.get(timeout=30)


def test_bytes_are_read_from_memory() -> None:
    device = MemoryDevice({"/m": memoryview(CONTENT)})
    request = ChunkRequest(device.open("/m"), 1000, memoryview(bytearray(5000)), 5000)
    assert end_of(device, request) == ChunkEnd(5000, PathTaken.EMULATED)
    assert request.buffer == CONTENT[1000:6000]
    behind = ChunkRequest(device.open("/m"), 99_000, memoryview(bytearray(5000)), 1000)
    assert end_of(device, behind) == ChunkEnd(1000, PathTaken.EMULATED)
    device.close()


def test_bytes_are_written_to_memory() -> None:
    there = bytearray(10_000)
    device = MemoryDevice({"/m": memoryview(there)}, direction=Direction.WRITE)
    request = ChunkRequest(device.open("/m"), 1000, memoryview(CONTENT)[:5000], 5000)
    assert end_of(device, request) == ChunkEnd(5000, PathTaken.EMULATED)
    assert there[1000:6000] == CONTENT[:5000]
    device.close()


@pytest.mark.parametrize(
    ("path", "offset", "abandoned", "kind"),
    [
        ("/absent", 0, False, NotFound),
        ("/m", 99_999, False, DataError),
        ("/m", 200_000, False, DataError),
        ("/m", 0, True, Cancelled),
    ],
)
def test_what_cannot_be_read(path: str, offset: int, abandoned: bool, kind: type[PystachioError]) -> None:
    device = MemoryDevice({"/m": memoryview(CONTENT)})
    request = ChunkRequest(device.open(path), offset, memoryview(bytearray(10)), 10, abandoned)
    assert type(end_of(device, request).error) is kind
    request.file.close()
    device.close()


async def seconds_of(device: Device, lengths: Sequence[int]) -> float:
    """From the start of all chunks to the end of the last."""
    ended = asyncio.Event()
    ends: list[ChunkEnd] = []

    def note(end: ChunkEnd) -> None:
        ends.append(end)
        if len(ends) == len(lengths):
            ended.set()

    file, buffer = device.open("/m"), memoryview(bytearray(max(lengths)))
    start = time.monotonic()
    for length in lengths:
        device.start(ChunkRequest(file, 0, buffer[:length], length), note)
    await ended.wait()
    taken = time.monotonic() - start
    assert [end.error for end in ends] == [None] * len(lengths)
    return taken


@pytest.mark.parametrize("uvloop", [False, True])
def test_rates_hold_in_real_time_on_several_links_at_once(uvloop: bool) -> None:
    """Chunks of 0.7 ms; a schedule that followed a loop's whole milliseconds would be far off."""
    rates = (100 * MIB, 500 * MIB)

    async def main() -> list[float]:
        devices = [
            EmulatedDevice(MemoryDevice({"/m": memoryview(bytes(MIB))}), bytes_per_second=rate) for rate in rates
        ]
        lengths = [[int(rate * 0.0007)] * 150 for rate in rates]
        seconds = await asyncio.gather(*map(seconds_of, devices, lengths))
        for device in devices:
            device.close()
        return seconds

    loop_factory = __import__("uvloop").new_event_loop if uvloop else None
    tries = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        # Never too fast; and not too slow the first time that the machine lets it.
        while not tries or (max(tries[-1]) >= 0.11 and len(tries) < 20):
            tries.append(runner.run(main()))
            assert min(tries[-1]) >= 0.1049
    assert max(tries[-1]) < 0.11, tries


def test_precise_timers_are_never_early_and_hardly_late() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        timers = PreciseTimers(loop)
        late = []
        for _ in range(50):
            rung: asyncio.Future[None] = loop.create_future()
            due = timers.time() + 0.0007
            timers.call_at(due, lambda rung=rung: rung.set_result(None))
            await rung
            late.append(timers.time() - due)
        timers.close()
        timers.close()
        return late

    late = asyncio.run(main())
    assert min(late) >= 0.0
    # The best of fifty: the others say how busy the machine is.
    assert min(late) < 0.0002


def test_precise_timers_ring_in_order_and_can_be_cancelled() -> None:
    async def main() -> list[str]:
        timers = PreciseTimers(asyncio.get_running_loop())
        rung: list[str] = []
        last = asyncio.Event()
        now = timers.time()
        timers.call_at(now + 0.004, last.set)
        timers.call_at(now + 0.002, lambda: rung.append("second"))
        never = timers.call_at(now + 0.001, lambda: rung.append("never"))
        timers.call_at(now - 1.0, lambda: rung.append("first"))
        never.cancel()
        await last.wait()
        timers.call_at(now + 3600.0, lambda: rung.append("never"))
        timers.close()
        return rung

    assert asyncio.run(main()) == ["first", "second"]
