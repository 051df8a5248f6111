"""TCP between two nodes through here, so that the way from one to the other can be made bad in every way.

Each ordered pair of nodes has a way of its own: what the first one connects to when it wants to reach the second. Both
directions of the connections on it are carried; a fault is of one direction or of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from pystachio.runtime.event_loop import loop_factory

R = TypeVar("R")
_LONGEST_READ = 256 << 10
_CLOSING_TURNS = 20
"""Of the loop, in which aborted connections close their sockets."""
_DAMAGED_BYTES = 4096
"""Pieces that are damaged are at least as long: data rather than heartbeats."""


@dataclass(slots=True, eq=False)
class Direction:
    """`is_open`: what comes is passed on; otherwise it stays in the kernel, as in a network that loses everything.

    `bytes_per_second` is the rate of the way; `damaged` is how many more pieces are to have a byte changed.
    """

    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    bytes_per_second: float | None = None
    damaged: int = 0
    passed_bytes: int = 0


class Way:
    """From `source`, who connects, to `target`, who listens."""

    def __init__(self, source: str, target: str, port: int) -> None:
        self.source, self.target = source, target
        self.port = 0
        self.there, self.back = Direction(), Direction()
        self._target_port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.heal()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0, limit=_LONGEST_READ)
        self.port = self._server.sockets[0].getsockname()[1]

    def heal(self) -> None:
        for direction in (self.there, self.back):
            direction.is_open.set()
            direction.bytes_per_second = None
            direction.damaged = 0

    def cut(self, *, there: bool = True, back: bool = True) -> None:
        """Pass nothing on, and say nothing of it."""
        if there:
            self.there.is_open.clear()
        if back:
            self.back.is_open.clear()

    def slow(self, bytes_per_second: float) -> None:
        self.there.bytes_per_second = self.back.bytes_per_second = bytes_per_second

    def damage(self, pieces: int) -> None:
        self.there.damaged = self.back.damaged = pieces

    def half_close(self, *, source: bool) -> None:
        """Reset the connections at one end; the other end hears nothing of it."""
        self.cut()
        for writer in tuple(self._writers):
            if getattr(writer, "_of_source", False) == source:
                writer.transport.abort()

    async def close(self) -> None:
        """Returns when no connection is left: a loop of uvloop cannot be closed over one that is being closed."""
        self._server.close()
        await asyncio.sleep(0)  # who was accepted has begun
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(_CLOSING_TURNS):
            await asyncio.sleep(0.001)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # What a blackhole swallows is neither refused nor accepted; here the connection stands, and nothing comes.
        writers = [writer]
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self.there.is_open.wait()
            there_reader, there_writer = await asyncio.open_connection(
                "127.0.0.1", self._target_port, limit=_LONGEST_READ
            )
            writers.append(there_writer)
            writer._of_source, there_writer._of_source = True, False  # type: ignore[attr-defined]
            self._writers.update(writers)
            await asyncio.gather(
                self._pass(reader, there_writer, self.there), self._pass(there_reader, writer, self.back)
            )
        for each in writers:
            self._writers.discard(each)
            each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        while True:
            with contextlib.suppress(ConnectionError, RuntimeError):  # a RuntimeError is uvloop's for what is closed
                content = await reader.read(_LONGEST_READ)
                await direction.is_open.wait()
                if not content:
                    writer.close()
                    return
                direction.passed_bytes += len(content)
                if direction.damaged and len(content) >= _DAMAGED_BYTES:
                    direction.damaged -= 1
                    middle = len(content) // 2
                    content = content[:middle] + bytes((content[middle] ^ 0xFF,)) + content[middle + 1 :]
                writer.write(content)
                await writer.drain()
                if direction.bytes_per_second is not None:
                    await asyncio.sleep(len(content) / direction.bytes_per_second)
                continue
            # The reader's end was reset, or the writer's: the other one is told, unless nothing passes.
            await direction.is_open.wait()
            writer.transport.abort()
            return


class Proxies:
    """`with Proxies()`: all ways, on a loop and a thread of their own; usable from any thread."""

    def __init__(self) -> None:
        self._ways: dict[tuple[str, str], Way] = {}
        self._loop = loop_factory()()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Proxies:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self, source: str, target: str, target_port: int) -> int:
        """The port by which `source` reaches `target`, who listens at `target_port`."""
        way = self.change(lambda: Way(source, target, target_port))
        asyncio.run_coroutine_threadsafe(way.open(), self._loop).result()
        self._ways[source, target] = way
        return way.port

    def between(self, one: str, other: str) -> tuple[Way, Way]:
        """The ways from `one` to `other` and from `other` to `one`."""
        return self._ways[one, other], self._ways[other, one]

    def around(self, node: str) -> tuple[Way, ...]:
        """All ways from and to a node."""
        return tuple(way for ends, way in self._ways.items() if node in ends)

    def heal_all(self) -> None:
        """On the proxies' loop."""
        for way in self._ways.values():
            way.heal()

    async def _close_all(self) -> None:
        await asyncio.gather(*(way.close() for way in self._ways.values()))

    def change(self, call: Callable[[], R]) -> R:
        """Do it on the proxies' loop."""

        async def run() -> R:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
