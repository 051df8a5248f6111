"""Reads of real files through the whole scheduler."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pystachio.errors import Cancelled, DataError, InternalError, NotFound, PystachioError
from pystachio.io_scheduler.client import HostBuffer, TransferClient
from pystachio.io_scheduler.core.request import Extent, Link, PathTaken, PriorityClass
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, Device, choose, native
from pystachio.io_scheduler.devices.compiled import CompiledDevice
from pystachio.io_scheduler.devices.posix import PosixDevice
from pystachio.io_scheduler.service import IoSchedulerService

CONTENT = np.random.default_rng(0).integers(0, 256, 3_000_001, dtype=np.uint8).tobytes()


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "data"
    file.write_bytes(CONTENT)
    return str(file)


@asynccontextmanager
async def serving(
    *, direct: bool = False, compiled: bool = False
) -> AsyncIterator[tuple[IoSchedulerService, TransferClient]]:
    def open_device(_: Link) -> Device:
        if not compiled:
            return PosixDevice(direct=direct, chunk_bytes=1 << 16)
        return CompiledDevice(native.load(), asyncio.get_running_loop(), direct=direct, chunk_bytes=1 << 16)

    service = IoSchedulerService(open_device=open_device)
    await service.start()
    try:
        yield service, service.client("p", PriorityClass.NORMAL)
    finally:
        await service.stop()
        statistics = service.statistics()
        assert (statistics.transfers, statistics.chunks, statistics.open_files) == (0, 0, 0)


EXTENTS = st.lists(
    st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 300_000)).map(
        lambda pair: Extent(pair[0], min(pair[1], len(CONTENT) - pair[0]))
    ),
    max_size=20,
)


@pytest.mark.parametrize("direct", [False, True])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extents=EXTENTS)
def test_every_extent_holds_the_files_bytes(path: str, direct: bool, extents: list[Extent]) -> None:
    async def main() -> None:
        async with serving(direct=direct) as (_, client):
            buffers = await client.read(path, extents)
            assert [bytes(b.view) for b in buffers] == [CONTENT[e.offset : e.end] for e in extents]

    asyncio.run(main())


async def test_direct_reads_are_counted_as_such(path: str) -> None:
    async with serving(direct=True) as (service, client):
        await client.read(path, [Extent(100_000, 50_000)])
        destination = bytearray(10)
        await client.read_into(path, 3, memoryview(destination))
        totals = service.ledger.plan("p")
        assert totals.useful_bytes == 50_010
        assert totals.paths == {PathTaken.DIRECT: 53_248, PathTaken.BUFFERED: 10}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bfloat16])
async def test_a_tensor_is_filled_in_place(path: str, dtype: torch.dtype) -> None:
    destination = torch.zeros(5, 400, dtype=dtype)
    async with serving() as (_, client):
        await client.read_into(path, 777, destination)
    expected = CONTENT[777 : 777 + destination.nbytes]
    assert destination.view(torch.uint8).numpy().tobytes() == expected


async def test_a_strided_tensor_is_refused(path: str) -> None:
    async with serving() as (_, client):
        with pytest.raises(InternalError):
            await client.read_into(path, 0, torch.zeros(10, 10)[:, 3])


async def test_arrow_decodes_in_place_and_outlives_the_buffer(tmp_path: Path) -> None:
    table = pa.table({"number": range(100_000)})
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    async with serving() as (service, client):
        (buffer,) = await client.read(str(tmp_path / "t.arrow"), [Extent(0, (tmp_path / "t.arrow").stat().st_size)])
        decoded = pa.ipc.open_stream(pa.py_buffer(buffer.view)).read_all()
        buffer.release()
        # Other reads do not touch memory that Arrow still refers to.
        assert service.statistics().buffers.blocks == 1
        for _ in range(3):
            await client.read(str(tmp_path / "t.arrow"), [Extent(0, 800_000)])
        assert decoded == table
        del decoded
        assert service.statistics().buffers.blocks == 0


async def test_parquet_is_decoded_from_the_buffer(tmp_path: Path) -> None:
    table = pa.table({"number": range(1000), "text": [str(i) for i in range(1000)]})
    pq.write_table(table, tmp_path / "t.parquet")
    async with serving() as (_, client):
        (buffer,) = await client.read(str(tmp_path / "t.parquet"), [Extent(0, (tmp_path / "t.parquet").stat().st_size)])
        assert pq.read_table(pa.BufferReader(pa.py_buffer(buffer.view))) == table


async def test_bad_reads_are_typed_and_the_plan_goes_on(path: str, tmp_path: Path) -> None:
    async with serving() as (service, client):
        with pytest.raises(NotFound):
            await client.read(str(tmp_path / "absent"), [Extent(0, 10)])
        with pytest.raises(DataError, match="ends before"):
            await client.read(path, [Extent(0, 10), Extent(len(CONTENT) - 5, 10)])
        with pytest.raises(DataError, match="ends before"):
            await client.read(path, [Extent(10**15, 1 << 30)])
        with pytest.raises(DataError):
            await client.read(path, [Extent(-5, 10)])
        os.unlink(path)
        with pytest.raises(NotFound) as caught:
            await client.read(path, [Extent(0, 10)])
        assert caught.value.plan_id == "p"
        assert service.statistics().buffers.blocks == 0


@pytest.mark.parametrize("direct", [False, True])
async def test_files_are_read_together(tmp_path: Path, direct: bool) -> None:
    lengths = [0, 1, 4096, 70_000, 300_001, 65_536]
    files = []
    for number, length in enumerate(lengths):
        (tmp_path / str(number)).write_bytes(CONTENT[number : number + length])
        files.append((str(tmp_path / str(number)), length))
    async with serving(direct=direct) as (service, client):
        found = await client.read_files(files, beside=str(tmp_path))
        for number, (buffer, length) in enumerate(zip(found, lengths, strict=True)):
            assert not isinstance(buffer, PystachioError)
            assert bytes(buffer.view) == CONTENT[number : number + length]
        assert await client.read_files([], beside=str(tmp_path)) == []
        with pytest.raises(NotFound):
            await client.read_files(files, beside=str(tmp_path / "absent"))
        del found, buffer
        assert service.statistics().buffers.blocks == 0


async def test_a_file_that_cannot_be_read_stands_for_itself(path: str, tmp_path: Path) -> None:
    async with serving() as (service, client):
        wanted = [(str(tmp_path / "absent"), 10), (path, 1000), (path, len(CONTENT) + 1), (path, 5), ("a\0b", 5)]
        found = await client.read_files(wanted, beside=str(tmp_path))
        kinds = [buffer.code if isinstance(buffer, PystachioError) else buffer.nbytes for buffer in found]
        assert kinds == ["not_found", 1000, "data_error", 5, "invalid_request"]
        service.cancel_plan("p")
        with pytest.raises(Cancelled):
            await client.read_files(wanted, beside=str(tmp_path))
        del found
        assert service.statistics().buffers.blocks == 0
        service.close_plan("p")
        async with asyncio.timeout(10):
            with pytest.raises(Cancelled, match="closed"):
                await client.read_files(wanted, beside=str(tmp_path))


def whole_pages(folder: Path, sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Files of so many pages, each with bytes of its own."""
    files = []
    for number, pages in enumerate(sizes):
        content = bytes([number + 1]) * (4096 * pages)
        (folder / f"{number}.part").write_bytes(content)
        files.append((str(folder / f"{number}.part"), len(content)))
    return files


