"""A device whose opening takes too long for the event loop: it is opened on a thread, at the first chunk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pystachio.errors import Cancelled, InternalError, PystachioError
from pystachio.io_scheduler.core.request import LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, Device, DeviceFile


@dataclass(slots=True, eq=False)
class DeferredFile:
    path: str
    real: DeviceFile | None = None

    def close(self) -> None:
        if self.real is not None:
            self.real.close()
            self.real = None


class DeferredDevice:
    """Chunks wait while `open_device` runs; then each goes to the device that it returned, as do all that follow.

    When it raises, all chunks fail with its error. `limits` are those of whatever device it opens.
    """

    def __init__(self, open_device: Callable[[], Device], *, limits: LinkLimits) -> None:
        self.limits = limits
        self._open_device = open_device
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: list[tuple[ChunkRequest, Callable[[ChunkEnd], None]]] = []
        self._device: Device | None = None
        self._error: PystachioError | None = None

    def open(self, path: str) -> DeferredFile:
        return DeferredFile(path)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        with self._lock:
            if self._device is None and self._error is None:
                self._waiting.append((request, ended))
                if self._thread is None:
                    thread = threading.Thread(target=self._open, name="open-device", daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:
                        self._waiting.pop()
                        raise
                    self._thread = thread
                return
        self._pass_on(request, ended)

    def abandon(self, request: ChunkRequest) -> None:
        with self._lock:
            device = self._device
        if device is None:
            request.abandoned = True
        else:
            device.abandon(request)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._device is not None:
            self._device.close()

    def _open(self) -> None:
        device, error = None, None
        try:
            device = self._open_device()
        except PystachioError as failure:
            error = failure
        except Exception as failure:
            error = InternalError(f"a device could not be opened: {failure!r}")
            error.__cause__ = failure
        # Under the lock, so that later chunks stay behind those that wait, and no two threads start chunks at once.
        with self._lock:
            self._device, self._error = device, error
            for request, ended in self._waiting:
                try:
                    self._pass_on(request, ended)
                except Exception as failure:
                    # As the service does it for a device that raises: the other chunks go on.
                    refused = InternalError(f"a device did not take a chunk: {failure!r}")
                    refused.__cause__ = failure
                    ended(ChunkEnd(0, PathTaken.KVIKIO_POSIX, refused))
            self._waiting.clear()

    def _pass_on(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        if self._error is not None or self._device is None:
            ended(ChunkEnd(0, PathTaken.KVIKIO_POSIX, None if self._error is None else _another(self._error)))
        elif request.abandoned:
            ended(ChunkEnd(0, PathTaken.KVIKIO_POSIX, Cancelled("the chunk was given up before it began")))
        else:
            file = request.file
            if isinstance(file, DeferredFile):
                if file.real is None:
                    file.real = self._device.open(file.path)
                request.file = file.real
            self._device.start(request, ended)


def _another(error: PystachioError) -> PystachioError:
    """One for each chunk: whoever passes it on notes the plan's id on it."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
