"""Asks the nodes of this user on this machine through their control sockets: blocking, with a bound on every wait."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pystachio.errors import InternalError, InvalidRequest, NodeLost, NotFound, PystachioError
from pystachio.runtime.control_folder import ControlSocket, control_folders, control_sockets, is_alive
from pystachio.runtime.control_protocol import (
    MOST_ANSWER_BYTES,
    MOST_PLAN_ID,
    Answer,
    Done,
    Find,
    Look,
    Matches,
    Refused,
    Request,
    Seen,
    read_answer,
    request_line,
)

ANSWER_SECONDS = 2.0
"""For a whole answer. A node answers within milliseconds, unless the collector or other code holds its interpreter."""

_RECEIVED_BYTES = 1 << 16
_MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Found:
    """A node's answer, or why it gave none. `name` is that of a node of a cluster."""

    node: ControlSocket
    seen: Seen | None
    error: PystachioError | None = None
    name: str = ""


def look(folders: tuple[Path, ...] | None = None, *, seconds: float | None = None) -> list[Found]:
    """Every node's plans. The sockets of processes that have died are removed on the way.

    `seconds` is how long to wait for each, by default `ANSWER_SECONDS`.
    """
    return [_found(node, answer) for node, answer in _ask_all(Look(), folders, seconds)]


def steer(node: ControlSocket, request: Request, *, seconds: float = ANSWER_SECONDS) -> None:
    """Raises what the node refuses with, or NodeLost when it does not answer."""
    match _ask(node, request, seconds):
        case Done():
            return
        case Refused(code=code, message=message, hint=hint):
            raise _refusals().get(code, InvalidRequest)(message, hint=hint)
        case Seen() | Matches() as answer:
            raise _no_sense(node, answer)


def node_of_plan(
    plan_id: str, folders: tuple[Path, ...] | None = None, *, seconds: float | None = None
) -> tuple[ControlSocket, str]:
    """The node that runs the plan, and the plan's whole id: the beginning of an id is enough where only one has it.

    Raises NotFound, InvalidRequest when several plans begin so, and NodeLost when none was found but a node is silent.
    """
    missing = NotFound(f"no running plan has this id: {plan_id}", hint="pystachio-node ps lists them")
    if not 0 < len(plan_id) <= MOST_PLAN_ID:
        raise missing
    running: list[tuple[ControlSocket, str]] = []
    silent: list[PystachioError] = []
    for node, answer in _ask_all(Find(plan_id), folders, seconds):
        match answer:
            case Matches(plan_ids=plan_ids):
                running += [(node, each) for each in plan_ids]
            case PystachioError():
                silent.append(answer)
            case _:
                silent.append(_no_sense(node, answer))
    matches = [each for each in running if each[1] == plan_id] or running
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InvalidRequest(
            f"several plans begin with {plan_id!r}", hint=f"one of {', '.join(sorted(each[1] for each in matches))}"
        )
    raise silent[0] if silent else missing


def _ask_all(
    request: Request, folders: tuple[Path, ...] | None, seconds: float | None
) -> list[tuple[ControlSocket, Answer | PystachioError]]:
    """What each node answers, or why it does not; without those of dead processes, whose sockets are removed."""
    patience = ANSWER_SECONDS if seconds is None else seconds
    nodes = control_sockets(folders if folders is not None else control_folders())
    if not nodes:
        return []
    with ThreadPoolExecutor(min(len(nodes), _MOST_AT_ONCE)) as threads:
        answers = threads.map(lambda node: _ask_if_alive(node, request, patience), nodes)
        return [(node, answer) for node, answer in zip(nodes, answers, strict=True) if answer is not None]


def _ask_if_alive(node: ControlSocket, request: Request, seconds: float) -> Answer | PystachioError | None:
    """None for the socket of a dead process."""
    try:
        return _ask(node, request, seconds)
    except PystachioError as error:
        if isinstance(error, NotFound) or not is_alive(node.pid):
            # Nobody listens, or a child that was forked off holds what its parent has left behind.
            with suppress(OSError):
                node.path.unlink()
            return None
        return error


def _found(node: ControlSocket, answer: Answer | PystachioError) -> Found:
    match answer:
        case Seen():
            return Found(node, answer)
        case PystachioError():
            return Found(node, None, answer)
    return Found(node, None, _no_sense(node, answer))


def _no_sense(node: ControlSocket, answer: Answer) -> NodeLost:
    """For a node that answers, but not what it was asked."""
    if isinstance(answer, Refused):
        return NodeLost(f"the node of process {node.pid} refuses to answer: {answer.message}", hint=answer.hint)
    return NodeLost(f"the node of process {node.pid} answered another question")


def _ask(node: ControlSocket, request: Request, seconds: float) -> Answer:
    """Raises NotFound when nobody listens, NodeLost when nobody answers, DataError for an answer without sense."""
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(str(node.path))
            with suppress(BrokenPipeError):  # closed by the node, which may have said why
                connection.sendall(request_line(request))
            return read_answer(_line(connection, deadline))
        except (ConnectionRefusedError, FileNotFoundError):
            raise NotFound(f"no node listens at {node.path}") from None
        except OSError as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise NodeLost(
                f"the node of process {node.pid} does not answer: {reason}", hint="it may be stopped or very busy"
            ) from None


def _line(connection: socket.socket, deadline: float) -> bytes:
    """Raises TimeoutError unless the whole line is here in time: some dribble."""
    received = bytearray()
    while not received.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
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
