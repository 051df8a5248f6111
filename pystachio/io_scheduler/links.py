"""The devices of a node: one per link, made when the first file on it is read; and the files that are open on them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import cast

from pystachio.io_scheduler.core.request import Direction, Link
from pystachio.io_scheduler.devices import Device, DeviceFile, FileSeries, OpenDevice, SeriesDevice
from pystachio.io_scheduler.devices.disks import disk_link

Locate = Callable[[str], Awaitable[Link]]
"""The read link of a file or folder."""

LOCATED_FILES = 65_536


async def locate_disk(path: str) -> Link:
    """The disk of the file; in a thread, because a stat on a network file system can take seconds."""
    return await asyncio.to_thread(disk_link, path)


class Links:
    """`locate` names the link of a file; `open_device` makes the device of a link."""

    def __init__(self, locate: Locate, open_device: OpenDevice) -> None:
        self._locate = locate
        self._open_device = open_device
        self._located: dict[str, Link] = {}
        self._looking: dict[str, asyncio.Event] = {}
        self._devices: dict[Link, Device] = {}
        self._series: set[Link] = set()
        """Those that read several files in one transfer."""

    def known(self, path: str) -> Link | None:
        """The read link of a file that was located before."""
        return self._located.get(path)

    async def locate(self, path: str, direction: Direction) -> Link:
        """The link of the file, which need not exist to be written.

        Raises NotFound or Unauthorized the first time that the file, or the folder to write into, is seen.
        """
        if direction == Direction.WRITE:
            link = await self.locate(os.path.dirname(path) or ".", Direction.READ)
            return link._replace(direction=direction)
        known = self._located.get(path)
        if known is not None:
            return known
        looking = self._looking.get(path)
        if looking is None:
            return await self._look(path)
        # A scan's first reads come all at once, and each look is a thread's.
        await looking.wait()
        # Of a look that failed or was given up nobody knows but who asked for it.
        return self._located.get(path) or await self._find(path)

    async def _look(self, path: str) -> Link:
        """For all who ask meanwhile."""
        looked = self._looking[path] = asyncio.Event()
        try:
            return await self._find(path)
        finally:
            del self._looking[path]
            looked.set()

    async def _find(self, path: str) -> Link:
        link = await self._locate(path)
        if len(self._located) >= LOCATED_FILES:
            self._located.clear()
        self._located[path] = link
        return link

    def __contains__(self, link: Link) -> bool:
        return link in self._devices

    def open(self, link: Link) -> Device:
        device = self._devices[link] = self._open_device(link)
        if isinstance(device, SeriesDevice):
            self._series.add(link)
        return device

    def reads_series(self, link: Link) -> bool:
        return link in self._series

    def register(self, link: Link, device: Device) -> None:
        self._devices[link] = device

    def device(self, link: Link) -> Device:
        return self._devices[link]

    def close(self, stuck: Container[Link] = ()) -> None:
        """Release the devices' threads. Those of `stuck` links hold chunks that may never end: they are left alone."""
        for link, device in self._devices.items():
            if link not in stuck:
                device.close()
        self._devices.clear()
        self._located.clear()


@dataclass(slots=True, eq=False)
class _OpenFile:
    file: DeviceFile
    transfers: int = 0


class OpenFiles:
    """Files are open as long as transfers use them, and no longer: a file that is replaced is read anew."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._files: dict[tuple[Link, str | FileSeries], _OpenFile] = {}

    def __len__(self) -> int:
        return len(self._files)

    def acquire(self, link: Link, path: str | FileSeries, transfers: int) -> DeviceFile:
        """So many more transfers use the file; the device opens it when the first chunk comes."""
        open_file = self._files.get((link, path))
        if open_file is None:
            open_file = self._files[link, path] = _OpenFile(self._open(self._links.device(link), path))
        open_file.transfers += transfers
        return open_file.file

    def _open(self, device: Device, path: str | FileSeries) -> DeviceFile:
        if not isinstance(path, FileSeries):
            return device.open(path)
        # Whoever asks for a series has asked whether the link reads any; to look takes longer than to open.
        return cast(SeriesDevice, device).open_series(path)

    def release(self, link: Link, path: str | FileSeries) -> None:
        open_file = self._files[link, path]
        open_file.transfers -= 1
        if open_file.transfers == 0:
            del self._files[link, path]
            open_file.file.close()

    def close(self) -> None:
        for open_file in self._files.values():
            open_file.file.close()
        self._files.clear()
