"""A node's control socket: lets other processes of the same user list and steer its plans.

Its failure to open never fails the node. In a forked child it does not live: its loop is the parent's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pystachio.errors import InternalError, PystachioError, ResourceExhausted, Unauthorized
from pystachio.runtime.control_folder import control_folders, new_socket_path, prepare
from pystachio.runtime.control_protocol import (
    MOST_ANSWER_BYTES,
    MOST_MATCHES,
    MOST_REQUEST_BYTES,
    Answer,
    Cancel,
    Done,
    Find,
    Look,
    Matches,
    Prioritize,
    Refused,
    Request,
    Seen,
    answer_line,
    read_request,
    refusal,
)
from pystachio.runtime.logging import get_logger
from pystachio.runtime.node import Node
from pystachio.runtime.observation import short_label
from pystachio.runtime.urgency import Urgency, priority_class, urgency

MOST_CONNECTIONS = 16
IDLE_SECONDS = 60.0
"""After this time without a request a connection is closed."""

_CREDENTIALS = struct.Struct("3i")


class ControlServer:
    """`async with` on the node's loop. `problem` says why nobody can connect, None while all is well."""

    def __init__(self, node: Node, *, folder: Path | None = None) -> None:
        """The socket lies in `folder`, by default the user's."""
        self._node = node
        self._folder = folder if folder is not None else control_folders()[0]
        self._pid = os.getpid()
        self._path: Path | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.problem: str | None = None

    async def __aenter__(self) -> ControlServer:
        try:
            prepare(self._folder)
            path = new_socket_path(self._folder)
            self._server = await asyncio.start_unix_server(
                self._accept, sock=_listening_socket(path), limit=MOST_REQUEST_BYTES
            )
            self._path = path
        except (OSError, Unauthorized) as error:
            self.problem = str(error)
            get_logger().warning(
                f"pystachio-node ps cannot see this process: no control socket in {self._folder}: {self.problem}; "
                "set XDG_RUNTIME_DIR to a folder of this user, or control_socket = false"
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is None or self._path is None:
            return
        self._server.close()
        if os.getpid() == self._pid:
            with suppress(OSError):  # somebody tidied up
                self._path.unlink()
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > MOST_CONNECTIONS:
                too_many = ResourceExhausted("too many connections to the node", setting="connections")
                writer.write(answer_line(refusal(too_many)))
            elif _is_same_user(writer):
                await self._converse(reader, writer)
        except (OSError, asyncio.CancelledError, TimeoutError):
            pass  # the other side left or is silent, or the node ends
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                try:
                    line = await reader.readuntil(b"\n")
                except asyncio.IncompleteReadError:
                    return
                except asyncio.LimitOverrunError:
                    too_long = Refused("invalid_request", f"a request is longer than {MOST_REQUEST_BYTES} bytes")
                    writer.write(answer_line(too_long))
                    return
                writer.write(await self._answer(line))
                await writer.drain()

    async def _answer(self, line: bytes) -> bytes:
        try:
            answer = answer_line(await self._act(read_request(line)))
        except PystachioError as error:
            return answer_line(refusal(error))
        except Exception as error:
            get_logger().error("a control request failed", exc_info=error)
            return answer_line(refusal(InternalError(f"a control request failed: {type(error).__name__}")))
        if len(answer) > MOST_ANSWER_BYTES:
            return answer_line(Refused("resource_exhausted", "too many plans to list"))
        return answer

    async def _act(self, request: Request) -> Answer:
        match request:
            case Look():
                return Seen(os.getpid(), _program(), self._node.activity())
            case Find(beginning=beginning):
                return Matches(_matching([plan.plan_id for plan in self._node.activity().plans], beginning))
            case Cancel(plan_id=plan_id):
                await self._node.cancel(plan_id)
            case Prioritize(plan_id=plan_id, priority=name, deadline=deadline):
                priority = priority_class(name)
                wanted = urgency(priority, deadline, Urgency(priority))
                await self._node.set_priority(plan_id, wanted.priority, wanted.deadline)
        return Done()


def _listening_socket(path: Path) -> socket.socket:
    """Appears under its name when it listens: a socket that refuses connections is one of a dead process."""
    unfinished = path.with_suffix(".new")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(unfinished))
        unfinished.chmod(0o600)
        listener.listen(MOST_CONNECTIONS)
        unfinished.rename(path)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        with suppress(OSError):
            unfinished.unlink()
        raise
    return listener


def _is_same_user(writer: asyncio.StreamWriter) -> bool:
    """The folder keeps others out; so does this where the system tells who connects."""
    connection = writer.get_extra_info("socket")
    if connection is None or not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return user in (os.geteuid(), 0)


def _matching(plan_ids: Sequence[str], beginning: str) -> tuple[str, ...]:
    if beginning in plan_ids:
        return (beginning,)
    return tuple([plan_id for plan_id in plan_ids if plan_id.startswith(beginning)][:MOST_MATCHES])


def _program() -> str:
    """The beginning of its name is enough."""
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else os.path.basename(sys.executable)
    return short_label(name)
