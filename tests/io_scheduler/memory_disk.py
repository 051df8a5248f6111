"""Disks that are dictionaries behind an emulated wire and injected faults, and a service over them, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pystachio.errors import DataError, NotFound
from pystachio.io_scheduler.core.request import Direction, Extent, Link, LinkLimits, PathTaken, PriorityClass
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.devices.emulated import EmulatedDevice, NamedFile
from pystachio.io_scheduler.devices.faulty import ChooseFault, FaultyDevice, scripted
from pystachio.io_scheduler.service import IoSchedulerService

CHUNK = 1000
RATE = 100_000.0
"""Bytes a second of each disk: a chunk takes ten milliseconds."""
LATE_SECONDS = 10.0
"""More than any fault lasts, unless for ever."""


def content(name: str, nbytes: int) -> bytes:
    """Bytes that differ from file to file and from place to place."""
    return random.Random(name).randbytes(nbytes)


@dataclass(eq=False)
class MemoryDisk:
    """Moves chunks at once between buffers and files in memory; `moved` counts the bytes of each."""

    files: dict[str, bytearray]
    direction: Direction
    limits: LinkLimits
    moved: dict[str, int] = field(default_factory=dict)
    closed: bool = False

    def open(self, path: str) -> NamedFile:
        return NamedFile(path)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        path, offset, buffer = request.file.path, request.offset, request.buffer
        assert isinstance(buffer, memoryview)
        if self.direction is Direction.WRITE:
            file = self.files.setdefault(path, bytearray())
            file.extend(bytes(max(0, offset + len(buffer) - len(file))))
            file[offset : offset + len(buffer)] = buffer
            self._end(path, len(buffer), len(buffer), ended)
        elif path not in self.files:
            ended(ChunkEnd(0, PathTaken.EMULATED, NotFound(f"no such file: {path}")))
        else:
            found = self.files[path][offset : offset + len(buffer)]
            buffer[: len(found)] = found
            self._end(path, len(found), request.required, ended)

    def _end(self, path: str, transferred: int, required: int, ended: Callable[[ChunkEnd], None]) -> None:
        self.moved[path] = self.moved.get(path, 0) + transferred
        error = DataError(f"the file ends early: {path}") if transferred < required else None
        ended(ChunkEnd(transferred, PathTaken.EMULATED, error))

    def abandon(self, request: ChunkRequest) -> None:
        """It has ended, and its end is on the way."""

    def close(self) -> None:
        self.closed = True


class CheckedService(IoSchedulerService):
    """Checks the core's invariants after each turn; a violation ends the test."""

    def _turn(self) -> None:
        super()._turn()
        self._core.check_invariants()


@dataclass(eq=False)
class Disks:
    """A service over disks `a`, `b`, ...; the file `/a/f` lies on the disk `a`. `broken` collects defects."""

    service: IoSchedulerService
    files: dict[str, bytearray]
    faulty: dict[Link, FaultyDevice]
    disks: dict[Link, MemoryDisk]
    broken: list[object]

    def link(self, name: str, direction: Direction = Direction.READ) -> Link:
        return Link("disk", name, direction)

    async def read(self, plan_id: str, path: str, *extents: Extent, criticality: int = 0) -> list[bytes]:
        """As a plan of normal priority that was not opened otherwise."""
        buffers = await self.service.client(plan_id, PriorityClass.NORMAL).read(path, extents, criticality=criticality)
        return [bytes(buffer.view) for buffer in buffers]

    async def write(self, plan_id: str, path: str, offset: int, data: bytes) -> None:
        client = self.service.client(plan_id, PriorityClass.NORMAL)
        await client.write(path, offset, memoryview(data), spill=True)


async def _locate(path: str) -> Link:
    return Link("disk", path.split("/")[1])


@asynccontextmanager
async def disks(
    files: Mapping[str, bytes],
    faults: Mapping[str, ChooseFault] | None = None,
    *,
    limits: LinkLimits | None = None,
    latency_seconds: float = 0.0,
    checked: bool = True,
) -> AsyncIterator[Disks]:
    """`faults` by disk, or by disk and direction, `a write`. Afterwards nothing is left and no invariant was broken."""
    loop = asyncio.get_running_loop()
    stored = {path: bytearray(data) for path, data in files.items()}
    if limits is None:
        limits = LinkLimits(chunk_bytes=CHUNK, window_bytes=4 * CHUNK, smallest_chunk_bytes=CHUNK, timeout_seconds=5.0)

    def open_device(link: Link) -> FaultyDevice:
        choose = (faults or {}).get(f"{link.name} {link.direction}" if link.direction is Direction.WRITE else link.name)
        disk = found.disks[link] = MemoryDisk(stored, link.direction, limits)
        wire = EmulatedDevice(disk, bytes_per_second=RATE, latency_seconds=latency_seconds, timers=loop)
        found.faulty[link] = FaultyDevice(wire, choose or scripted({}), timers=loop, direction=link.direction)
        return found.faulty[link]

    make_service = CheckedService if checked else IoSchedulerService
    service = make_service(open_device=open_device, locate=_locate, clock=loop.time)
    found = Disks(service, stored, {}, {}, [])
    loop.set_exception_handler(lambda _, context: found.broken.append(context))
    await service.start()
    try:
        yield found
        # What is late comes back before the service stops.
        for device in found.faulty.values():
            device.release()
        await asyncio.sleep(LATE_SECONDS)
    finally:
        await service.stop()
    assert not found.broken, found.broken
    statistics = service.statistics()
    left = (statistics.transfers, statistics.chunks, statistics.written_off, statistics.open_files, statistics.plans)
    assert left == (0, 0, 0, 0, 0), statistics
    assert all(disk.closed for disk in found.disks.values())
