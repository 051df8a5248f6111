"""Folders that stand for disks of another speed: their files lie on links of their own, with an emulated device each.

So scheduling can be measured where the real disk is too fast, too slow or too uneven.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pystachio.errors import NotFound
from pystachio.io_scheduler.core.request import Link
from pystachio.io_scheduler.devices import Device, OpenDevice
from pystachio.io_scheduler.devices.disks import disk_link
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.links import Locate

MEDIUM = "emulated"


@dataclass(frozen=True, slots=True)
class Emulation:
    """The files below the folder `path` are read and written as on a disk like this."""

    path: str
    bytes_per_second: float
    latency_seconds: float = 0.0
    depth: int = 32


def emulating(emulations: Sequence[Emulation], locate: Locate, open_device: OpenDevice) -> tuple[Locate, OpenDevice]:
    """`locate` and `open_device` for a service in which the emulations stand before what is there.

    Raises NotFound for a path that does not exist: nothing would ever be read from below it.
    """
    for emulation in emulations:
        if not os.path.exists(emulation.path):
            raise NotFound(
                f"no such folder, for which a disk is to be emulated: {emulation.path}", hint="make it first"
            )
    folders = {os.path.realpath(emulation.path): emulation for emulation in emulations}

    async def locate_emulated(path: str) -> Link:
        link = await asyncio.to_thread(_emulated_link, path, tuple(folders))
        return link if link is not None else await locate(path)

    def open_emulated(link: Link) -> Device:
        if link.medium != MEDIUM:
            return open_device(link)
        emulation = folders[link.name]
        return EmulatedDevice(
            open_device(link),
            bytes_per_second=emulation.bytes_per_second,
            latency_seconds=emulation.latency_seconds,
            depth=emulation.depth,
        )

    return (locate_emulated, open_emulated) if folders else (locate, open_device)


def _emulated_link(path: str, folders: Sequence[str]) -> Link | None:
    """The link of the innermost folder that holds the file; raises as `disk_link` where there is none."""
    disk_link(path)
    real = os.path.realpath(path)
    holders = [folder for folder in folders if real == folder or real.startswith(os.path.join(folder, ""))]
    return Link(MEDIUM, max(holders, key=len)) if holders else None
