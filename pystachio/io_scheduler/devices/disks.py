"""Which disk a file lies on: what shares a device's bandwidth shares a link.

A link is named by the whole disks under the file system, `259:0`, or `8:0+8:16` where it is spread over several: the
partitions of a disk, what is encrypted or mapped on it (dm, LVM) and the volumes on the same array (md) share a link.
File servers and ZFS pools have a name, e.g. `nfs server`; anything else is a link for each mount.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pystachio.io_scheduler.core.request import Link
from pystachio.io_scheduler.os_errors import from_os_error

MEDIUM = "disk"
_DEEPEST = 8
"""Layers between a file and a disk; real ones have four or so, and a loop has no end."""


@dataclass(frozen=True, slots=True)
class System:
    """Where the kernel tells about disks and mounts."""

    disks: Path = Path("/sys/dev/block")
    disks_by_name: Path = Path("/sys/class/block")
    btrfs: Path = Path("/sys/fs/btrfs")
    mounts: Path = Path("/proc/self/mountinfo")


SYSTEM = System()


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. `point` is where it is seen, `source` what was mounted."""

    point: str
    kind: str
    source: str
    options: dict[str, str]


def disk_link(path: str, *, system: System = SYSTEM) -> Link:
    """The read link of the disk that holds `path`. Blocks for a stat or more; raises NotFound, Unauthorized, ..."""
    try:
        number = os.stat(path).st_dev
    except (OSError, ValueError) as error:
        raise from_os_error(error if isinstance(error, OSError) else OSError(str(error)), path) from error
    return Link(MEDIUM, link_name(_text(number), path, system))


def mount_points(*, system: System = SYSTEM) -> frozenset[str]:
    """Where something is mounted; none where the system does not say. No file system is looked at."""
    return frozenset(mount.point for mount in _mounts(system))


def is_local(link: Link) -> bool:
    """Whether disks of this machine are below the link, and nothing in between that we do not know."""
    return link.medium == MEDIUM and all(re.fullmatch(r"[1-9]\d*:\d+", disk) for disk in link.name.split("+"))


def link_name(number: str, path: str, system: System = SYSTEM, layers: int = _DEEPEST) -> str:
    """The name for a file whose stat says that it lies on the device `number`, e.g. `8:1`."""
    if not number.startswith("0:"):
        return _joined(_disks_under(number, system, layers), number)
    # A device number of the file system's own making.
    mount = _mount_of(os.path.realpath(path), system)
    if mount is None:
        return number
    if mount.kind == "overlay":
        return _name_under_overlay(mount, number, system, layers)
    if mount.kind in ("btrfs", "bcachefs"):
        members = [member for name in _members(mount, system) for member in _disks_by_name(name, system, layers)]
        return _joined(set(members), number)
    if mount.kind == "zfs":
        return f"zfs {mount.source.partition('/')[0]}"
    server = re.fullmatch(r"//([^/]+)/.*|(.+):/.*", mount.source)
    if server is not None:
        return f"{mount.kind.rstrip('34')} {server[1] or server[2]}"
    return number


def _disks_under(number: str, system: System, layers: int) -> set[str]:
    """The whole disks that a block device stands on; empty when the kernel does not say."""
    entry = system.disks / number
    if layers == 0 or not entry.exists():
        return set()
    if (entry / "partition").exists():
        parent = _read(entry.resolve().parent / "dev")
        # Without its parent a partition is scheduled as a disk of its own.
        return {number} if parent is None else _disks_under(parent, system, layers - 1) or {parent}
    backing = _read(entry / "loop" / "backing_file")
    if backing is not None:
        return _disks_of_file(backing, system, layers - 1) or {number}
    below = [_read(slave / "dev") for slave in _entries(entry / "slaves")]
    disks = {disk for slave in below if slave is not None for disk in _disks_under(slave, system, layers - 1)}
    return disks or {number}


def _disks_of_file(path: str, system: System, layers: int) -> set[str]:
    try:
        number = os.stat(path).st_dev
    except OSError:
        return set()
    return {link_name(_text(number), path, system, layers)} if layers > 0 else set()


def _disks_by_name(name: str, system: System, layers: int) -> set[str]:
    number = _read(system.disks_by_name / os.path.basename(os.path.realpath(name)) / "dev")
    return set() if number is None else _disks_under(number, system, layers) or {number}


def _members(mount: Mount, system: System) -> list[str]:
    """The names of the devices that a file system of its own volume management is spread over."""
    if mount.kind == "bcachefs":
        return mount.source.split(":")
    name = os.path.basename(os.path.realpath(mount.source))
    for file_system in _entries(system.btrfs):
        members = [device.name for device in _entries(file_system / "devices")]
        if name in members:
            return members
    return [name]


def _name_under_overlay(mount: Mount, number: str, system: System, layers: int) -> str:
    """The disk of the layer that is written to, else of the first one: nearly always all lie on one."""
    for folder in (mount.options.get("upperdir"), mount.options.get("lowerdir", "").partition(":")[0]):
        disks = _disks_of_file(folder, system, layers - 1) if folder else set()
        if disks:
            return _joined(disks, number)
    # In a container the layers' folders are out of sight.
    return number


def _mount_of(path: str, system: System) -> Mount | None:
    """The mount with the longest point above `path`; of several on one point the last covers the others."""
    best: Mount | None = None
    for mount in _mounts(system):
        above = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _mounts(system: System) -> Iterator[Mount]:
    for line in (_read(system.mounts) or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, described = before.split(" "), after.split(" ")
        if separator and len(fields) >= 5 and len(described) >= 3:
            options = dict(option.partition("=")[::2] for option in _unescaped(described[2]).split(","))
            yield Mount(_unescaped(fields[4]), described[0], _unescaped(described[1]), options)


def _unescaped(field: str) -> str:
    """Blanks and the like are octal in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _joined(disks: set[str], otherwise: str) -> str:
    return "+".join(sorted(disks, key=_order)) or otherwise


def _order(name: str) -> tuple[list[int], str]:
    return [int(part) for part in re.findall(r"\d+", name)], name


def _text(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
