"""Tagged messages over UCX: ucxx's core API under our own event-loop driver.

ucxx's own asyncio layer spins a core while a receive waits, and cancelling a large receive in mid-transfer deadlocks or
crashes the process. Here a task's cancellation never touches a request: UCX finishes with a buffer, or the connection
is closed, before the buffer is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pystachio.errors import InternalError, NodeLost, PystachioError, ResourceExhausted
from pystachio.io_scheduler.devices.ucx_library import load_ucxx

Buffer = Any
"""Anything with the buffer protocol, or `__cuda_array_interface__`."""

OPTIONS = {"TCP_TX_SEG_SIZE": "512k", "TCP_RX_SEG_SIZE": "512k"}
PROGRESS_STEPS = 64
"""Steps of UCX between two turns of the loop: it must not starve while a large message passes."""


@dataclass(slots=True, eq=False)
class _Request:
    """A message inside UCX, which keeps the buffer alive until UCX has done with it."""

    handle: Any
    buffer: Buffer
    connection: UcxConnection
    ended: asyncio.Future[None]


class UcxWorker:
    """UCX's state of one process, progressed by the running loop whenever its descriptor is readable.

    `options` are UCX's variables without their prefix, e.g. `{"TLS": "tcp"}`. Raises Unsupported without ucxx.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._core = load_ucxx()
        self._as_array = import_module("ucxx._lib.arr").Array
        self._loop = asyncio.get_running_loop()
        self._context = self._core.UCXContext({**OPTIONS, **(options or {})})
        self._worker = self._core.UCXWorker(self._context, enable_delayed_submission=False, enable_python_future=False)
        self._worker.init_blocking_progress_mode()
        self._descriptor = self._worker.epoll_file_descriptor
        self._requests: list[_Request] = []
        self._connections: list[UcxConnection] = []
        self._listener: Any = None
        self._progress_is_due = False
        self._loop.add_reader(self._descriptor, self._progress)
        self._progress_soon()

    def listen(self, accept: Callable[[UcxConnection], None]) -> int:
        """Accept connections on a port that the system chooses, which is returned. UCX authenticates nobody."""
        assert self._listener is None, "a worker listens once"
        self._listener = self._core.UCXListener.create(
            self._worker, 0, self._accept, cb_args=(accept,), deliver_endpoint=True
        )
        self._progress_soon()
        return int(self._listener.port)

    def connect(self, host: str, port: int) -> UcxConnection:
        """A connection to a listening worker; whether it is there shows at the first message."""
        try:
            endpoint = self._core.UCXEndpoint.create(self._worker, host, port, endpoint_error_handling=True)
        except self._core.UCXError as error:
            raise NodeLost(f"no UCX connection ({error}): {host}:{port}", node=f"{host}:{port}") from error
        return self._adopt(endpoint)

    def close(self) -> None:
        """Close every connection; messages that are still under way raise NodeLost."""
        for connection in tuple(self._connections):
            connection.close()
        self._loop.remove_reader(self._descriptor)
        self._worker.cancel_inflight_requests()
        self._requests.clear()
        self._worker = self._context = self._listener = None

    def submit(self, connection: UcxConnection, start: Callable[[Any], Any], buffer: Buffer) -> asyncio.Future[None]:
        """Hand a message to UCX; the future is done when UCX no longer uses `buffer`."""
        try:
            handle = start(self._as_array(buffer))
        except self._core.UCXError as error:
            raise _typed(error) from error
        request = _Request(handle, buffer, connection, self._loop.create_future())
        self._requests.append(request)
        self._progress_soon()
        return request.ended

    def tag(self, number: int) -> Any:
        return self._core.UCXXTag(number)

    def forget(self, connection: UcxConnection) -> None:
        """The connection is closed: what UCX has not cancelled with it will not end by itself.

        A receive stays posted in UCX, so it keeps its buffer; but nothing arrives on a closed connection.
        """
        self._connections.remove(connection)
        for request in self._requests:
            if request.connection is connection and not request.ended.done():
                _fail(request.ended, NodeLost("the peer's UCX connection is closed"))

    def _accept(self, endpoint: Any, accept: Callable[[UcxConnection], None]) -> None:
        # Inside UCX's progress, where nothing may be sent yet.
        connection = self._adopt(endpoint)
        self._loop.call_soon(accept, connection)

    def _adopt(self, endpoint: Any) -> UcxConnection:
        connection = UcxConnection(self, endpoint)
        self._connections.append(connection)
        # A receive whose peer dies waits for ever in UCX: closing our side cancels it. Not inside UCX's progress.
        endpoint.set_close_callback(self._loop.call_soon, cb_args=(connection.close,))
        self._progress_soon()
        return connection

    def _progress_soon(self) -> None:
        if not self._progress_is_due:
            self._progress_is_due = True
            self._loop.call_soon(self._progress)

    def _progress(self) -> None:
        self._progress_is_due = False
        if self._worker is None:
            return
        for _ in range(PROGRESS_STEPS):
            while self._worker.progress_once():
                pass
            self._end_completed()
            # Armed, the descriptor becomes readable at the next event; an event since the last step prevents it.
            if self._worker.arm():
                return
        self._progress_soon()

    def _end_completed(self) -> None:
        completed = [request for request in self._requests if request.handle.completed]
        if not completed:
            return
        self._requests = [request for request in self._requests if not request.handle.completed]
        for request in completed:
            self._end(request)

    def _end(self, request: _Request) -> None:
        if request.ended.done():
            return
        try:
            request.handle.check_error()
        except self._core.UCXError as error:
            _fail(request.ended, _typed(error))
        else:
            request.ended.set_result(None)


