"""The shell around the core, with a device under the test's control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pystachio.errors import Cancelled, DataError, InternalError, InvalidRequest
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PathTaken, PriorityClass
from pystachio.io_scheduler.core.scheduler import Scheduler
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.io_scheduler.submission import Request
from tests.io_scheduler.scripted_device import ScriptedDevice

LINK = Link("disk", "1:0")
CONTENT = bytes(range(256)) * 4
FILES = {"/f": CONTENT, "/g": CONTENT[::-1]}


async def locate(path: str) -> Link:
    return LINK


@asynccontextmanager
async def serving(device: ScriptedDevice) -> AsyncIterator[IoSchedulerService]:
    service = IoSchedulerService(open_device=lambda link: device, locate=locate)
    await service.start()
    try:
        yield service
    finally:
        device.at_once = True
        device.end_all()
        await service.stop()
        assert device.closed
        assert all(file.closed for file in device.files)
        statistics = service.statistics()
        assert (statistics.transfers, statistics.chunks, statistics.open_files, statistics.plans) == (0, 0, 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition does not come to hold")


async def test_a_read_returns_the_extents_in_order() -> None:
    async with serving(ScriptedDevice(FILES)) as service:
        client = service.client("p", PriorityClass.NORMAL)
        extents = [Extent(500, 20), Extent(0, 10), Extent(7, 0), Extent(5, 100)]
        buffers = await client.read("/f", extents)
        assert [bytes(buffer.view) for buffer in buffers] == [CONTENT[e.offset : e.end] for e in extents]
        totals = service.ledger.plan("p")
        assert totals.useful_bytes == 125
        assert totals.transferred_bytes == 520
        assert totals.paths == {PathTaken.EMULATED: 520}


async def test_a_released_buffer_is_not_readable() -> None:
    async with serving(ScriptedDevice(FILES)) as service:
        (buffer,) = await service.client("p", PriorityClass.NORMAL).read("/f", [Extent(0, 10)])
        with buffer:
            assert buffer.nbytes == 10
        buffer.release()
        assert buffer.nbytes == 0
        with pytest.raises(InternalError):
            _ = buffer.view
        assert service.statistics().buffers.used_bytes == 0


async def test_a_failed_chunk_fails_the_read_and_gives_up_the_rest() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        client = service.client("p", PriorityClass.NORMAL)
        read = asyncio.create_task(client.read("/f", [Extent(0, 100), Extent(400_000, 10)]))
        await until(lambda: len(device.inside) == 2)
        device.end_next(DataError("the disk is broken"))
        await until(lambda: device.abandoned != [])
        assert not read.done(), "the device still writes into the destination"
        device.end_all()
        with pytest.raises(DataError, match="the disk is broken") as caught:
            await read
        assert caught.value.plan_id == "p"
        # The second transfer took the place that fell free before anybody could give it up.
        assert len(device.order) == 3
        assert service.ledger.plan("p").useful_bytes == 0


async def test_a_cancelled_task_ends_when_the_device_has_done_with_its_buffer() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        client = service.client("p", PriorityClass.NORMAL)
        read = asyncio.create_task(client.read("/f", [Extent(0, 200)]))
        await until(lambda: len(device.inside) == 2)
        read.cancel()
        await until(lambda: device.abandoned == [0, 16])
        read.cancel()
        await asyncio.sleep(0)
        assert not read.done()
        assert service.statistics().buffers.blocks == 1
        device.end_all()
        with pytest.raises(asyncio.CancelledError):
            await read
        assert service.statistics().buffers.blocks == 0
        assert len(device.order) == 2
        # The plan itself goes on.
        device.at_once = True
        assert len(await client.read("/f", [Extent(0, 200)])) == 1


async def test_a_timeout_around_a_read_is_a_timeout() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        client = service.client("p", PriorityClass.NORMAL)

        async def read_in_time() -> None:
            async with asyncio.timeout(0.02):
                await client.read("/f", [Extent(0, 20)])

        read = asyncio.create_task(read_in_time())
        await until(lambda: len(device.inside) == 1)
        await until(lambda: device.abandoned != [])
        device.end_all()
        with pytest.raises(TimeoutError):
            await read


async def test_read_into_the_callers_memory() -> None:
    async with serving(ScriptedDevice(FILES)) as service:
        destination = bytearray(100)
        await service.client("p", PriorityClass.NORMAL).read_into("/f", 50, memoryview(destination))
        assert destination == CONTENT[50:150]


async def test_a_cancelled_plan_stops_and_the_other_goes_on() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        doomed = asyncio.create_task(service.client("doomed", PriorityClass.NORMAL).read("/f", [Extent(0, 500)]))
        other = asyncio.create_task(service.client("other", PriorityClass.NORMAL).read("/g", [Extent(0, 100)]))
        await until(lambda: len(device.inside) == 2)
        service.cancel_plan("doomed")
        await until(lambda: device.abandoned != [])
        device.at_once = True
        device.end_all()
        with pytest.raises(Cancelled) as caught:
            await doomed
        assert caught.value.plan_id == "doomed"
        (buffer,) = await other
        assert bytes(buffer.view) == FILES["/g"][:100]
        with pytest.raises(Cancelled):
            await service.client("doomed", PriorityClass.NORMAL).read("/f", [Extent(0, 5)])


async def test_a_closed_plan_takes_nothing_more() -> None:
    async with serving(ScriptedDevice(FILES)) as service:
        client = service.client("p", PriorityClass.NORMAL)
        await client.read("/f", [Extent(0, 5)])
        service.close_plan("p")
        service.close_plan("p")
        with pytest.raises(Cancelled):
            await client.read("/f", [Extent(0, 5)])
        assert service.ledger.plan("p").useful_bytes == 5


async def test_an_urgent_plan_overtakes_what_waits() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        slow = asyncio.create_task(service.client("slow", PriorityClass.BATCH).read("/f", [Extent(0, 64)]))
        await until(lambda: len(device.inside) == 2)
        urgent = asyncio.create_task(service.client("urgent", PriorityClass.INTERACTIVE).read("/g", [Extent(0, 32)]))
        await until(lambda: service.statistics().transfers == 2)
        device.at_once = True
        device.end_all()
        await asyncio.gather(slow, urgent)
        assert [path for path, _ in device.order] == ["/f", "/f", "/g", "/g", "/f", "/f"]


async def test_a_change_of_priority_reaches_what_waits() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        first = asyncio.create_task(service.client("first", PriorityClass.NORMAL).read("/f", [Extent(0, 96)]))
        await until(lambda: len(device.inside) == 2)
        second = asyncio.create_task(service.client("second", PriorityClass.BATCH).read("/g", [Extent(0, 32)]))
        await until(lambda: service.statistics().transfers == 2)
        service.set_priority("second", PriorityClass.INTERACTIVE)
        device.at_once = True
        device.end_all()
        await asyncio.gather(first, second)
        assert [path for path, _ in device.order][2:4] == ["/g", "/g"]
        classes = {entry.plan_id: entry.priority for entry in service.ledger.entries()}
        assert classes["second"] == PriorityClass.INTERACTIVE


async def test_stopping_cancels_what_is_under_way() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    service = IoSchedulerService(open_device=lambda link: device, locate=locate)
    await service.start()
    read = asyncio.create_task(service.client("p", PriorityClass.NORMAL).read("/f", [Extent(0, 500)]))
    await until(lambda: len(device.inside) == 2)
    stopping = asyncio.create_task(service.stop())
    await until(lambda: len(device.abandoned) == 2)
    assert not stopping.done()
    device.end_all()
    await stopping
    with pytest.raises(Cancelled):
        await read
    assert device.closed


class BrokenDevice(ScriptedDevice):
    def start(self, read: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        raise ValueError("a defect")


async def test_a_device_that_raises_fails_the_read() -> None:
    async with serving(BrokenDevice(FILES)) as service:
        with pytest.raises(InternalError, match="a defect"):
            await service.client("p", PriorityClass.NORMAL).read("/f", [Extent(0, 5)])


class LyingDevice(ScriptedDevice):
    def start(self, read: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        for _ in range(2):
            ended(ChunkEnd(len(read.buffer), PathTaken.EMULATED))


async def test_a_device_that_ends_a_chunk_twice_is_heard_once() -> None:
    async with serving(LyingDevice(FILES)) as service:
        client = service.client("p", PriorityClass.NORMAL)
        for _ in range(3):
            await asyncio.gather(*(client.read("/f", [Extent(0, 100)]) for _ in range(3)))
        assert service.ledger.plan("p").transferred_bytes == 900


async def test_a_defect_of_the_scheduler_hangs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    service = IoSchedulerService(open_device=lambda link: ScriptedDevice(FILES), locate=locate)
    await service.start()
    client = service.client("p", PriorityClass.NORMAL)
    await client.read("/f", [Extent(0, 5)])

    def fail(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(Scheduler, "_submit", fail)
    with pytest.raises(InternalError):
        await asyncio.gather(*(client.read("/f", [Extent(0, 100)]) for _ in range(3)))
    with pytest.raises(InternalError):
        await client.read("/f", [Extent(0, 5)])
    await service.stop()
    assert service.statistics().open_files == 0


async def test_a_link_is_opened_once() -> None:
    link = Link("network", "there")
    async with serving(ScriptedDevice(FILES)) as service:
        service.register_device(link, ScriptedDevice(FILES))
        with pytest.raises(InvalidRequest, match="open already"):
            service.register_device(link, ScriptedDevice(FILES))
        await service.client("p", PriorityClass.NORMAL).read("/f", [Extent(0, 5)])


async def test_a_flood_does_not_keep_the_loop_to_itself() -> None:
    """Neither the telling of 50,000 transfers nor their ends: who comes later, of the same class, has his turn."""
    count = 50_000
    limits = LinkLimits(chunk_bytes=64, window_bytes=64_000, calibrated=False)
    device = ScriptedDevice(FILES, limits=limits)
    async with serving(device) as service:
        client = service.client("batch", PriorityClass.BATCH)
        other = service.client("other", PriorityClass.BATCH)
        await client.read("/f", [Extent(0, 1)])
        destination = memoryview(bytearray(count))
        link = client.link("/f")
        assert link is not None
        requests = [Request(Extent(0, 1), destination[i : i + 1], 1, 1) for i in range(count)]
        flood = service.submit("batch", "/f", link, requests)
        await asyncio.sleep(0)
        await other.read("/f", [Extent(0, 1)])
        assert service.ledger.plan("batch").requests < count / 10
        await flood.ended
        assert service.ledger.total().requests == count + 2


async def test_a_service_starts_again_after_its_end() -> None:
    service = IoSchedulerService(open_device=lambda link: ScriptedDevice(FILES), locate=locate)
    for _ in range(2):
        await service.start()
        (buffer,) = await service.client("p", PriorityClass.NORMAL).read("/f", [Extent(0, 5)])
        assert bytes(buffer.view) == CONTENT[:5]
        await service.stop()


async def test_many_reads_at_once_share_one_open_file() -> None:
    limits = LinkLimits(chunk_bytes=64, window_bytes=256, calibrated=False)
    device = ScriptedDevice(FILES, limits=limits)
    async with serving(device) as service:
        client = service.client("p", PriorityClass.NORMAL)
        await client.read("/f", [Extent(0, 1)])
        results = await asyncio.gather(*(client.read("/f", [Extent(i, 300)]) for i in range(50)))
        assert all(bytes(result[0].view) == CONTENT[i : i + 300] for i, result in enumerate(results))
        assert len(device.files) == 2
