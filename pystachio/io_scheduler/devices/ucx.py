"""Tagged messages over UCX: ucxx's core API under our own event-loop driver.

ucxx's own asyncio layer spins a core while a receive waits, and cancelling a large receive in mid-transfer deadlocks or
crashes the process. Here nothing ever cancels a request: UCX finishes with a buffer, or the connection is closed,
before the buffer is let go.

Two workers are connected by exchanging their addresses over a channel that knows who is who. UCX's own listener, which
authenticates nobody and listens on every interface, is not used.
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
Ended = Callable[[PystachioError | None], None]

OPTIONS = {"TCP_TX_SEG_SIZE": "512k", "TCP_RX_SEG_SIZE": "512k"}
PROGRESS_STEPS = 64
"""Steps of UCX between two turns of the loop: it must not starve while a large message passes."""
_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class _Request:
    """A message inside UCX, which keeps the buffer alive until UCX has done with it.

    `ended` is None once whoever waits has been told. `tag` is that of a receive, else None.
    """

    handle: Any
    buffer: Buffer
    connection: UcxConnection | None
    tag: int | None
    ended: Ended | None


class UcxWorker:
    """UCX's state of one process, progressed by the running loop whenever its descriptor is readable.

    `options` are UCX's variables without their prefix, e.g. `{"TLS": "tcp"}`. Over TCP, UCX listens on every interface
    that it uses: `{"NET_DEVICES": "eth0"}` names them. Raises Unsupported without ucxx.
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
        self._itself: Any = None
        self._progress_is_due = False
        self._loop.add_reader(self._descriptor, self._progress)
        self._progress_soon()

    @property
    def address(self) -> bytes:
        """What a peer connects to."""
        return bytes(self._worker.address)

    @property
    def requests(self) -> int:
        """Messages inside UCX."""
        return len(self._requests)

    def connect(self, address: bytes, lost: Callable[[], None] | None = None) -> UcxConnection:
        """A connection to the worker with this address; whether it is there shows at the first message.

        `lost` is called when UCX notices that the peer is gone. Raises NodeLost for an address that UCX cannot reach.
        """
        connection = UcxConnection(self, self._endpoint(address, error_handling=True), lost)
        self._connections.append(connection)
        self._progress_soon()
        return connection

    def close(self) -> None:
        """Close every connection; messages that are still under way end with NodeLost."""
        for connection in tuple(self._connections):
            connection.close()
        self._loop.remove_reader(self._descriptor)
        self._worker.cancel_inflight_requests()
        self._requests.clear()
        self._worker = self._context = self._itself = None

    def submit(
        self, connection: UcxConnection, start: Callable[[Any], Any], buffer: Buffer, tag: int | None, ended: Ended
    ) -> None:
        """Hand a message to UCX; `ended` is called on the loop when UCX no longer uses `buffer`."""
        try:
            handle = start(self._as_array(buffer))
        except self._core.UCXError as error:
            ended(_typed(error))
            return
        self._requests.append(_Request(handle, buffer, connection, tag, ended))
        self._progress_soon()

    def tag(self, number: int) -> Any:
        return self._core.UCXXTag(number)

    def forget(self, connection: UcxConnection) -> None:
        """The connection is closed: what UCX has not ended with it is told, and ended, by us."""
        if connection in self._connections:
            self._connections.remove(connection)
        left = [request for request in self._requests if request.connection is connection]
        for request in left:
            if request.tag is not None:
                self._end_posted_receive(request.tag)
        for request in left:
            _tell(request, NodeLost("the peer's UCX connection is closed"))
            request.connection = None

    def _endpoint(self, address: bytes, *, error_handling: bool) -> Any:
        try:
            target = self._core.UCXAddress.create_from_buffer(address)
            return self._core.UCXEndpoint.create_from_worker_address(
                self._worker, target, endpoint_error_handling=error_handling
            )
        except (self._core.UCXError, ValueError) as error:
            raise NodeLost(f"UCX does not reach the node ({error})") from error

    def _end_posted_receive(self, tag: int) -> None:
        # A receive stays posted when its connection closes, and would hold its buffer for ever: an empty message from
        # ourselves ends it.
        if self._itself is None:
            self._itself = self._endpoint(self.address, error_handling=False)
        handle = self._itself.tag_send(self._as_array(_NOTHING), self.tag(tag))
        self._requests.append(_Request(handle, _NOTHING, None, None, None))
        self._progress_soon()

    def _progress_soon(self) -> None:
        if not self._progress_is_due:
            self._progress_is_due = True
            self._loop.call_soon(self._progress)

    def _progress(self) -> None:
        self._progress_is_due = False
        for _ in range(PROGRESS_STEPS):
            if self._worker is None:
                return
            while self._worker.progress_once():
                pass
            self._end_completed()
            # Armed, the descriptor becomes readable at the next event; an event since the last step prevents it.
            if self._worker is None or self._worker.arm():
                return
        self._progress_soon()

    def _end_completed(self) -> None:
        completed = [request for request in self._requests if request.handle.completed]
        if not completed:
            return
        self._requests = [request for request in self._requests if not request.handle.completed]
        for request in completed:
            try:
                request.handle.check_error()
            except self._core.UCXError as error:
                _tell(request, _typed(error))
            else:
                _tell(request, None)


class UcxConnection:
    """A peer. Tags match a receive with a send of the same worker, so those of two peers must differ."""

    def __init__(self, worker: UcxWorker, endpoint: Any, lost: Callable[[], None] | None) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._lost = lost
        # A receive whose peer dies waits for ever in UCX: closing our side cancels it. Not inside UCX's progress.
        endpoint.set_close_callback(asyncio.get_running_loop().call_soon, cb_args=(self._close_lost,))

    @property
    def is_alive(self) -> bool:
        return self._endpoint is not None and bool(self._endpoint.alive)

    def send(self, buffer: Buffer, tag: int, ended: Ended) -> None:
        """`ended` is called when `buffer` may be reused; with NodeLost when the peer is gone."""
        self._submit("tag_send", buffer, tag, None, ended)

    def receive(self, buffer: Buffer, tag: int, ended: Ended) -> None:
        """Fill `buffer` from the send with the same tag, which must not be longer; a shorter one is no error."""
        self._submit("tag_recv", buffer, tag, tag, ended)

    def close(self) -> None:
        """Idempotent; messages under way end with NodeLost, and their buffers are touched no more."""
        if self._endpoint is not None:
            endpoint, self._endpoint = self._endpoint, None
            endpoint.remove_close_callback()
            endpoint.close_blocking()
            self._worker.forget(self)

    def _close_lost(self) -> None:
        if self._endpoint is not None:
            self.close()
            if self._lost is not None:
                self._lost()

    def _submit(self, operation: str, buffer: Buffer, tag: int, posted: int | None, ended: Ended) -> None:
        if self._endpoint is None:
            ended(NodeLost("the peer's UCX connection is closed"))
            return
        start, mark = getattr(self._endpoint, operation), self._worker.tag(tag)
        self._worker.submit(self, lambda array: start(array, mark), buffer, posted, ended)


def _tell(request: _Request, error: PystachioError | None) -> None:
    ended, request.ended = request.ended, None
    if ended is not None:
        ended(error)


def _typed(error: Exception) -> PystachioError:
    name = type(error).__name__
    if "NoMemory" in name or "NoResource" in name:
        return ResourceExhausted(f"UCX has no memory for a message ({error})", setting="memory")
    if "Truncated" in name or "InvalidParam" in name:
        return InternalError(f"a UCX message and its buffer differ ({error})")
    return NodeLost(f"the peer's UCX connection is gone ({error})")