class UcxConnection:
    """A peer. Tags match a receive with a send of the same worker, so those of two peers must differ."""

    def __init__(self, worker: UcxWorker, endpoint: Any) -> None:
        self._worker = worker
        self._endpoint = endpoint

    @property
    def is_alive(self) -> bool:
        return self._endpoint is not None and bool(self._endpoint.alive)

    async def send(self, buffer: Buffer, tag: int) -> None:
        """Returns when `buffer` may be reused. Raises NodeLost when the peer is gone."""
        await self._exchange(self._open().tag_send, buffer, tag)

    async def receive(self, buffer: Buffer, tag: int) -> None:
        """Fill `buffer` from the send with the same tag. Raises NodeLost when the peer is gone."""
        await self._exchange(self._open().tag_recv, buffer, tag)

    def close(self) -> None:
        """Idempotent; messages under way raise NodeLost."""
        if self._endpoint is not None:
            endpoint, self._endpoint = self._endpoint, None
            endpoint.remove_close_callback()
            endpoint.close_blocking()
            self._worker.forget(self)

    def _open(self) -> Any:
        if self._endpoint is None:
            raise NodeLost("the UCX connection is closed")
        return self._endpoint

    async def _exchange(self, start: Callable[[Any, Any], Any], buffer: Buffer, tag: int) -> None:
        ended = self._worker.submit(self, lambda array: start(array, self._worker.tag(tag)), buffer)
        # A cancelled task leaves; the request and its buffer stay until UCX has done with them.
        await asyncio.wait((ended,))
        ended.result()


def _fail(ended: asyncio.Future[None], error: PystachioError) -> None:
    ended.set_exception(error)
    # Seen, even when the task that waited is gone.
    ended.exception()


def _typed(error: Exception) -> PystachioError:
    name = type(error).__name__
    if "NoMemory" in name or "NoResource" in name:
        return ResourceExhausted(f"UCX has no memory for a message ({error})", setting="memory")
    if "Truncated" in name or "InvalidParam" in name:
        return InternalError(f"a UCX message and its buffer differ ({error})")
    return NodeLost(f"the peer's UCX connection is gone ({error})")
