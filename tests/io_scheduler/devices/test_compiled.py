"""Threads without Python move chunks as Python's do: the cases are run with both, and compared where it matters."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from pystachio.compiled import CompiledLibrary
from pystachio.errors import (
    Cancelled,
    DataError,
    InternalError,
    InvalidRequest,
    NotFound,
    PystachioError,
    ResourceExhausted,
)
from pystachio.io_scheduler.buffers import BufferPool
from pystachio.io_scheduler.core.request import Direction, Link, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, DeviceFile, FileSeries, choose, native
from pystachio.io_scheduler.devices.compiled import CompiledDevice
from pystachio.io_scheduler.devices.listing import list_files
from pystachio.io_scheduler.devices.page_cache import Admission, cached_bytes
from pystachio.io_scheduler.devices.posix import PosixDevice

CONTENT = os.urandom(300_000)
COMPILED = native.load()
SLOW = "/dev/urandom"  # the kernel works out what is read: 100 MB take it longer than a thread waits for a core

pytestmark = pytest.mark.skipif(COMPILED.library is None, reason=COMPILED.problem)

Make = Callable[..., "CompiledDevice | PosixDevice"]


@pytest_asyncio.fixture(params=["compiled", "python"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    devices: list[CompiledDevice | PosixDevice] = []

    def one(**settings: object) -> CompiledDevice | PosixDevice:
        if request.param == "compiled":
            device = CompiledDevice(COMPILED, asyncio.get_running_loop(), **settings)  # type: ignore[arg-type]
        else:
            device = PosixDevice(**settings)  # type: ignore[arg-type]
        devices.append(device)
        return device

    yield one
    for device in devices:
        device.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "data"
    file.write_bytes(CONTENT)
    return str(file)


def begun(
    device: CompiledDevice | PosixDevice, file: DeviceFile, offset: int, buffer: memoryview, required: int | None = None
) -> tuple[ChunkRequest, asyncio.Future[ChunkEnd]]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ChunkEnd] = loop.create_future()
    request = ChunkRequest(file, offset, buffer, len(buffer) if required is None else required)
    device.start(request, lambda end: loop.call_soon_threadsafe(future.set_result, end))
    return request, future


async def moved(
    device: CompiledDevice | PosixDevice, path: str, offset: int, buffer: memoryview, required: int | None = None
) -> ChunkEnd:
    file = device.open(path)
    end = await asyncio.wait_for(begun(device, file, offset, buffer, required)[1], 30)
    file.close()
    return end


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def memory(length: int) -> memoryview:
    return BufferPool().acquire(length)


@pytest.mark.parametrize(
    ("offset", "length", "direct", "taken"),
    [
        (1234, 5000, False, PathTaken.BUFFERED),
        (4096, 8192, True, PathTaken.DIRECT),
        (1, 100, True, PathTaken.BUFFERED),
        (4096, 100, True, PathTaken.BUFFERED),
        (0, 0, False, PathTaken.BUFFERED),
    ],
)
async def test_chunks_are_read_the_way_that_was_asked_for(
    make: Make, path: str, offset: int, length: int, direct: bool, taken: PathTaken
) -> None:
    buffer = memory(length)
    end = await moved(make(direct=direct), path, offset, buffer)
    assert (end.transferred, end.error, end.path) == (length, None, taken)
    assert bytes(buffer) == CONTENT[offset : offset + length]


async def test_rounding_may_lie_behind_the_end_of_the_file(make: Make, path: str) -> None:
    buffer = memory(8192)
    end = await moved(make(direct=True), path, 294_912, buffer, required=300_000 - 294_912)
    assert (end.transferred, end.error, end.path) == (5088, None, PathTaken.DIRECT)
    assert bytes(buffer)[:5088] == CONTENT[294_912:]


async def test_a_file_that_ends_early(make: Make, path: str) -> None:
    end = await moved(make(), path, 299_000, memory(5000))
    assert (end.transferred, type(end.error)) == (1000, DataError)
    assert "at byte 300,000" in str(end.error)


async def test_a_file_system_without_direct_reads_is_read_buffered(make: Make) -> None:
    buffer = memory(4096)
    end = await moved(make(direct=True), "/proc/self/status", 0, buffer, required=100)
    assert (end.error, end.path) == (None, PathTaken.BUFFERED)
    assert bytes(buffer).startswith(b"Name:")


def absent(tmp_path: Path) -> Path:
    return tmp_path / "absent"


def folder(tmp_path: Path) -> Path:
    return tmp_path


def named_pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("name", "kind"), [(absent, NotFound), (folder, InvalidRequest), (named_pipe, DataError)])
async def test_what_cannot_be_read(
    make: Make, tmp_path: Path, name: Callable[[Path], Path], kind: type[PystachioError], direct: bool
) -> None:
    end = await moved(make(direct=direct), str(name(tmp_path)), 0, memory(4096))
    assert (end.transferred, type(end.error)) == (0, kind)


async def test_names_that_are_no_utf8_and_names_that_no_file_has(make: Make, tmp_path: Path) -> None:
    name = tmp_path / os.fsdecode(b"caf\xe9")
    name.write_bytes(b"latin")
    buffer = memory(5)
    assert (await moved(make(), str(name), 0, buffer)).error is None
    assert bytes(buffer) == b"latin"
    if isinstance(device := make(), CompiledDevice):
        with pytest.raises(InvalidRequest):
            device.open(f"{tmp_path}/a\0b")


async def test_many_chunks_of_many_files_side_by_side(make: Make, tmp_path: Path) -> None:
    device = make(threads=3, direct=True)
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    expected, chunks = [], []
    for number in range(20):
        content = os.urandom(64 << 10)
        (tmp_path / f"{number}").write_bytes(content)
        file = device.open(str(tmp_path / f"{number}"))
        for offset in range(0, len(content), 4096):
            buffer = memory(4096)
            expected.append((content[offset : offset + 4096], buffer))
            chunks.append((file, begun(device, file, offset, buffer)[1]))
    ends = await asyncio.wait_for(asyncio.gather(*(future for _, future in chunks)), 60)
    assert ends == [ChunkEnd(4096, PathTaken.DIRECT)] * 320
    assert all(bytes(buffer) == content for content, buffer in expected)
    assert len(os.listdir("/proc/self/task")) <= threads + 3
    for file, _ in chunks:
        file.close()
    device.close()
    # The system lists a thread for a moment after it was joined.
    eventually(lambda: len(os.listdir("/proc/self/task")) <= threads)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    device.close()


async def test_chunks_that_are_given_up_before_they_began_are_not_read(path: str) -> None:
    device = CompiledDevice(COMPILED, asyncio.get_running_loop(), threads=1)
    file = device.open(path)
    endless, buffer = device.open(SLOW), memory(300_000)
    _, busy = begun(device, endless, 0, memory(96 << 20))
    chunks = [begun(device, file, 0, buffer) for _ in range(20)]
    for request, _ in chunks[10:]:
        device.abandon(request)
    ends = await asyncio.wait_for(asyncio.gather(*(future for _, future in chunks)), 60)
    given_up = [end for end in ends if isinstance(end.error, Cancelled)]
    assert all(end.transferred == 300_000 for end in ends[:10])
    assert given_up
    assert all(end in given_up or end.transferred == 300_000 for end in ends[10:])
    assert (await busy).error is None
    endless.close()
    request = chunks[0][0]
    request.abandoned = True
    late: asyncio.Future[ChunkEnd] = asyncio.get_running_loop().create_future()
    device.start(request, late.set_result)
    assert isinstance((await late).error, Cancelled)
    file.close()
    device.close()


async def test_files_and_memory_of_others_are_refused(path: str) -> None:
    device, ends = CompiledDevice(COMPILED, asyncio.get_running_loop()), list[ChunkEnd]()
    device.start(ChunkRequest(PosixDevice().open(path), 0, memory(10), 10), ends.append)
    constant = memoryview(b"nobody may write")
    device.start(ChunkRequest(device.open(path), 0, constant, 10), ends.append)
    assert [type(end.error) for end in ends] == [InternalError] * 2
    assert bytes(constant) == b"nobody may write"
    device.close()


async def test_a_chunk_does_not_wait_for_one_that_takes_long(make: Make, path: str) -> None:
    device = make()
    endless, file = device.open(SLOW), device.open(path)
    _, slow = begun(device, endless, 0, memory(128 << 20))
    await asyncio.sleep(0.005)
    for _ in range(3):
        assert (await asyncio.wait_for(begun(device, file, 0, memory(100))[1], 30)).transferred == 100
    assert not slow.done()
    assert (await slow).error is None
    endless.close()
    file.close()


async def test_chunks_do_not_wait_for_others_that_take_long_while_there_may_be_more_threads(path: str) -> None:
    """However they come: a burst, whose threads start one another, or one by one."""
    shared = memory(96 << 20)
    for pause in (None, 0.0, 0.0005):
        device = CompiledDevice(COMPILED, asyncio.get_running_loop(), threads=4)
        endless, file = device.open(SLOW), device.open(path)
        slow = []
        for _ in range(3):
            slow.append(begun(device, endless, 0, shared)[1])
            if pause is not None:
                await asyncio.sleep(pause)
        quick = [begun(device, file, 0, memory(100))[1] for _ in range(5)]
        for ended in quick:
            assert (await asyncio.wait_for(ended, 30)).transferred == 100
        assert not all(ended.done() for ended in slow)
        await asyncio.gather(*slow)
        endless.close()
        file.close()
        device.close()


def test_memory_is_not_used_anew_under_a_read_that_outlives_its_loop() -> None:
    pool = BufferPool()

    async def begin() -> None:
        device = CompiledDevice(COMPILED, asyncio.get_running_loop())
        device.start(ChunkRequest(device.open(SLOW), 0, pool.acquire(96 << 20), 96 << 20), lambda end: None)

    asyncio.run(begin())
    gc.collect()
    assert pool.statistics().blocks == 1


async def test_an_end_that_is_not_taken_keeps_none_from_the_others(path: str) -> None:
    loop, failures = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
    device = CompiledDevice(COMPILED, loop, threads=1)
    file = device.open(path)

    def refuse(end: ChunkEnd) -> None:
        raise ValueError

    device.start(ChunkRequest(file, 0, memory(100), 100), refuse)
    ends = await asyncio.wait_for(asyncio.gather(*(begun(device, file, 0, memory(10))[1] for _ in range(9))), 30)
    assert [end.transferred for end in ends] == [10] * 9
    assert [type(failure) for failure in failures] == [ValueError]
    file.close()
    device.close()


async def test_what_is_in_the_page_cache_is_taken_from_there_and_what_is_not_is_read_around_it_once(
    make: Make, path: str
) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if cached_bytes(descriptor, 0, 65_536) is None:
            pytest.skip("the system does not tell what is cached")
        device = make(direct=True, admission=Admission())
        assert (await moved(device, path, 0, memory(65_536))).path is PathTaken.BUFFERED
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_bytes(descriptor, 0, 65_536):
            pytest.skip("the page cache does not let go of the file")
        ways = [(await moved(device, path, 0, memory(65_536))).path for _ in range(2)]
        assert ways == [PathTaken.DIRECT, PathTaken.BUFFERED]
        # It came into the cache with the second read, for whoever asks next.
        assert cached_bytes(descriptor, 0, 65_536) == 65_536
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("direct", [False, True])
async def test_chunks_are_written_where_they_belong(make: Make, tmp_path: Path, direct: bool) -> None:
    device, path = make(direction=Direction.WRITE, direct=direct), tmp_path / "f"
    before = os.umask(0)
    try:
        for offset, length in ((65536, 8192), (0, 4096), (4096, 61440), (73728, 777)):
            buffer = memory(length)
            buffer[:] = CONTENT[offset : offset + length]
            end = await moved(device, str(path), offset, buffer)
            around = direct and length != 777
            assert end == ChunkEnd(length, PathTaken.DIRECT if around else PathTaken.BUFFERED)
        assert (await moved(device, str(path), 0, memoryview(CONTENT[:4095]))).transferred == 4095
    finally:
        os.umask(before)
    assert path.read_bytes() == CONTENT[: 73728 + 777]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_full_disk(make: Make) -> None:
    end = await moved(make(direction=Direction.WRITE), "/dev/full", 0, memory(4096))
    assert end.transferred == 0
    assert isinstance(end.error, ResourceExhausted)
    assert end.error.setting == "disk"


async def test_a_chunk_that_is_started_on_a_thread_is_told_on_the_loop(path: str) -> None:
    loop = asyncio.get_running_loop()
    device = CompiledDevice(COMPILED, loop)
    file, future = device.open(path), loop.create_future()
    await asyncio.to_thread(device.start, ChunkRequest(file, 0, memory(1000), 1000), future.set_result)
    assert (await asyncio.wait_for(future, 30)).transferred == 1000
    file.close()
    device.close()


async def test_a_process_without_descriptors_is_told_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "eventfd", refuse)
    device = CompiledDevice(COMPILED, asyncio.get_running_loop())
    file = device.open(path)
    with pytest.raises(ResourceExhausted, match="no descriptor for the disk"):
        begun(device, file, 0, memory(10))
    monkeypatch.undo()
    assert (await asyncio.wait_for(begun(device, file, 0, memory(10))[1], 30)).transferred == 10
    file.close()
    device.close()


async def test_compiled_threads_are_chosen_where_there_is_a_loop() -> None:
    link = Link("disk", "0:1")
    assert isinstance(choose("posix")(link), CompiledDevice)
    assert isinstance(await asyncio.to_thread(choose("posix"), link), PosixDevice)


async def test_python_threads_are_chosen_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: native.CompiledLibrary(None, "not built"))
    assert isinstance(choose("posix")(Link("disk", "0:1")), PosixDevice)


async def test_a_series_is_read_as_if_it_were_one_file(tmp_path: Path) -> None:
    """Chunks of any place and length, by all ways."""
    sizes, parts = [4096, 3 * 4096, 4096, 8 * 4096], []
    for number, nbytes in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(os.urandom(nbytes + 100 * number))
        parts.append((str(tmp_path / str(number)), nbytes))
    together = b"".join((tmp_path / str(number)).read_bytes()[:nbytes] for number, nbytes in enumerate(sizes))
    for settings in ({}, {"direct": True}, {"direct": True, "admission": Admission()}):
        device = CompiledDevice(COMPILED, asyncio.get_running_loop(), **settings)  # type: ignore[arg-type]
        file = device.open_series(FileSeries(tuple(parts)))
        pool = BufferPool()
        for offset in range(0, len(together), 4096):
            for length in range(4096, len(together) - offset + 1, 4096):
                buffer = pool.acquire(length)
                end = await ended(device, ChunkRequest(file, offset, buffer, length))
                assert end.error is None
                assert end.transferred == length
                assert bytes(buffer) == together[offset : offset + length]
                del buffer
        file.close()
        device.close()


async def test_a_series_with_a_file_that_is_missing_or_short(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 8192)
    parts = tuple((str(tmp_path / str(number)), 8192) for number in range(3))
    device = CompiledDevice(COMPILED, asyncio.get_running_loop())
    os.truncate(tmp_path / "1", 100)
    for expected, transferred in ((DataError, 8292), (NotFound, 8192)):
        file = device.open_series(FileSeries(parts))
        end = await ended(device, ChunkRequest(file, 0, memoryview(bytearray(3 * 8192)), 3 * 8192))
        assert isinstance(end.error, expected)
        assert end.transferred == transferred
        file.close()
        (tmp_path / "1").unlink(missing_ok=True)
    with pytest.raises(InvalidRequest):
        device.open_series(FileSeries((("a\0b", 5), ("c", 5))))
    device.close()


async def ended(device: CompiledDevice, request: ChunkRequest) -> ChunkEnd:
    loop = asyncio.get_running_loop()
    end: asyncio.Future[ChunkEnd] = loop.create_future()
    device.start(request, lambda found: loop.call_soon_threadsafe(end.set_result, found))
    return await asyncio.wait_for(end, 10)


async def test_a_series_goes_through_the_cache_where_one_of_its_files_was_read_before(tmp_path: Path) -> None:
    """As a single file does: whoever asks again has not kept it."""
    parts = []
    for number in range(3):
        parts.append((str(tmp_path / str(number)), 8192))
        (tmp_path / str(number)).write_bytes(bytes([number]) * 8192)
        descriptor = os.open(parts[-1][0], os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    admission = Admission(cached=lambda *_: 0)
    device = CompiledDevice(COMPILED, asyncio.get_running_loop(), direct=True, admission=admission)
    first = device.open_series(FileSeries(tuple(parts[:2])))
    await ended(device, ChunkRequest(first, 0, BufferPool().acquire(2 * 8192), 2 * 8192))
    ways = [admission.may_go_around(path, 0) for path, _ in parts]
    if ways[0]:
        pytest.skip("this file system has all of it in the cache, or does not tell")
    assert ways == [False, False, True]
    for series, expected in ((parts[2:], PathTaken.DIRECT), (parts[1:], PathTaken.BUFFERED)):
        another = device.open_series(FileSeries(tuple(series)))
        nbytes = 8192 * len(series)
        end = await ended(device, ChunkRequest(another, 0, BufferPool().acquire(nbytes), nbytes))
        assert end.path is expected
        another.close()
    first.close()
    device.close()


@pytest.mark.parametrize("compiled", [True, False])
def test_the_files_of_a_folder(tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "load", lambda: CompiledLibrary(None, "not asked for"))
    assert list_files(str(tmp_path)) == []
    for number in range(3000):
        (tmp_path / f"{number} {'x' * (number % 90)}").write_bytes(b"x" * (number % 11))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "0 ")
    (tmp_path / os.fsdecode(b"n\xff")).write_bytes(b"no text")
    found = list_files(str(tmp_path))
    with os.scandir(tmp_path) as entries:
        files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        expected = {(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in files}
    assert len(found) == 3001
    assert set(found) == expected
    with pytest.raises(FileNotFoundError):
        list_files(str(tmp_path / "absent"))
    with pytest.raises(NotADirectoryError):
        list_files(str(tmp_path / "link"))