NEEDS_LIBRARY = pytest.mark.skipif(native.load().library is None, reason="only the compiled device reads series")


@NEEDS_LIBRARY
async def test_files_of_whole_pages_share_transfers(tmp_path: Path) -> None:
    """As many as go into 2 MiB; their chunks are cut without regard to where one ends."""
    sizes = [1, 300, 700, 20, 3, 1500, 2, 2]
    files = whole_pages(tmp_path, sizes)
    async with serving(direct=True, compiled=True) as (service, client):
        found = await client.read_files(files, beside=str(tmp_path))
        for number, (buffer, pages) in enumerate(zip(found, sizes, strict=True)):
            assert not isinstance(buffer, PystachioError)
            assert bytes(buffer.view) == bytes([number + 1]) * (4096 * pages)
        transfers = sorted(service.history.snapshot().transfers)
        assert [record.length for record in transfers] == [4096 * 301, 4096 * 700, 4096 * 23, 4096 * 1500, 4096 * 4]
        assert transfers[0].path.endswith("0.part and 1 files more")
        assert service.ledger.plan("p").transferred_bytes == 4096 * sum(sizes)
        # Each is there as long as somebody has it, and no longer.
        one = found[1]
        del found, buffer
        gc.collect()
        assert service.statistics().buffers.used_bytes == 4096 * 300
        assert not isinstance(one, PystachioError)
        assert bytes(one.view[:3]) == b"\x02\x02\x02"
        del one
        gc.collect()
        assert service.statistics().buffers.blocks == 0
        assert service.statistics().open_files == 0


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=NEEDS_LIBRARY)])
async def test_one_that_is_missing_among_many_stands_for_itself(tmp_path: Path, compiled: bool) -> None:
    files = whole_pages(tmp_path, [3, 4, 5, 6])
    os.unlink(files[1][0])
    os.truncate(files[2][0], 4096)
    async with serving(direct=True, compiled=compiled) as (service, client):
        found = await client.read_files(files, beside=str(tmp_path))
        kinds = [buffer.code if isinstance(buffer, PystachioError) else buffer.nbytes for buffer in found]
        assert kinds == [3 * 4096, "not_found", "data_error", 6 * 4096]
        assert isinstance(found[3], HostBuffer)
        assert bytes(found[3].view) == b"\x04" * (6 * 4096)
        del found
        # A coroutine that goes on behind an error holds what it was told until it waits again.
        await asyncio.sleep(0)
        assert service.statistics().buffers.blocks == 0


