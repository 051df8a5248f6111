from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from pystachio.io_scheduler.buffers import BufferPool
from pystachio.io_scheduler.core.request import Direction, Link, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, choose, page_cache
from pystachio.io_scheduler.devices.page_cache import RETRIAL_SECONDS, SLOW_RATE, Admission, cached_bytes
from pystachio.io_scheduler.devices.posix import PosixDevice, PosixFile, move_chunk

MIB = 1 << 20
CONTENT = os.urandom(2 * MIB)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file on a disk, of which nothing is in the page cache."""
    file = tmp_path / "data"
    file.write_bytes(CONTENT)
    forget(str(file))
    with open(file, "rb") as opened:
        if cached_bytes(opened.fileno(), 0, len(CONTENT)) != 0:
            pytest.skip("this system does not say what is in its page cache, or keeps everything there")
    return str(file)


def forget(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read(path: str, admission: Admission, offset: int = 0, length: int = MIB) -> PathTaken:
    """The way that the bytes took, which are checked."""
    buffer = BufferPool().acquire(length)
    file = PosixFile(path, direct=True, admission=admission)
    end = move_chunk(ChunkRequest(file, offset, buffer, length))
    file.close()
    assert end == ChunkEnd(length, end.path)
    assert bytes(buffer) == CONTENT[offset : offset + length]
    return end.path


def resident(path: str) -> int:
    """Pages of the file in the page cache by another witness, mincore."""
    import ctypes

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=3) as mapping:
        vector = (ctypes.c_ubyte * (len(CONTENT) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapping)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(CONTENT)), vector) == 0
        del start
        return sum(page & 1 for page in vector)


def test_the_system_says_what_is_cached(path: str) -> None:
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 8192, MIB)
        assert cached_bytes(file.fileno(), 0, len(CONTENT)) == 4096 * resident(path) > 0
        assert cached_bytes(file.fileno(), 0, 4096) == 0
        assert cached_bytes(file.fileno(), MIB, 4096) == 4096


def test_what_is_read_once_goes_around_the_page_cache(path: str) -> None:
    admission = Admission()
    assert read(path, admission) is PathTaken.DIRECT
    assert read(path, admission, MIB) is PathTaken.DIRECT
    assert resident(path) == 0


def test_what_is_read_again_goes_through_the_page_cache(path: str) -> None:
    admission = Admission()
    assert [read(path, admission) for _ in range(2)] == [PathTaken.DIRECT, PathTaken.BUFFERED]
    assert resident(path) > 0


def test_what_is_cached_is_taken_from_there(path: str) -> None:
    with open(path, "rb") as file:
        file.read(MIB)
    assert read(path, Admission()) is PathTaken.BUFFERED


def test_a_slow_disk_is_read_through_the_page_cache(path: str) -> None:
    admission = Admission()
    for _ in range(8):
        admission.note_direct(MIB, 2 * MIB / SLOW_RATE)
    assert admission.disk_is_slow
    assert read(path, admission) is PathTaken.BUFFERED
    admission.note_direct(MIB, MIB / SLOW_RATE / 2)
    assert not admission.disk_is_slow


class Told:
    """What the system says of its page cache, whether it does here or not; `cached` of every chunk. And a clock."""

    def __init__(self, cached: int | None = 0) -> None:
        self.cached = cached
        self.seconds = 0.0
        self.admission = Admission(cached=lambda descriptor, offset, length: self.cached, now=lambda: self.seconds)

    def goes_around(self, offset: int = 0) -> bool:
        return self.admission.goes_around("/file", 3, offset, MIB)


def test_chunks_are_admitted_when_they_are_asked_for_again() -> None:
    told = Told()
    assert [told.goes_around(offset) for offset in (0, MIB, 0, MIB, 2 * MIB)] == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("cached", "around"), [(0, True), (MIB // 2 - 4096, True), (MIB // 2, False), (MIB, False), (None, False)]
)
def test_chunks_of_which_half_is_cached_go_through_the_cache(cached: int | None, around: bool) -> None:
    assert Told(cached).goes_around() is around


def test_what_was_found_in_the_cache_is_not_counted_as_read() -> None:
    told = Told(MIB)
    assert not told.goes_around()
    told.cached = 0
    assert told.goes_around()


def test_few_chunks_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_MOST_REMEMBERED", 4)  # quarters of a mebibyte
    told = Told()
    assert [told.goes_around(offset) for offset in (0, MIB, 0, 0)] == [True, True, True, False]


def test_a_slow_disk_is_tried_again_after_a_while() -> None:
    """It may have been slow because others were at work on it, and it is not heard of while nothing reads it so."""
    told = Told()
    for _ in range(2):
        assert told.goes_around(told_offset := int(told.seconds) * MIB)
        for _ in range(8):
            told.admission.note_direct(MIB, 2 * MIB / SLOW_RATE)
        assert told.admission.disk_is_slow
        assert not told.goes_around(told_offset + MIB)
        told.seconds += RETRIAL_SECONDS - 1
        assert not told.goes_around(told_offset + MIB)
        told.seconds += 1
    for _ in range(8):
        assert told.goes_around(int(told.seconds) * MIB)
        told.admission.note_direct(MIB, MIB / SLOW_RATE / 2)
        told.seconds += 1
    assert not told.admission.disk_is_slow


def test_small_reads_say_nothing_about_the_disk() -> None:
    admission = Admission()
    for _ in range(100):
        admission.note_direct(4096, 1.0)
    assert not admission.disk_is_slow


def test_a_system_that_does_not_say_reads_through_its_cache(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_CACHESTAT", 99_999)
    with open(path, "rb") as file:
        assert cached_bytes(file.fileno(), 0, MIB) is None
    assert read(path, Admission()) is PathTaken.BUFFERED


def test_reads_without_alignment_go_through_the_cache(path: str) -> None:
    assert read(path, Admission(), 1, 4096) is PathTaken.BUFFERED


def test_little_is_remembered(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_MOST_REMEMBERED", 1)
    admission = Admission()
    assert read(path, admission) is PathTaken.DIRECT
    assert read(path, admission, MIB) is PathTaken.DIRECT
    assert read(path, admission) is PathTaken.DIRECT


@pytest.mark.parametrize(
    ("name", "sparing", "alignment"),
    [("8:0", True, 4096), ("8:0", False, 1), ("0:44", True, 1), ("nfs there", True, 1)],
)
def test_only_local_disks_are_read_around_the_cache(name: str, sparing: bool, alignment: int) -> None:
    device = choose("posix", sparing=sparing)(Link("disk", name, Direction.READ))
    assert isinstance(device, PosixDevice)
    assert device.limits.alignment == alignment
    device.close()
