from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError, ResourceExhausted, Unauthorized
from pystachio.io_scheduler.buffers import BufferPool
from pystachio.io_scheduler.core.request import Direction, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.devices.posix import PosixDevice, PosixFile, move_chunk

CONTENT = os.urandom(1 << 17)


def chunk(path: Path, offset: int, length: int, *, direct: bool = False) -> ChunkRequest:
    """The bytes of CONTENT at the same offset."""
    buffer = BufferPool().acquire(length)
    buffer[:] = CONTENT[offset : offset + length]
    return ChunkRequest(PosixFile(str(path), direct=direct, direction=Direction.WRITE), offset, buffer, length)


def ended(request: ChunkRequest) -> ChunkEnd:
    end = move_chunk(request)
    request.file.close()
    return end


def test_a_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert ended(chunk(tmp_path / "f", 0, 5000)) == ChunkEnd(5000, PathTaken.BUFFERED)
    finally:
        os.umask(before)
    assert (tmp_path / "f").read_bytes() == CONTENT[:5000]
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600


@pytest.mark.parametrize("direct", [False, True])
def test_chunks_land_where_they_belong_and_leave_the_rest_alone(tmp_path: Path, direct: bool) -> None:
    path = tmp_path / "f"
    for offset, length in ((65536, 8192), (0, 4096), (4096, 61440), (73728, 777)):
        assert ended(chunk(path, offset, length, direct=direct)).transferred == length
    assert path.read_bytes() == CONTENT[: 73728 + 777]


def test_aligned_writes_pass_the_page_cache_and_others_say_that_they_do_not(tmp_path: Path) -> None:
    assert ended(chunk(tmp_path / "f", 4096, 8192, direct=True)).path is PathTaken.DIRECT
    assert ended(chunk(tmp_path / "f", 4096, 8191, direct=True)).path is PathTaken.BUFFERED
    assert ended(chunk(tmp_path / "f", 1, 4096, direct=True)).path is PathTaken.BUFFERED


def test_memory_that_may_not_be_written_to_can_be_written_from(tmp_path: Path) -> None:
    request = chunk(tmp_path / "f", 0, 4096)
    request.buffer = memoryview(CONTENT[:4096])
    assert ended(request) == ChunkEnd(4096, PathTaken.BUFFERED)
    assert (tmp_path / "f").read_bytes() == CONTENT[:4096]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: real_pwritev(fd, [buffers[0][:1000]], offset))
    assert ended(chunk(tmp_path / "f", 0, 40_960, direct=True)).transferred == 40_960
    assert (tmp_path / "f").read_bytes() == CONTENT[:40_960]


def test_a_file_that_takes_nothing_more_ends_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: 0)
    end = ended(chunk(tmp_path / "f", 0, 4096))
    assert (end.transferred, type(end.error)) == (0, DataError)


def test_a_full_disk() -> None:
    request = chunk(Path("/dev/full"), 0, 4096)
    end = ended(request)
    assert end.transferred == 0
    assert isinstance(end.error, ResourceExhausted)
    assert end.error.setting == "disk"
    assert end.error.__cause__ is not None
    assert end.error.__cause__.__traceback__ is None


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ResourceExhausted),
        (errno.EDQUOT, ResourceExhausted),
        (errno.EFBIG, ResourceExhausted),
        (errno.EROFS, Unauthorized),
        (errno.EIO, DataError),
    ],
)
def test_what_was_written_before_an_error_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[PystachioError]
) -> None:
    real_pwritev = os.pwritev

    def failing_pwritev(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if offset >= 4096:
            raise OSError(number, os.strerror(number))
        return real_pwritev(descriptor, [buffers[0][:4096]], offset)

    monkeypatch.setattr(os, "pwritev", failing_pwritev)
    end = ended(chunk(tmp_path / "f", 0, 8192))
    assert (end.transferred, type(end.error)) == (4096, kind)


def test_where_no_file_can_be(tmp_path: Path) -> None:
    (tmp_path / "pipe").touch()
    os.mkfifo(tmp_path / "queue")
    assert type(ended(chunk(tmp_path, 0, 10)).error) is InvalidRequest
    assert type(ended(chunk(tmp_path / "absent" / "f", 0, 10)).error) is NotFound
    assert type(ended(chunk(tmp_path / "queue", 0, 10)).error) is DataError


@pytest.mark.parametrize("direct", [False, True])
def test_a_device_writes_and_closes_on_its_threads(
    tmp_path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing: list[threading.Thread] = []
    real_close = os.close

    def close(descriptor: int) -> None:
        closing.append(threading.current_thread())
        real_close(descriptor)

    monkeypatch.setattr(os, "close", close)
    device = PosixDevice(direction=Direction.WRITE, direct=direct)
    file = device.open(str(tmp_path / "f"))
    ends: SimpleQueue[ChunkEnd] = SimpleQueue()
    buffer = BufferPool().acquire(len(CONTENT))
    buffer[:] = CONTENT
    for offset in range(0, len(CONTENT), 8192):
        device.start(ChunkRequest(file, offset, buffer[offset : offset + 8192], 8192), ends.put)
    expected = ChunkEnd(8192, PathTaken.DIRECT if direct else PathTaken.BUFFERED)
    assert [ends.get(timeout=10) for _ in range(len(CONTENT) // 8192)] == [expected] * (len(CONTENT) // 8192)
    file.close()
    file.close()
    device.close()
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert len(closing) == 1
    assert closing[0] is not threading.current_thread()
    assert device.limits.alignment == (4096 if direct else 1)
