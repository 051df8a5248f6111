"""Links of files on made-up machines: folders that look like the kernel's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pystachio.errors import DataError, NotFound, PystachioError
from pystachio.io_scheduler.core.request import Direction, Link
from pystachio.io_scheduler.devices.disks import System, disk_link, is_local, link_name


class Machine:
    """Builds a `System`; devices are named and numbered as the kernel would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.system = System(folder / "dev-block", folder / "class-block", folder / "btrfs", folder / "mountinfo")
        for path in (self.system.disks, self.system.disks_by_name, self.system.btrfs):
            path.mkdir(parents=True)
        self.system.mounts.write_text("")

    def block(self, name: str, number: str, *, inside: str = "", slaves: Sequence[str] = ()) -> Path:
        entry = self.folder / "devices" / inside / name
        (entry / "slaves").mkdir(parents=True)
        (entry / "dev").write_text(number + "\n")
        if inside:
            (entry / "partition").write_text("1\n")
        for slave in slaves:
            (entry / "slaves" / slave).symlink_to((self.system.disks_by_name / slave).resolve())
        (self.system.disks / number).symlink_to(entry)
        (self.system.disks_by_name / name).symlink_to(entry)
        return entry

    def mount(self, point: str, kind: str, source: str, options: str = "rw") -> None:
        with self.system.mounts.open("a") as file:
            file.write(f"36 35 0:40 / {point} rw,noatime master:1 - {kind} {source} {options}\n")

    def name(self, number: str, path: str = "/data/f") -> str:
        return link_name(number, path, self.system)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "machine")
    for letter, minor in (("a", 0), ("b", 16), ("c", 32)):
        machine.block(f"sd{letter}", f"8:{minor}")
        machine.block(f"sd{letter}1", f"8:{minor + 1}", inside=f"sd{letter}")
    return machine


def device_number(path: Path) -> str:
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_this_machine_says_where_a_file_lies(tmp_path: Path) -> None:
    link = disk_link(str(tmp_path))
    assert (link.medium, link.direction) == ("disk", Direction.READ)
    assert link == disk_link(str(tmp_path.parent))
    assert ":" in link.name


def test_partitions_share_the_link_of_their_disk(machine: Machine) -> None:
    assert machine.name("8:1") == machine.name("8:0") == "8:0"
    assert machine.name("8:17") == "8:16"


def test_a_disk_that_the_kernel_does_not_show_is_a_link_of_its_own(machine: Machine) -> None:
    assert machine.name("259:3") == "259:3"


def test_a_partition_without_its_disk_is_a_link_of_its_own(machine: Machine) -> None:
    (machine.block("sdd1", "8:49", inside="sdd").parent / "dev").unlink(missing_ok=True)
    assert machine.name("8:49") == "8:49"


def test_what_is_mapped_onto_a_disk_shares_its_link(machine: Machine) -> None:
    machine.block("dm-0", "253:0", slaves=["sda1"])  # encrypted
    machine.block("dm-1", "253:1", slaves=["dm-0"])  # a logical volume on it
    assert machine.name("253:1") == machine.name("253:0") == "8:0"


def test_volumes_on_the_same_disks_share_a_link(machine: Machine) -> None:
    machine.block("md0", "9:0", slaves=["sda1", "sdb1"])
    machine.block("dm-0", "253:0", slaves=["md0"])
    machine.block("dm-1", "253:1", slaves=["sdb", "sda"])
    assert {machine.name(number) for number in ("9:0", "253:0", "253:1")} == {"8:0+8:16"}
    assert machine.name("8:33") == "8:32", "a disk beside the array"


