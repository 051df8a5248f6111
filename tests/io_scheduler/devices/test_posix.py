from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from pystachio.errors import (
    Cancelled,
    DataError,
    InvalidRequest,
    NotFound,
    PystachioError,
    ResourceExhausted,
    Unauthorized,
)
from pystachio.io_scheduler.buffers import BufferPool
from pystachio.io_scheduler.core.request import PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.devices.posix import PosixDevice, PosixFile, move_chunk

CONTENT = os.urandom(100_000)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "data"
    file.write_bytes(CONTENT)
    return str(file)


def chunk(path: str, offset: int, length: int, *, direct: bool = False, required: int | None = None) -> ChunkRequest:
    buffer = BufferPool().acquire(length)
    return ChunkRequest(PosixFile(path, direct=direct), offset, buffer, length if required is None else required)


def ended(request: ChunkRequest) -> ChunkEnd:
    end = move_chunk(request)
    request.file.close()
    return end


def test_a_chunk_is_read_buffered(path: str) -> None:
    request = chunk(path, 1234, 5000)
    assert ended(request) == ChunkEnd(5000, PathTaken.BUFFERED)
    assert bytes(request.buffer) == CONTENT[1234:6234]  # type: ignore[arg-type]


def test_aligned_reads_pass_the_page_cache_when_asked_to(path: str) -> None:
    request = chunk(path, 4096, 8192, direct=True)
    assert ended(request) == ChunkEnd(8192, PathTaken.DIRECT)
    assert bytes(request.buffer) == CONTENT[4096:12288]  # type: ignore[arg-type]


def test_unaligned_reads_take_the_page_cache_and_say_so(path: str) -> None:
    assert ended(chunk(path, 1, 100, direct=True)).path is PathTaken.BUFFERED


def test_rounding_may_lie_behind_the_end_of_the_file(path: str) -> None:
    request = chunk(path, 98304, 4096, direct=True, required=1696)
    assert ended(request) == ChunkEnd(1696, PathTaken.DIRECT)
    assert bytes(request.buffer)[:1696] == CONTENT[98304:]  # type: ignore[arg-type]


@pytest.mark.parametrize("refused", ["open", "read"])
def test_a_file_system_without_direct_reads_is_read_buffered(
    path: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct: set[int] = set()
    real_open, real_preadv = os.open, os.preadv

    def refusing_open(name: str, flags: int, mode: int) -> int:
        if flags & os.O_DIRECT and refused == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        descriptor = real_open(name, flags, mode)
        if flags & os.O_DIRECT:
            direct.add(descriptor)
        return descriptor

    def refusing_preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if descriptor in direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "open", refusing_open)
    monkeypatch.setattr(os, "preadv", refusing_preadv)
    request = chunk(path, 0, 8192, direct=True)
    assert ended(request) == ChunkEnd(8192, PathTaken.BUFFERED)
    assert bytes(request.buffer) == CONTENT[:8192]  # type: ignore[arg-type]


@pytest.mark.parametrize("direct", [False, True])
def test_short_reads_are_continued(path: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real_preadv = os.preadv

    def hesitant_preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return real_preadv(descriptor, [buffers[0][:4096]], offset)

    monkeypatch.setattr(os, "preadv", hesitant_preadv)
    request = chunk(path, 4096, 40960, direct=direct)
    assert ended(request).transferred == 40960
    assert bytes(request.buffer) == CONTENT[4096:45056]  # type: ignore[arg-type]


def test_an_error_in_the_middle_counts_what_was_read(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_preadv = os.preadv

    def failing_preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if offset >= 4096:
            raise OSError(errno.EIO, "Input/output error")
        return real_preadv(descriptor, [buffers[0][:4096]], offset)

    monkeypatch.setattr(os, "preadv", failing_preadv)
    request = chunk(path, 0, 8192)
    end = ended(request)
    assert end.transferred == 4096
    assert isinstance(end.error, DataError)
    # The error may be kept: no frame of its cause may keep the destination.
    assert end.error.__cause__ is not None
    assert end.error.__cause__.__traceback__ is None


def test_a_file_that_ends_early(path: str) -> None:
    end = ended(chunk(path, 99_000, 5000))
    assert end.transferred == 1000
    assert isinstance(end.error, DataError)


def no_such_file(tmp_path: Path) -> Path:
    return tmp_path / "absent"


def no_file_at_all(tmp_path: Path) -> Path:
    return tmp_path


def named_pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize(
    ("make", "kind"), [(no_such_file, NotFound), (no_file_at_all, InvalidRequest), (named_pipe, DataError)]
)
def test_what_cannot_be_read(tmp_path: Path, make: Callable[[Path], Path], kind: type[PystachioError]) -> None:
    end = ended(chunk(str(make(tmp_path)), 0, 100))
    assert type(end.error) is kind
    assert end.transferred == 0


def test_a_file_without_permission(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidding_open(name: str, flags: int, mode: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", forbidding_open)
    assert isinstance(ended(chunk(path, 0, 10)).error, Unauthorized)


def test_an_abandoned_chunk_is_not_read(path: str) -> None:
    request = chunk(path, 0, 100)
    request.abandoned = True
    end = ended(request)
    assert (end.transferred, type(end.error)) == (0, Cancelled)


def test_files_are_closed(path: str) -> None:
    file = PosixFile(path, direct=True)
    descriptors = [file.descriptor(direct=direct)[0] for direct in (True, False)]
    file.close()
    file.close()
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_chunks_are_read_side_by_side_by_few_threads(path: str) -> None:
    before = threading.active_count()
    device = PosixDevice(threads=3)
    ends: SimpleQueue[ChunkEnd] = SimpleQueue()
    requests = [chunk(path, 1000 * i, 1000) for i in range(50)]
    for request in requests:
        device.start(request, ends.put)
    assert [ends.get(timeout=10) for _ in requests] == [ChunkEnd(1000, PathTaken.BUFFERED)] * 50
    assert threading.active_count() <= before + 3
    device.close()
    assert threading.active_count() == before
    assert b"".join(bytes(request.buffer) for request in requests) == CONTENT[:50_000]  # type: ignore[arg-type]
    for request in requests:
        request.file.close()


@pytest.mark.parametrize("running", [0, 1])
def test_threads_that_the_system_refuses(path: str, monkeypatch: pytest.MonkeyPatch, running: int) -> None:
    """Without any thread nothing is taken that would never end; with one it does the work of all."""
    device, ends = PosixDevice(threads=4), SimpleQueue[ChunkEnd]()
    file = device.open(path)

    def start() -> None:
        device.start(ChunkRequest(file, 0, BufferPool().acquire(1000), 1000), ends.put)

    for _ in range(running):
        start()
        assert ends.get(timeout=30).transferred == 1000
    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    if not running:
        with pytest.raises(ResourceExhausted, match="no thread for the disk"):
            start()
    monkeypatch.setattr(threading.Thread, "start", refuse if running else begin)
    for _ in range(20):
        start()
    assert [ends.get(timeout=30).transferred for _ in range(20)] == [1000] * 20
    assert ends.empty()
    file.close()
    device.close()
