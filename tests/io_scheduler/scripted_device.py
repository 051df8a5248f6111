"""A device that reads from a dictionary of files, and ends chunks when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pystachio.errors import DataError, PystachioError
from pystachio.io_scheduler.core.request import LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest


@dataclass
class ScriptedFile:
    path: str
    closed: bool = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@dataclass
class ScriptedDevice:
    """With `at_once`, a chunk ends inside `start`; otherwise the test calls `end_next` or `end_all`."""

    contents: dict[str, bytes]
    limits: LinkLimits = field(default_factory=lambda: LinkLimits(chunk_bytes=16, window_bytes=32, calibrated=False))
    at_once: bool = True
    inside: list[tuple[ChunkRequest, Callable[[ChunkEnd], None]]] = field(default_factory=list)
    order: list[tuple[str, int]] = field(default_factory=list)
    files: list[ScriptedFile] = field(default_factory=list)
    abandoned: list[int] = field(default_factory=list)
    closed: bool = False

    def open(self, path: str) -> ScriptedFile:
        self.files.append(ScriptedFile(path))
        return self.files[-1]

    def start(self, read: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        self.order.append((read.file.path, read.offset))
        self.inside.append((read, ended))
        if self.at_once:
            self.end_next()

    def abandon(self, read: ChunkRequest) -> None:
        assert any(read is inside for inside, _ in self.inside)
        self.abandoned.append(read.offset)

    def close(self) -> None:
        assert not self.inside
        self.closed = True

    def end_next(self, error: PystachioError | None = None) -> None:
        read, ended = self.inside.pop(0)
        assert not read.file.closed, "a file is closed only when no chunk of it is inside"  # type: ignore[attr-defined]
        content = self.contents[read.file.path][read.offset : read.offset + len(read.buffer)]
        read.buffer[: len(content)] = content  # type: ignore[index]
        if error is None and len(content) < read.required:
            error = DataError("short")
        ended(ChunkEnd(len(content), PathTaken.EMULATED, error))

    def end_all(self) -> None:
        while self.inside:
            self.end_next()
