"""Files that change while they are read, through the service."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pystachio.errors import DataError, Unauthorized
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PriorityClass
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.devices.posix import PosixDevice
from pystachio.io_scheduler.service import IoSchedulerService
from tests.io_scheduler.memory_disk import content


@asynccontextmanager
async def real_disk(chunk_bytes: int = 10_000) -> AsyncIterator[IoSchedulerService]:
    """Files of the system at a million bytes a second of real time."""
    limits = LinkLimits(chunk_bytes=chunk_bytes, window_bytes=2 * chunk_bytes, smallest_chunk_bytes=chunk_bytes)

    def open_device(link: Link) -> EmulatedDevice:
        inner = PosixDevice(name=link.name, direction=link.direction)
        return EmulatedDevice(inner, bytes_per_second=1e6, limits=limits)

    service = IoSchedulerService(open_device=open_device)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
    assert service.statistics().open_files == 0


async def until_moved(service: IoSchedulerService, nbytes: int) -> None:
    """However long that takes: what is read is open by then."""
    while service.ledger.total().transferred_bytes < nbytes:  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_a_file_that_is_truncated_in_mid_read_fails_its_reader(tmp_path: Path) -> None:
    hit, spared = tmp_path / "hit", tmp_path / "spared"
    for path in (hit, spared):
        path.write_bytes(content(path.name, 200_000))

    async def main() -> None:
        async with real_disk() as service:
            one, other = (
                asyncio.create_task(
                    service.client(path.name, PriorityClass.NORMAL).read(str(path), [Extent(0, 200_000)])
                )
                for path in (hit, spared)
            )
            await until_moved(service, 100_000)
            os.truncate(hit, 150_000)
            with pytest.raises(DataError) as caught:
                await one
            assert caught.value.plan_id == "hit"
            (buffer,) = await other
            assert buffer.view == content("spared", 200_000)

    asyncio.run(main())


def test_a_file_that_is_replaced_in_mid_read_is_read_as_it_was_and_then_anew(tmp_path: Path) -> None:
    path, replacement = tmp_path / "f", tmp_path / "new"
    path.write_bytes(content("old", 200_000))
    replacement.write_bytes(content("new", 200_000))

    async def main() -> None:
        async with real_disk() as service:
            client = service.client("p", PriorityClass.NORMAL)
            read = asyncio.create_task(client.read(str(path), [Extent(0, 200_000)]))
            await until_moved(service, 100_000)
            replacement.rename(path)
            (buffer,) = await read
            assert buffer.view == content("old", 200_000)
            (buffer,) = await client.read(str(path), [Extent(0, 200_000)])
            assert buffer.view == content("new", 200_000)

    asyncio.run(main())


def test_a_file_whose_permission_is_lost_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(content("f", 50_000))
    real_open = os.open

    def forbidding_open(name: str, flags: int, mode: int = 0o777) -> int:
        if name == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_open(name, flags, mode)

    async def main() -> None:
        async with real_disk() as service:
            client = service.client("p", PriorityClass.NORMAL)
            read = asyncio.create_task(client.read(str(path), [Extent(0, 50_000)]))
            await until_moved(service, 30_000)
            assert not read.done()
            monkeypatch.setattr(os, "open", forbidding_open)
            (buffer,) = await read
            assert buffer.view == content("f", 50_000), "the system decides when a file is opened"
            with pytest.raises(Unauthorized):
                await client.read(str(path), [Extent(0, 50_000)])

    asyncio.run(main())
