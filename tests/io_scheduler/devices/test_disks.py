from __future__ import annotations

import os
from pathlib import Path

import pytest

from pystachio.errors import DataError, NotFound, PystachioError
from pystachio.io_scheduler.devices.disks import disk_link
from pystachio.io_scheduler.request import Direction, Link


def device_number(path: Path) -> str:
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_a_file_system_without_a_known_disk_is_a_link_of_its_own(tmp_path: Path) -> None:
    assert disk_link(str(tmp_path), system_disks=tmp_path / "absent") == Link(
        "disk", device_number(tmp_path), Direction.READ
    )


def test_partitions_share_the_link_of_their_disk(tmp_path: Path) -> None:
    partition = tmp_path / "devices" / "sda" / "sda1"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("1\n")
    (partition.parent / "dev").write_text("8:0\n")
    disks = tmp_path / "block"
    disks.mkdir()
    (disks / device_number(tmp_path)).symlink_to(partition)
    assert disk_link(str(tmp_path), system_disks=disks) == Link("disk", "8:0")


@pytest.mark.parametrize(("path", "kind"), [("/no/such/file", NotFound), ("nul\0byte", DataError)])
def test_a_path_that_leads_nowhere(path: str, kind: type[PystachioError]) -> None:
    with pytest.raises(kind):
        disk_link(path)