async def test_memory_for_what_is_made_of_the_bytes() -> None:
    async with serving() as (service, client):
        pieces = client.memory([1, 5000, 4096])
        assert [len(piece) for piece in pieces] == [1, 5000, 4096]
        for number, piece in enumerate(pieces):
            piece[:] = bytes([number]) * len(piece)
        assert [set(piece) for piece in pieces] == [{0}, {1}, {2}]
        assert service.statistics().buffers.used_bytes == 4 * 4096
        del pieces, piece
        gc.collect()
        assert service.statistics().buffers.used_bytes == 0


async def test_cancelled_reads_of_files_start_no_more(tmp_path: Path) -> None:
    """All are given up at once, not one after the other."""
    wanted = []
    for number in range(24):
        (tmp_path / str(number)).write_bytes(CONTENT[:60_000])
        wanted.append((str(tmp_path / str(number)), 60_000))
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    started: list[str] = []
    go_on = threading.Event()

    class Held(PosixDevice):
        def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
            started.append(request.file.path)
            begun.set()

            def end(outcome: ChunkEnd) -> None:
                go_on.wait(10)
                loop.call_soon_threadsafe(ended, outcome)

            super().start(request, end)

    service = IoSchedulerService(open_device=lambda link: Held(threads=1, window_bytes=1 << 16, chunk_bytes=1 << 16))
    await service.start()
    task = asyncio.create_task(service.client("p", PriorityClass.NORMAL).read_files(wanted, beside=str(tmp_path)))
    await begun.wait()
    before = len(started)
    task.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert len(started) == before < 24
    await service.stop()


async def test_cancelled_reads_of_files_leave_nothing(tmp_path: Path) -> None:
    files = []
    for number in range(12):
        (tmp_path / str(number)).write_bytes(CONTENT[: 200_000 if number % 3 else 10])
        files.append((str(tmp_path / str(number)), 150_000))
    async with serving() as (service, client):
        await client.read_files(files, beside=str(tmp_path))
        for turns in range(60):
            task = asyncio.create_task(client.read_files(files, beside=str(tmp_path)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            # Those that failed before were not waited for, and the others are.
            assert service.statistics().chunks == 0
            del task
        assert service.statistics().transfers == 0
        assert service.statistics().buffers.blocks == 0


async def test_cancelled_reads_leave_nothing(path: str) -> None:
    async with serving() as (service, client):
        await client.read(path, [Extent(0, 1)])
        for turns in range(30):
            task = asyncio.create_task(client.read(path, [Extent(i * 200_000, 100_000) for i in range(15)]))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            del task
        assert service.statistics().transfers == 0
        assert service.statistics().buffers.blocks == 0


def test_the_same_reads_on_uvloop(path: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with serving() as (service, client):
            extents = [Extent(i * 90_000, 50_000) for i in range(30)]
            for _ in range(5):
                results = await asyncio.gather(*(client.read(path, extents) for _ in range(4)))
                for buffers in results:
                    assert [bytes(b.view) for b in buffers] == [CONTENT[e.offset : e.end] for e in extents]
                task = asyncio.create_task(client.read(path, extents))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            del task, buffers, results
            assert service.statistics().buffers.blocks == 0

    uvloop.run(main())


COUNT_BYTES = """
import asyncio, sys
from pystachio.io_scheduler.devices.posix import PosixDevice
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService

def characters_read():
    with open("/proc/self/io", "rb", buffering=0) as file:
        return int(file.read().split()[1])

async def main(path, direct):
    service = IoSchedulerService(open_device=lambda link: PosixDevice(direct=direct, chunk_bytes=1 << 16))
    await service.start()
    client = service.client("p", PriorityClass.NORMAL)
    await client.read(path, [Extent(0, 1)])
    counted = service.ledger.plan("p").transferred_bytes
    first = characters_read()
    own = characters_read() - first
    start = characters_read()
    await client.read(path, [Extent(i * 37_000, 300 * i) for i in range(80)])
    read = characters_read() - start - own
    print(read, service.ledger.plan("p").transferred_bytes - counted)
    await service.stop()

asyncio.run(main(sys.argv[1], sys.argv[2] == "direct"))
"""


@pytest.mark.parametrize("mode", ["buffered", "direct"])
def test_the_ledger_counts_what_the_operating_system_counts(path: str, mode: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", COUNT_BYTES, path, mode], check=True, capture_output=True, text=True, timeout=60
    )
    system, ledger = map(int, finished.stdout.split())
    assert system == ledger > 900_000


async def test_no_descriptor_is_left_open(path: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with serving() as (_, client):
        for _ in range(10):
            await client.read(path, [Extent(0, 100_000)])
        with pytest.raises(DataError):
            await client.read(path, [Extent(len(CONTENT), 1)])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_posix_device_can_be_demanded() -> None:
    from pystachio.io_scheduler.core.request import Link

    device = choose("posix", direct=True)(Link("disk", "1:0"))
    assert device.limits.alignment == 4096
    device.close()
