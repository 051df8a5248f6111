"""What moves bytes: the contract of a device, and which one serves a link.

Importing this loads no device; `choose` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

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


class FileSeries(NamedTuple):
    """The first so many bytes of each file, by path, one after the other, as if they were one file."""

    files: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        more = f" and {len(self.files) - 1:,} files more" if len(self.files) > 1 else ""
        return f"{self.files[0][0]}{more}"


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


class ChunkEnd(NamedTuple):
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


@runtime_checkable
class SeriesDevice(Protocol):
    """A device that reads several files in one chunk."""

    def open_series(self, series: FileSeries) -> DeviceFile:
        """Its lengths are multiples of the device's alignment."""
        ...


DeviceName = Literal["auto", "nvme", "posix"]
OpenDevice = Callable[[Link], Device]


def choose(name: DeviceName = "auto", *, direct: bool = False, sparing: bool = False) -> OpenDevice:
    """The device for each link to a disk.

    `auto` is `nvme` where kvikio works: it needs a CUDA driver. `direct` reads around the page cache, on `posix` only;
    `sparing` does so where that pays (`page_cache`): on local disks, which have no cache of another kind behind them.
    `posix` moves bytes in compiled threads (`devices.compiled`) where the library is there and a loop runs, else in
    Python's. It always writes around the page cache where it can: what waits there takes memory that no budget knows,
    and can fail long after it was said to be written.
    """
    from pystachio.io_scheduler.devices import nvme, posix
    from pystachio.io_scheduler.devices.deferred import DeferredDevice

    open_posix = partial(_open_posix, direct=direct, sparing=sparing)

    def open_nvme(link: Link) -> Device:
        return nvme.NvmeDevice(name=link.name, direction=link.direction)

    def open_nvme_or_posix(link: Link, loop: asyncio.AbstractEventLoop | None) -> Device:
        try:
            return open_nvme(link)
        except Unsupported:
            return open_posix(link, loop)

    def open_later(link: Link) -> Device:
        limits = LinkLimits(
            chunk_bytes=posix.CHUNK_BYTES, window_bytes=posix.WINDOW_BYTES, device_seconds=posix.CHUNK_DEVICE_SECONDS
        )
        if name == "nvme":
            return DeferredDevice(partial(open_nvme, link), limits=limits)
        return DeferredDevice(partial(open_nvme_or_posix, link, _running_loop()), limits=limits)

    if name == "posix" or (name == "auto" and (direct or not nvme.driver_is_loadable())):
        return lambda link: open_posix(link, _running_loop())
    return open_later


def _open_posix(link: Link, loop: asyncio.AbstractEventLoop | None, *, direct: bool, sparing: bool) -> Device:
    """In compiled threads where the library is there, and a loop to tell of ends; else in Python's."""
    from pystachio.io_scheduler.devices import native
    from pystachio.io_scheduler.devices.compiled import CompiledDevice
    from pystachio.io_scheduler.devices.disks import is_local
    from pystachio.io_scheduler.devices.page_cache import Admission
    from pystachio.io_scheduler.devices.posix import PosixDevice

    direct = direct or link.direction is Direction.WRITE
    admission = Admission() if sparing and not direct and is_local(link) else None
    direct = direct or admission is not None
    library = native.load()
    if loop is None or library.library is None:
        return PosixDevice(name=link.name, direction=link.direction, direct=direct, admission=admission)
    return CompiledDevice(library, loop, direction=link.direction, direct=direct, admission=admission)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
