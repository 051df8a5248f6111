"""A node's machine in virtual time: workers and a disk that need no thread, and the loop that they share."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from errno import EIO
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from pystachio.io_scheduler.core.request import LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest, DeviceFile
from pystachio.io_scheduler.devices.emulated import NamedFile
from pystachio.io_scheduler.os_errors import from_os_error
from pystachio.runtime.clock import Clock
from pystachio.runtime.home_core import HomeCore
from pystachio.runtime.virtual_loop import VirtualTimeLoop
from pystachio.runtime.worker_pool import Inbox, Job, WorkerPool, WorkerThread
from pystachio.server.file_looks import FileLooks
from pystachio.server.simulation.wires import SimulatedNetwork, SimulatedServer

Arguments = TypeVarTuple("Arguments")
R = TypeVar("R")
T = TypeVar("T")

HOST: ContextVar[str] = ContextVar("HOST")
"""On which host a coroutine runs."""
CHUNK_BYTES = 64 << 10


class ClusterLoop(VirtualTimeLoop):
    """The loop of all nodes: connections are those of `network`, and what is sent to a thread runs at its turn."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        self.network = SimulatedNetwork(self, chance)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        server: SimulatedServer = self.network.serve(protocol_factory, host, port)
        return server

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(HOST.get(), protocol_factory, host, port)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], R], *args: *Arguments
    ) -> asyncio.Future[R]:
        future: asyncio.Future[R] = self.create_future()

        def run() -> None:
            if future.done():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.chance.uniform(0.0001, 0.003), run)
        return future


class SimulatedWorkers(WorkerPool):
    """Jobs run on the loop, a moment after they were given to a worker, and take no time."""

    def __init__(self, workers: int, clock: Clock) -> None:
        super().__init__(workers, clock=clock)

    def _new_thread(self) -> WorkerThread:
        worker = _Worker(self._do, self._worker_ended)
        self._threads.add(worker)
        return worker

    def _do(self, worker: WorkerThread, job: Job) -> None:
        job.execute()
        following = self._complete(worker, job, 0.0)
        if following is not None:
            worker.inbox.put(following)


class _Worker(WorkerThread):
    """A thread that never starts."""

    def __init__(self, do: Callable[[WorkerThread, Job], None], ended: Callable[[WorkerThread], None]) -> None:
        no_home = HomeCore(0, workers=0)
        super().__init__("simulated", lambda _: None, _Inbox(self, do, ended), no_home)

    def join(self, timeout: float | None = None) -> None:
        """It has ended."""


class _Inbox(Inbox):
    def __init__(
        self, worker: WorkerThread, do: Callable[[WorkerThread, Job], None], ended: Callable[[WorkerThread], None]
    ) -> None:
        self._worker = worker
        self._do = do
        self._ended = ended

    def put(self, job: Job | None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ClusterLoop), "workers of a simulation run in it"
        if job is None:
            loop.call_soon(self._ended, self._worker)
        else:
            loop.call_later(loop.chance.uniform(0.00002, 0.002), self._do, self._worker, job)


class SimulatedLooks(FileLooks):
    """Looks at real files, at the loop's turn: none of them ever hangs."""

    async def look(self, work: Callable[[Sequence[T]], R], things: Sequence[T], path_of: Callable[[T], str]) -> list[R]:
        return [await asyncio.to_thread(work, things)] if things else []


class SimulatedDisk:
    """Reads real files at once and says so later; `fails` has it report EIO."""

    limits = LinkLimits(chunk_bytes=CHUNK_BYTES, window_bytes=4 * CHUNK_BYTES, calibrated=False)

    def __init__(self) -> None:
        self.fails = False

    def open(self, path: str) -> DeviceFile:
        return NamedFile(path)

    def start(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ClusterLoop), "disks of a simulation work in it"
        loop.call_later(loop.chance.uniform(0.0001, 0.002), self._move, request, ended)

    def _move(self, request: ChunkRequest, ended: Callable[[ChunkEnd], None]) -> None:
        assert isinstance(request.buffer, memoryview), "the simulation has no device memory"
        if self.fails:
            ended(ChunkEnd(0, PathTaken.EMULATED, from_os_error(OSError(EIO, os.strerror(EIO)), request.file.path)))
            return
        descriptor = os.open(request.file.path, os.O_RDONLY)
        try:
            count = os.preadv(descriptor, [request.buffer], request.offset)
        finally:
            os.close(descriptor)
        ended(ChunkEnd(count, PathTaken.EMULATED))

    def abandon(self, request: ChunkRequest) -> None:
        """It ends soon."""

    def close(self) -> None:
        """Nothing was opened."""


@contextmanager
def replayed(loop: ClusterLoop, seed: int) -> Iterator[None]:
    """Whoever asks for the time gets the loop's, and who asks for randomness the seed's: for the whole process, so
    nothing else may run in it."""
    chance = Random(seed)
    with ExitStack() as replaced:
        for module, name, function in (
            (time, "monotonic", loop.time),
            (time, "perf_counter", loop.time),
            (os, "urandom", chance.randbytes),
            (secrets, "token_hex", lambda count=16: chance.randbytes(count).hex()),
        ):
            replaced.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, function)
        yield
