"""Folders that stand for disks of another speed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pystachio.errors import NotFound
from pystachio.io_scheduler.core.request import Extent, Link, PriorityClass
from pystachio.io_scheduler.devices import choose
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.emulation import Emulation, emulating
from pystachio.io_scheduler.links import locate_disk
from pystachio.io_scheduler.service import IoSchedulerService


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("ssd/inner", "ssdx"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("ssd/a", "ssd/inner/b", "ssdx/c", "d"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 4096)
    (tmp_path / "link").symlink_to(tmp_path / "ssd" / "a")
    return tmp_path


async def test_a_file_lies_on_the_innermost_folder_that_holds_it(tree: Path) -> None:
    locate, _ = emulating(
        [Emulation(str(tree / "ssd"), 1e6), Emulation(str(tree / "ssd" / "inner"), 1e6)], locate_disk, choose("posix")
    )
    assert await locate(str(tree / "ssd" / "a")) == Link("emulated", str(tree / "ssd"))
    assert await locate(str(tree / "ssd" / "inner" / "b")) == Link("emulated", str(tree / "ssd" / "inner"))
    assert await locate(str(tree / "link")) == Link("emulated", str(tree / "ssd"))
    assert await locate(str(tree / "ssd")) == Link("emulated", str(tree / "ssd"))
    for real in ("d", "ssdx/c"):
        assert (await locate(str(tree / real))).medium == "disk"
    with pytest.raises(NotFound):
        await locate(str(tree / "ssd" / "none"))


async def test_bytes_are_the_files_and_time_is_the_emulations(tree: Path) -> None:
    locate, open_device = emulating([Emulation(str(tree / "ssd"), 10e6)], locate_disk, choose("posix"))
    service = IoSchedulerService(locate=locate, open_device=open_device)
    await service.start()
    client = service.client("p", PriorityClass.NORMAL)
    started = time.monotonic()
    (buffer,) = await client.read(str(tree / "ssd" / "a"), [Extent(0, 1 << 20)])
    assert time.monotonic() - started >= 0.1
    assert bytes(buffer.view) == bytes(range(256)) * 4096
    service.close_plan("p")
    await service.stop()


def test_a_folder_that_does_not_exist_is_named(tree: Path) -> None:
    with pytest.raises(NotFound, match=f"to be emulated: {tree / 'none'}"):
        emulating([Emulation(str(tree / "none"), 1e6)], locate_disk, choose("posix"))


def test_nothing_emulated_changes_nothing() -> None:
    open_device = choose("posix")
    assert emulating([], locate_disk, open_device) == (locate_disk, open_device)


def test_each_folder_has_a_device_of_its_own(tree: Path) -> None:
    _, open_device = emulating([Emulation(str(tree / "ssd"), 1e6)], locate_disk, choose("posix"))
    device = open_device(Link("emulated", str(tree / "ssd")))
    assert isinstance(device, EmulatedDevice)
    assert not isinstance(open_device(Link("disk", "1:0")), EmulatedDevice)
    device.close()
