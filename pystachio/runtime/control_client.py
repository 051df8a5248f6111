"""Asks the nodes of this user on this machine through their control sockets: blocking, with a bound on every wait."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pystachio.errors import InternalError, InvalidRequest, NodeLost, NotFound, PystachioError
from pystachio.runtime.control_folder import ControlSocket, control_folders, control_sockets, is_alive
from pystachio.runtime.control_protocol import (
    MOST_ANSWER_BYTES,
    Answer,
    Done,
    Look,
    Refused,
    Request,
    Seen,
    read_answer,
    request_line,
)

ANSWER_SECONDS = 2.0
"""A node answers within milliseconds, unless the collector or other code of its process holds the interpreter."""

_RECEIVED_BYTES = 1 << 16
_MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Found:
    """A node's answer, or why it gave none."""

    node: ControlSocket
    seen: Seen | None
    error: PystachioError | None = None


def look(folders: tuple[Path, ...] | None = None, *, seconds: float | None = None) -> list[Found]:
    """Every node's plans. The sockets of processes that have died are removed on the way.

    `seconds` is how long to wait for each, by default `ANSWER_SECONDS`.
    """
    patience = ANSWER_SECONDS if seconds is None else seconds
    nodes = control_sockets(folders if folders is not None else control_folders())
    if not nodes:
        return []
    with ThreadPoolExecutor(min(len(nodes), _MOST_AT_ONCE)) as threads:
        return [found for found in threads.map(lambda node: _look_at(node, patience), nodes) if found is not None]


def steer(node: ControlSocket, request: Request, *, seconds: float = ANSWER_SECONDS) -> None:
    """Raises what the node refuses with, or NodeLost when it does not answer."""
    match _ask(node, request, seconds):
        case Done():
            return
        case Refused(code=code, message=message, hint=hint):
            raise _refusals().get(code, InvalidRequest)(message, hint=hint)
        case Seen():
            raise NodeLost(f"the node of process {node.pid} answered another question")


def node_of_plan(found: Sequence[Found], plan_id: str) -> tuple[ControlSocket, str]:
    """The node that runs the plan, and the plan's whole id: the beginning of an id is enough where only one has it.

    Raises NotFound, InvalidRequest when several plans begin so, and NodeLost when none was found but a node is silent.
    """
    running = [(each.node, plan.plan_id) for each in found if each.seen for plan in each.seen.activity.plans]
    matches = [each for each in running if each[1] == plan_id] or [
        each for each in running if plan_id and each[1].startswith(plan_id)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InvalidRequest(
            f"several plans begin with {plan_id!r}", hint=f"one of {', '.join(sorted(each[1] for each in matches))}"
        )
    for each in found:
        if each.error is not None:
            raise each.error
    raise NotFound(f"no running plan has this id: {plan_id}", hint="pystachio-node ps lists them")


def _look_at(node: ControlSocket, seconds: float) -> Found | None:
    """None for the socket of a dead process."""
    try:
        answer = _ask(node, Look(), seconds)
    except PystachioError as error:
        if isinstance(error, NotFound) or not is_alive(node.pid):
            # Nobody listens, or a child that was forked off holds what its parent has left behind.
            with suppress(OSError):
                node.path.unlink()
            return None
        return Found(node, None, error)
    if isinstance(answer, Seen):
        return Found(node, answer)
    return Found(node, None, NodeLost(f"the node of process {node.pid} did not say what it does"))


def _ask(node: ControlSocket, request: Request, seconds: float) -> Answer:
    """Raises NotFound when nobody listens, NodeLost when nobody answers, DataError for an answer without sense."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(str(node.path))
            connection.sendall(request_line(request))
            return read_answer(_line(connection))
        except (ConnectionRefusedError, FileNotFoundError):
            raise NotFound(f"no node listens at {node.path}") from None
        except OSError as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise NodeLost(
                f"the node of process {node.pid} does not answer: {reason}", hint="it may be stopped or very busy"
            ) from None


def _line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        piece = connection.recv(_RECEIVED_BYTES)
        if not piece:
            raise ConnectionError("it closed the connection")
        received += piece
        if len(received) > MOST_ANSWER_BYTES:
            raise ConnectionError("its answer does not end")
    return bytes(received)


def _refusals() -> dict[str, type[PystachioError]]:
    """The classes of errors by code that are made of a message and a hint."""
    return {kind.code: kind for kind in (InternalError, InvalidRequest, NotFound, NodeLost)}
