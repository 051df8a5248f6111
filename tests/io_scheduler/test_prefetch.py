"""Reads that nobody waits for yet, beside others of their plan."""

from __future__ import annotations

import asyncio

from pystachio.io_scheduler.core.request import Extent, PriorityClass
from tests.io_scheduler.scripted_device import ScriptedDevice
from tests.io_scheduler.test_service import FILES, serving, until

CHUNK = 16


async def test_others_go_first_until_it_is_promoted() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        client = service.client("p", PriorityClass.NORMAL)
        prefetch = client.prefetch()
        early = asyncio.create_task(client.read("/f", [Extent(0, 6 * CHUNK)], prefetch=prefetch))
        await until(lambda: len(device.inside) == 2)
        first = asyncio.create_task(client.read("/g", [Extent(0, 2 * CHUNK)]))
        await asyncio.sleep(0.01)
        for _ in range(2):
            device.end_next()
        await until(lambda: len(device.order) == 4)
        assert [path for path, _ in device.order] == ["/f", "/f", "/g", "/g"]
        prefetch.promote()
        second = asyncio.create_task(client.read("/g", [Extent(8 * CHUNK, 2 * CHUNK)]))
        await asyncio.sleep(0.01)
        device.at_once = True
        device.end_all()
        (buffer,) = await early
        await asyncio.gather(first, second)
        assert bytes(buffer.view) == FILES["/f"][: 6 * CHUNK]
        assert [path for path, _ in device.order[4:]] == ["/f"] * 4 + ["/g"] * 2, "as if it had never waited"


async def test_what_begins_after_its_promotion_is_like_any_other() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        client = service.client("p", PriorityClass.NORMAL)
        prefetch = client.prefetch()
        prefetch.promote()
        prefetch.promote()
        reads = [asyncio.create_task(client.read("/f", [Extent(0, 4 * CHUNK)], prefetch=prefetch))]
        await until(lambda: len(device.inside) == 2)
        reads.append(asyncio.create_task(client.read("/g", [Extent(0, CHUNK)])))
        await asyncio.sleep(0.01)
        device.at_once = True
        device.end_all()
        await asyncio.gather(*reads)
        assert [path for path, _ in device.order] == ["/f"] * 4 + ["/g"]


async def test_files_are_prefetched_too() -> None:
    device = ScriptedDevice(FILES, at_once=False)
    async with serving(device) as service:
        client = service.client("p", PriorityClass.NORMAL)
        files = [(name, 4 * CHUNK) for name in FILES]
        early = asyncio.create_task(client.read_files(files, beside="/f", prefetch=client.prefetch()))
        await until(lambda: len(device.inside) == 2)
        late = asyncio.create_task(client.read("/g", [Extent(10 * CHUNK, CHUNK)]))
        await asyncio.sleep(0.01)
        device.at_once = True
        device.end_all()
        await asyncio.gather(early, late)
        assert device.order.index(("/g", 10 * CHUNK)) == 2
