"""What moves bytes: the contract of a device, and which one serves a link.

Importing this loads no device; `choose` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from pystachio.errors import PystachioError, Unsupported
from pystachio.io_scheduler.request import Link, LinkLimits, PathTaken

if TYPE_CHECKING:
    import torch

Destination: TypeAlias = "memoryview | torch.Tensor"
"""Where bytes land: writable host memory, or a contiguous uint8 tensor in device memory."""


class DeviceFile(Protocol):
    """A file as its device sees it. It is opened by the device at the first chunk, off the event loop."""

    @property
    def path(self) -> str: ...

    def close(self) -> None:
        """Idempotent; called when no chunk of the file is inside the device."""
        ...


@dataclass(slots=True, eq=False)
class ChunkRead:
    """One chunk for a device to read: the bytes of `file` from `offset` that fill `destination`.

    The file may end early, but not before `required` bytes have been read. `abandoned` is set when nobody wants the
    bytes any more: a device that has not begun may end the chunk at once.
    """

    file: DeviceFile
    offset: int
    destination: Destination
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

    def start(self, read: ChunkRead, ended: Callable[[ChunkEnd], None]) -> None:
        """Begin to read; `ended` is called exactly once, on any thread, when the destination is touched no more."""
        ...

    def abandon(self, read: ChunkRead) -> None:
        """Nobody wants the chunk any more: end it as soon as possible; `ended` is still called."""
        ...

    def close(self) -> None:
        """Release threads; nothing is inside the device."""
        ...


DeviceName = Literal["auto", "nvme", "posix"]
OpenDevice = Callable[[Link], Device]


def choose(name: DeviceName = "auto", *, direct: bool = False) -> OpenDevice:
    """The device for each link.

    `auto` is `nvme` where kvikio works: it needs a CUDA driver. `direct` bypasses the page cache, on `posix` only.
    """
    from pystachio.io_scheduler.devices.nvme import NvmeDevice
    from pystachio.io_scheduler.devices.posix import PosixDevice

    def nvme_or_posix(link: Link) -> Device:
        try:
            return NvmeDevice(name=link.name)
        except Unsupported:
            return PosixDevice(name=link.name)

    if name == "nvme":
        return lambda link: NvmeDevice(name=link.name)
    if name == "auto" and not direct:
        return nvme_or_posix
    return lambda link: PosixDevice(name=link.name, direct=direct)
