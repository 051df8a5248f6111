"""The real kvikio, in subprocesses with a stand-in for the CUDA driver."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import pytest

from pystachio.errors import Unsupported
from pystachio.io_scheduler.core.request import Direction, Link, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, Device, choose, nvme
from pystachio.io_scheduler.devices.posix import PosixDevice
from tests.io_scheduler.devices.driver_stand_in import compile_driver, has_compiler

LINK = Link("disk", "1:0")
needs_kvikio = pytest.mark.skipif(
    find_spec("kvikio") is None or not has_compiler(), reason="kvikio or gcc is not installed"
)

PROLOGUE = """
import asyncio, ctypes, gc, sys
ctypes.CDLL(sys.argv[1])
from queue import SimpleQueue
from pystachio.errors import DataError, InvalidRequest, NotFound, ResourceExhausted
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, choose, nvme
from pystachio.io_scheduler.devices.nvme import NvmeDevice, kvikio_report
from pystachio.io_scheduler.core.request import Direction, Extent, Link, PathTaken, PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService
path = sys.argv[2]
content = open(path, "rb").read()

async def raises(kind, awaitable):
    try:
        await awaitable
    except kind as error:
        assert type(error) is kind, error
        return error
    raise AssertionError(f"no {kind}")
"""

READ = """
async def main():
    service = IoSchedulerService(open_device=choose("auto"))
    await service.start()
    client = service.client("p", PriorityClass.NORMAL)
    extents = [Extent(i * 100_000, 70_001) for i in range(25)]
    for _ in range(3):
        buffers = await client.read(path, extents)
        assert all(bytes(b.view) == content[e.offset : e.end] for b, e in zip(buffers, extents, strict=True))
    del buffers
    destination = bytearray(1000)
    await client.read_into(path, 5, memoryview(destination))
    assert destination == content[5:1005]
    totals = service.ledger.plan("p")
    assert set(totals.paths) == {PathTaken.KVIKIO_POSIX}, totals
    assert totals.useful_bytes == 3 * 25 * 70_001 + 1000
    await service.stop()
    assert service.statistics().buffers.blocks == 0

asyncio.run(main())
"""

FAIL = """
async def main():
    service = IoSchedulerService(open_device=lambda link: NvmeDevice(name=link.name))
    await service.start()
    client = service.client("p", PriorityClass.NORMAL)
    await raises(NotFound, client.read(path + "absent", [Extent(0, 10)]))
    await raises(InvalidRequest, client.read(path.rsplit("/", 1)[0], [Extent(0, 10)]))
    error = await raises(DataError, client.read(path, [Extent(len(content) - 5, 10)]))
    assert "ends before" in str(error)
    for turns in range(20):
        task = asyncio.create_task(client.read(path, [Extent(0, len(content))]))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    del task
    assert bytes((await client.read(path, [Extent(0, 100)]))[0].view) == content[:100]
    await service.stop()
    gc.collect()
    statistics = service.statistics()
    assert (statistics.buffers.blocks, statistics.open_files, statistics.chunks) == (0, 0, 0), statistics

asyncio.run(main())
"""

WRITE = """
import os, stat
device = choose("auto")(Link("disk", "1:0", Direction.WRITE))
ends = SimpleQueue()

def write(target, offset, data):
    request = ChunkRequest(device.open(target), offset, data, len(data))
    device.start(request, ends.put)
    end = ends.get(timeout=30)
    request.file.close()
    return end

target = path + ".written"
assert write(target, 4096, memoryview(content)[4096:]) == ChunkEnd(len(content) - 4096, PathTaken.KVIKIO_POSIX)
assert write(target, 0, memoryview(bytearray(content[:4096]))).transferred == 4096
assert open(target, "rb").read() == content
assert stat.S_IMODE(os.stat(target).st_mode) == 0o600
assert type(write(path + ".absent/f", 0, content).error) is NotFound
assert type(write(os.path.dirname(path), 0, content).error) is InvalidRequest
import resource, mmap
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
error = write(target, 1 << 20, memoryview(mmap.mmap(-1, 1 << 20))).error
assert type(error) is ResourceExhausted and error.setting == "RLIMIT_FSIZE", error
device.close()
"""

OFF_THE_LOOP = """
import threading
threads = set()
real = nvme.load_kvikio
def load():
    threads.add(threading.current_thread())
    return real()
nvme.load_kvikio = load
device = choose("auto")(Link("disk", "1:0"))
ends = SimpleQueue()
requests = [ChunkRequest(device.open(path), 1000 * i, memoryview(bytearray(1000)), 1000) for i in range(10)]
for request in requests:
    device.start(request, ends.put)
assert [ends.get(timeout=30) for _ in requests] == [ChunkEnd(1000, PathTaken.KVIKIO_POSIX)] * 10
assert b"".join(request.buffer for request in requests) == content[:10_000]
assert threads and threading.current_thread() not in threads
for request in requests:
    request.file.close()
device.close()
"""

REPORT = """
report = kvikio_report()
assert report.version and report.driver and not report.gds, report
"""


@needs_kvikio
@pytest.mark.parametrize(
    "script", [READ, FAIL, WRITE, OFF_THE_LOOP, REPORT], ids=["read", "fail", "write", "off the loop", "report"]
)
def test_kvikio_moves_bytes(tmp_path: Path, script: str) -> None:
    (tmp_path / "data").write_bytes(os.urandom(3_000_000))
    command = [sys.executable, "-c", PROLOGUE + script, str(compile_driver(tmp_path)), str(tmp_path / "data")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr


def first_end(device: Device) -> ChunkEnd:
    """Of ten bytes from /dev/zero."""
    ends: SimpleQueue[ChunkEnd] = SimpleQueue()
    request = ChunkRequest(device.open("/dev/zero"), 0, memoryview(bytearray(10)), 10)
    device.start(request, ends.put)
    end = ends.get(timeout=30)
    request.file.close()
    device.close()
    return end


@pytest.mark.skipif(nvme.driver_is_loadable(), reason="this machine has a CUDA driver")
def test_without_a_driver_the_posix_device_serves() -> None:
    assert isinstance(choose("auto")(LINK), PosixDevice)
    assert isinstance(first_end(choose("nvme")(LINK)).error, Unsupported)
    report = nvme.kvikio_report()
    assert not report.driver
    assert not report.gds


def test_a_driver_that_kvikio_cannot_use_leaves_the_posix_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container often holds the driver's library without a GPU, or a kvikio for another CUDA release."""

    def broken(name: str) -> NoReturn:
        raise RuntimeError(f"{name}: the driver is older than the library")

    monkeypatch.setattr(nvme, "driver_is_loadable", lambda: True)
    monkeypatch.setattr(nvme, "import_module", broken)
    assert first_end(choose("auto")(LINK)) == ChunkEnd(10, PathTaken.BUFFERED)
    assert isinstance(first_end(choose("nvme")(LINK)).error, Unsupported)


@pytest.mark.parametrize("direct", [False, True])
def test_the_direction_of_the_link_decides(direct: bool) -> None:
    """Writes always go around the page cache."""
    reading = choose("posix", direct=direct)(LINK)
    writing = choose("posix", direct=direct)(LINK._replace(direction=Direction.WRITE))
    assert isinstance(reading, PosixDevice)
    assert isinstance(writing, PosixDevice)
    assert (reading.direction, writing.direction) == (Direction.READ, Direction.WRITE)
    assert (reading.limits.alignment, writing.limits.alignment) == (4096 if direct else 1, 4096)
