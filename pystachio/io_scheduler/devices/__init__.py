"""What moves bytes: the contract of a device, and which one serves a link.

Importing this loads no device; `choose` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from pystachio.errors import PystachioError, Unsupported
from pystachio.io_scheduler.core.request import Direction, Link, LinkLimits, PathTaken

if TYPE_CHECKING:
    import torch

Buffer: TypeAlias = "memoryview | torch.Tensor"
"""Where bytes land or come from: host memory, or a contiguous uint8 tensor in device memory."""


class DeviceFile(Protocol):
    """A file as its device sees it. It is opened by the device at the first chunk, off the event loop."""

    @property
    def path(self) -> str: ...

    def close(self) -> None:
        """Idempotent; called when no chunk of the file is inside the device."""
        ...


@dataclass(slots=True, eq=False)
class ChunkRequest:
    """One chunk for a device to move between `buffer` and the bytes of `file` from `offset`; the link says which way.

    A file that is read may end early, but not before `required` bytes; a write moves all of `buffer`. `abandoned` is
    set when nobody wants the chunk any more: a device that has not begun may end it at once.
    """

    file: DeviceFile
    offset: int
    buffer: Buffer
    required: int
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """`transferred` bytes crossed the link, also when `error` says that they are not what was asked for."""

    transferred: int
    path: PathTaken
    error: PystachioError | None = None


class Device(Protocol):
    """Serves one link. `start` and `abandon` are called on the event loop and never block."""

    @property
    def limits(self) -> LinkLimits: ...

    def open(self, path: str) -> DeviceFile: ...

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        """Begin to move; `ended` is called exactly once, on any thread, when the buffer is touched no more."""
        ...

    def abandon(self, request: ChunkRequest) -> None:
        """Nobody wants the chunk any more: end it as soon as possible; `ended` is still called."""
        ...

    def close(self) -> None:
        """Release threads; nothing is inside the device."""
        ...


DeviceName = Literal["auto", "nvme", "posix"]
OpenDevice = Callable[[Link], Device]


def choose(name: DeviceName = "auto", *, direct: bool = False, sparing: bool = False) -> OpenDevice:
    """The device for each link to a disk.

    `auto` is `nvme` where kvikio works: it needs a CUDA driver. `direct` reads around the page cache, on `posix` only;
    `sparing` does so where that pays (`page_cache`): on local disks, which have no cache of another kind behind them.
    `posix` always writes around it where it can: what waits in the page cache takes memory that no budget knows, and
    can fail long after it was said to be written.
    """
    from pystachio.io_scheduler.devices import nvme, posix
    from pystachio.io_scheduler.devices.deferred import DeferredDevice
    from pystachio.io_scheduler.devices.disks import is_local
    from pystachio.io_scheduler.devices.page_cache import Admission

    def open_nvme(link: Link) -> Device:
        return nvme.NvmeDevice(name=link.name, direction=link.direction)

    def open_posix(link: Link) -> Device:
        around = direct or link.direction is Direction.WRITE
        if sparing and not around and is_local(link):
            return posix.PosixDevice(name=link.name, direct=True, admission=Admission())
        return posix.PosixDevice(name=link.name, direction=link.direction, direct=around)

    def open_nvme_or_posix(link: Link) -> Device:
        try:
            return open_nvme(link)
        except Unsupported:
            return open_posix(link)

    def open_later(link: Link) -> Device:
        limits = LinkLimits(chunk_bytes=posix.CHUNK_BYTES, window_bytes=posix.WINDOW_BYTES)
        open_device = open_nvme if name == "nvme" else open_nvme_or_posix
        return DeferredDevice(partial(open_device, link), limits=limits)

    if name == "posix" or (name == "auto" and (direct or not nvme.driver_is_loadable())):
        return open_posix
    return open_later
