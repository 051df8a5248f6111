"""Answers who keeps a node running, over HTTP: whether it lives, and whether it takes plans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from pystachio.endpoint import Endpoint
from pystachio.server.listening import cannot_listen

MOST_CONNECTIONS = 32
REQUEST_SECONDS = 5.0
_REQUEST_BYTES = 8192


class HealthServer:
    """Use it as `async with` on the node's loop: that `/live` is answered at all says that the loop turns.

    `/ready` is answered with 200 while `is_ready` says so and with 503 otherwise; every other path with 404.
    """

    def __init__(self, endpoint: Endpoint, is_ready: Callable[[], bool]) -> None:
        self._endpoint = endpoint
        self._is_ready = is_ready
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> Endpoint:
        """Where it listens."""
        assert self._server is not None, "it was opened"
        host, port = self._server.sockets[0].getsockname()[:2]
        return Endpoint(host, port)

    async def __aenter__(self) -> HealthServer:
        """Raises ResourceExhausted for an address that cannot be had, InvalidRequest for one that never can."""
        try:
            self._server = await asyncio.start_server(
                self._accept, self._endpoint.host, self._endpoint.port, limit=_REQUEST_BYTES
            )
        except OSError as error:
            what = f"health cannot be asked for at {self._endpoint}"
            raise cannot_listen(what, "cluster_health", error) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        connections = tuple(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= MOST_CONNECTIONS:
                async with asyncio.timeout(REQUEST_SECONDS):
                    writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the other side left, is silent, or says too much
        finally:
            self._connections.discard(task)
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, path, *_ = (*request.split(b"\r\n", 1)[0].split(b" "), b"", b"")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "only GET\n", method)
        match path.split(b"?", 1)[0]:
            case b"/live":
                return _response("200 OK", "alive\n", method)
            case b"/ready" if self._is_ready():
                return _response("200 OK", "ready\n", method)
            case b"/ready":
                return _response("503 Service Unavailable", "not ready\n", method)
        return _response("404 Not Found", "there are /ready and /live\n", method)


def _response(status: str, text: str, method: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return (head if method == b"HEAD" else head + text).encode()
