"""The real kvikio, in subprocesses with a stand-in for the CUDA driver."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from pystachio.errors import Unsupported
from pystachio.io_scheduler.devices import choose, nvme
from pystachio.io_scheduler.devices.posix import PosixDevice
from pystachio.io_scheduler.request import Link
from tests.io_scheduler.devices.driver_stand_in import compile_driver, has_compiler

LINK = Link("disk", "1:0")
needs_kvikio = pytest.mark.skipif(
    find_spec("kvikio") is None or not has_compiler(), reason="kvikio or gcc is not installed"
)

PROLOGUE = """
import asyncio, ctypes, gc, sys
ctypes.CDLL(sys.argv[1])
from pystachio.errors import DataError, InvalidRequest, NotFound
from pystachio.io_scheduler.devices import choose
from pystachio.io_scheduler.devices.nvme import NvmeDevice, kvikio_report
from pystachio.io_scheduler.request import Extent, Link, PathTaken, PriorityClass
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

REPORT = """
report = kvikio_report()
assert report.version and report.driver and not report.gds, report
"""


@needs_kvikio
@pytest.mark.parametrize("script", [READ, FAIL, REPORT], ids=["read", "fail", "report"])
def test_kvikio_moves_bytes(tmp_path: Path, script: str) -> None:
    (tmp_path / "data").write_bytes(os.urandom(3_000_000))
    command = [sys.executable, "-c", PROLOGUE + script, str(compile_driver(tmp_path)), str(tmp_path / "data")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.skipif(nvme.driver_is_loadable(), reason="this machine has a CUDA driver")
def test_without_a_driver_the_posix_device_serves() -> None:
    assert isinstance(choose("auto")(LINK), PosixDevice)
    with pytest.raises(Unsupported):
        choose("nvme")(LINK)
    report = nvme.kvikio_report()
    assert not report.driver
    assert not report.gds


def test_a_driver_that_kvikio_cannot_use_leaves_the_posix_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container often holds the driver's library without a GPU, or a kvikio for another CUDA release."""

    def broken(name: str) -> NoReturn:
        raise RuntimeError(f"{name}: the driver is older than the library")

    monkeypatch.setattr(nvme, "driver_is_loadable", lambda: True)
    monkeypatch.setattr(nvme, "import_module", broken)
    assert isinstance(choose("auto")(LINK), PosixDevice)
    with pytest.raises(Unsupported):
        choose("nvme")(LINK)
