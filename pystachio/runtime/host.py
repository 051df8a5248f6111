"""A node on a thread of its own, for a synchronous program."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import torch

from pystachio.errors import InternalError, InvalidRequest
from pystachio.runtime.event_loop import loop_factory
from pystachio.runtime.node import Node
from pystachio.runtime.worker_pool import WorkerThread

R = TypeVar("R")


class NodeStopped(InvalidRequest):
    """The node has ended, or is about to: it is asked for nothing any more."""

    def __init__(self) -> None:
        super().__init__("the node is not running")


_FILE_DESCRIPTORS = 16
"""More than a loop, its wake-up and its signals take."""


class NodeHost:
    """Runs a node in a daemon thread with its own event loop: uvloop's where it is installed.

    Methods may be called from any thread of the process that called `start`, and from no other: a forked child has
    none of the threads.
    """

    def __init__(self, create_node: Callable[[], AbstractAsyncContextManager[Node]]) -> None:
        """`create_node` is called on the host's loop."""
        self._create_node = create_node
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._node: Node | None = None
        self._lock = threading.RLock()  # a collection inside a locked part may call `stop`
        self._pid = os.getpid()

    @property
    def node(self) -> Node:
        """For coroutines run by `call` only, but for `tracing`: its methods belong to the host's loop."""
        if self._node is None:
            raise NodeStopped
        return self._node

    def start(self) -> None:
        """Returns when the node accepts plans; raises what stopped it from starting."""
        if self._thread is not None:
            raise InternalError("a host starts once")
        _require_file_descriptors()
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="pystachio-node", daemon=True)
        self._thread.start()
        started.result()
        # A daemon thread in the middle of torch code when the interpreter goes away crashes the process.
        atexit.register(self.stop)

    def call(self, coroutine: Coroutine[object, object, R]) -> concurrent.futures.Future[R]:
        """Run a coroutine on the node's loop. Cancelling the future cancels the coroutine.

        Raises NodeStopped, and InvalidRequest in a forked child.
        """
        try:
            self._check_process()
            with self._lock:
                if self._loop is None or self._node is None:
                    raise NodeStopped
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise

    def call_soon(self, callback: Callable[[], None]) -> asyncio.AbstractEventLoop:
        """Have the node's loop, which is returned, call `callback` before whatever it is asked for later.

        Raises as `call`.
        """
        self._check_process()
        with self._lock:
            if self._loop is None or self._node is None:
                raise NodeStopped
            self._loop.call_soon_threadsafe(callback, context=contextvars.Context())
            return self._loop

    def require_running(self) -> None:
        """Raises as `call`."""
        self._check_process()
        if self._node is None:
            raise NodeStopped

    def expect_urgent(self) -> None:
        """`Node.expect_urgent`; nothing when the node does not run."""
        node = self._node
        if node is not None and os.getpid() == self._pid:
            node.expect_urgent()

    def stop(self) -> None:
        """Cancel every plan, wait for their ends, and end the thread. May be called twice, and in a forked child.

        On a thread of the node itself (where a garbage collection may drop the last session) it does not wait.
        """
        if os.getpid() != self._pid or self._thread is None:
            return
        atexit.unregister(self.stop)
        with self._lock:
            if self._loop is not None and self._stop is not None and self._node is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
        current = threading.current_thread()
        if current is not self._thread and not isinstance(current, WorkerThread):
            self._thread.join()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidRequest(
                "a session cannot be used after a fork: its threads live in the parent process",
                hint="connect in the child process, or start it with the 'spawn' method",
            )

    def _run(self, started: concurrent.futures.Future[None]) -> None:
        torch.set_num_threads(1)
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: concurrent.futures.Future[None]) -> None:
        stop = asyncio.Event()
        async with self._create_node() as node:
            with self._lock:
                self._loop, self._stop, self._node = asyncio.get_running_loop(), stop, node
            started.set_result(None)
            try:
                await stop.wait()
            finally:
                # Under the lock: whatever `call` has scheduled by now still runs on the loop, and nothing comes later.
                with self._lock:
                    self._node = None


def _require_file_descriptors() -> None:
    """OSError when the process may not open enough files: libuv would abort it in the middle of making a loop."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_FILE_DESCRIPTORS))
    finally:
        for descriptor in opened:
            os.close(descriptor)