def test_a_loop_device_lies_where_its_file_lies(machine: Machine, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.touch()
    (machine.block("loop0", "7:0") / "loop").mkdir()
    (machine.system.disks / "7:0" / "loop" / "backing_file").write_text(f"{image}\n")
    assert machine.name("7:0") == machine.name(device_number(tmp_path), str(image))
    (machine.system.disks / "7:0" / "loop" / "backing_file").write_text("/gone (deleted)\n")
    assert machine.name("7:0") == "7:0"


def test_a_ring_of_devices_ends(machine: Machine) -> None:
    machine.block("dm-0", "253:0", slaves=["sda"])
    machine.block("dm-1", "253:1", slaves=["dm-0"])
    (machine.system.disks / "253:0" / "slaves" / "dm-1").symlink_to((machine.system.disks_by_name / "dm-1").resolve())
    (machine.system.disks / "253:0" / "slaves" / "sda").unlink()
    assert machine.name("253:0").startswith("253:")


def test_btrfs_lies_on_all_disks_of_its_volume(machine: Machine) -> None:
    machine.mount("/", "ext4", "/dev/sda1")
    machine.mount("/data", "btrfs", "/dev/sdb1", "rw,subvolid=5")
    assert machine.name("0:44") == "8:16"
    for member in ("sdb1", "sdc1"):
        (machine.system.btrfs / "0a1b" / "devices" / member).mkdir(parents=True)
    assert machine.name("0:44") == "8:16+8:32"


def test_bcachefs_names_its_disks(machine: Machine) -> None:
    machine.mount("/data", "bcachefs", "/dev/sda1:/dev/sdb1")
    assert machine.name("0:44") == "8:0+8:16"


def test_a_container_lies_where_its_upper_layer_lies(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    machine.mount("/", "overlay", "overlay", f"rw,lowerdir=/l/one:/l/two,upperdir={tmp_path}/upper,workdir=/w")
    assert machine.name("0:44") == machine.name(device_number(tmp_path), str(tmp_path / "upper"))


def test_a_container_without_its_layers_is_a_link_of_its_own(machine: Machine) -> None:
    machine.mount("/", "overlay", "overlay", "rw,lowerdir=/l/one:/l/two,upperdir=/l/upper,workdir=/w")
    assert machine.name("0:44") == "0:44"


@pytest.mark.parametrize(
    ("kind", "source", "name"),
    [
        ("nfs4", "server:/export/a", "nfs server"),
        ("nfs", "server:/export/b", "nfs server"),
        ("nfs4", "[fe80::1]:/export", "nfs [fe80::1]"),
        ("cifs", "//server/share/folder", "cifs server"),
        ("ceph", "10.0.0.1:6789,10.0.0.2:6789:/", "ceph 10.0.0.1:6789,10.0.0.2:6789"),
        ("lustre", "10.0.0.1@tcp:/scratch", "lustre 10.0.0.1@tcp"),
        ("zfs", "tank/home/data", "zfs tank"),
        ("tmpfs", "tmpfs", "0:44"),
        ("fuse.sshfs", "user@host:/folder", "fuse.sshfs user@host"),
        ("virtiofs", "shared", "0:44"),
    ],
)
def test_what_has_no_disk(machine: Machine, kind: str, source: str, name: str) -> None:
    machine.mount("/data", kind, source)
    assert machine.name("0:44") == name


def test_the_nearest_and_last_mount_counts(machine: Machine) -> None:
    machine.mount("/", "nfs", "root:/")
    machine.mount("/data", "nfs", "outer:/")
    machine.mount("/data", "nfs", "covering:/")
    machine.mount("/data\\040of\\040mine", "nfs", "blank:/")
    machine.mount("/data/deep", "nfs", "inner:/")
    assert machine.name("0:44", "/data/f") == "nfs covering"
    assert machine.name("0:44", "/data/deep/f") == "nfs inner"
    assert machine.name("0:44", "/database/f") == "nfs root"
    assert machine.name("0:44", "/data of mine/f") == "nfs blank"


def test_without_a_list_of_mounts_every_device_number_is_a_link(tmp_path: Path) -> None:
    nowhere = System(tmp_path, tmp_path, tmp_path, tmp_path / "absent")
    assert link_name("0:44", "/data/f", nowhere) == "0:44"
    assert disk_link(str(tmp_path), system=nowhere) == Link("disk", device_number(tmp_path))


@pytest.mark.parametrize(("path", "kind"), [("/no/such/file", NotFound), ("nul\0byte", DataError)])
def test_a_path_that_leads_nowhere(path: str, kind: type[PystachioError]) -> None:
    with pytest.raises(kind):
        disk_link(path)


@pytest.mark.parametrize(
    ("medium", "name", "local"),
    [
        ("disk", "259:0", True),
        ("disk", "8:0+8:16", True),
        ("disk", "0:44", False),
        ("disk", "8:0+0:44", False),
        ("disk", "nfs server", False),
        ("emulated", "/folder/8:0", False),
    ],
)
def test_which_links_are_disks_of_this_machine(medium: str, name: str, local: bool) -> None:
    assert is_local(Link(medium, name)) is local
