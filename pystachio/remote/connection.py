"""A client's connection to a node, on a thread of its own: requests from any thread, each with one answer."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count
from typing import TypeVar

from pystachio.endpoint import Endpoint
from pystachio.errors import InternalError, InvalidRequest, NodeLost, PystachioError, Unauthorized
from pystachio.io_scheduler.network.tls import TlsFiles
from pystachio.io_scheduler.network.tokens import Token
from pystachio.io_scheduler.network.visits import Visitor, visit
from pystachio.remote.messages import Answer, Failed, Hello, Request, Welcome, decode_answer, encode_request
from pystachio.runtime.event_loop import loop_factory

HELLO_SECONDS = 5.0
_CLOSE_SECONDS = 1.0

Kind = TypeVar("Kind", bound=Answer)


class Connection:
    """To be closed. A node that is silent for some seconds is lost: whoever awaits an answer gets NodeLost."""

    def __init__(self, endpoint: Endpoint, token: Token, *, tls: TlsFiles | None = None) -> None:
        """Raises NodeLost (nobody answers), Unauthorized (the token), InvalidRequest, ResourceExhausted."""
        self.endpoint = endpoint
        self._token = token
        self._tls = tls
        self._pid = os.getpid()
        self._numbers = count(1)
        self._lock = threading.RLock()  # a collection inside a locked part may cancel a plan
        self._pending: dict[int, Future[Answer]] = {}
        self._error: PystachioError | None = None
        self._visitor: Visitor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="pystachio-remote", daemon=True)
        self._thread.start()
        opened.result()
        try:
            self.welcome = self.ask(Welcome, Hello, seconds=HELLO_SECONDS)
        except BaseException:
            self.close()
            raise

    def post(self, make: Callable[[int], Request]) -> Future[Answer]:
        """Ask, and do not wait; `make` is given the request's number. A refusal is an answer too: `Failed`.

        Raises NodeLost when the node is gone, InvalidRequest when the connection is closed, in a forked child, and for
        a request that is longer than a node takes.
        """
        if os.getpid() != self._pid:
            raise InvalidRequest(
                "a session cannot be used after a fork: its thread lives in the parent process",
                hint="connect in the child process, or start it with the 'spawn' method",
            )
        number = next(self._numbers)
        body = encode_request(make(number))
        answer: Future[Answer] = Future()
        with self._lock:
            if self._error is not None:
                raise _copied(self._error)
            loop = self._loop
            assert loop is not None, "it was opened"
            self._pending[number] = answer
            loop.call_soon_threadsafe(self._tell, number, body)
        return answer

    def ask(self, kind: type[Kind], make: Callable[[int], Request], *, seconds: float | None = None) -> Kind:
        """Wait for the answer. Raises what the node refuses with, and as `post`; NodeLost after `seconds`."""
        answer = self.post(make)
        try:
            return expected(kind, answer.result(seconds))
        except TimeoutError:
            raise NodeLost(
                f"the node does not answer: {self.endpoint}", hint="it may be stopped or very busy"
            ) from None

    def to(self, endpoint: Endpoint) -> Connection:
        """One more, to another node of the same cluster. Raises as the first."""
        return Connection(endpoint, self._token, tls=self._tls)

    def close(self) -> None:
        """Idempotent; what is awaited ends with InvalidRequest. The node cancels the plans of this connection."""
        self._fail(InvalidRequest("the session is closed"))
        with self._lock:
            loop, task = self._loop, self._task
        if os.getpid() != self._pid or loop is None or task is None:
            return
        with suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self, opened: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._converse(opened))
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._fail(_typed(error))
            if not opened.done():
                opened.set_exception(_typed(error))

    async def _converse(self, opened: Future[None]) -> None:
        """Until the node or this end closes the connection."""
        async with await visit(self.endpoint.host, self.endpoint.port, self._token, tls=self._tls) as visitor:
            self._visitor = visitor
            with self._lock:
                self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            opened.set_result(None)
            try:
                while True:
                    self._take(decode_answer(await visitor.receive()))
            except NodeLost as error:
                self._fail(self._lost(error))
            except PystachioError as error:
                self._fail(error)
            except asyncio.CancelledError:
                with suppress(PystachioError, TimeoutError):
                    async with asyncio.timeout(_CLOSE_SECONDS / 2):
                        await visitor.drained()  # the last words: plans that were cancelled

    def _lost(self, error: NodeLost) -> PystachioError:
        """Whoever's token has expired is sent away, which is not the node's end."""
        try:
            self._token.credential.check(time.time())
        except Unauthorized as expired:
            return expired
        welcome = getattr(self, "welcome", None)
        name = "the node" if welcome is None else f"the node {welcome.node}"
        return NodeLost(
            f"{name} at {self.endpoint} is lost to this client: {error.message}",
            hint="connect again, or to another node of the cluster; what ran for this client is cancelled",
            node=error.node if welcome is None else welcome.node,
        )

    def _take(self, answer: Answer) -> None:
        with self._lock:
            awaited = self._pending.pop(answer.number, None)
        if awaited is not None:
            with suppress(InvalidStateError):
                awaited.set_result(answer)

    def _tell(self, number: int, body: bytes) -> None:
        """On the loop."""
        assert self._visitor is not None, "it was opened"
        try:
            self._visitor.tell(body)
        except PystachioError as error:
            with self._lock:
                awaited = self._pending.pop(number, None)
            if awaited is not None:
                with suppress(InvalidStateError):
                    awaited.set_exception(error)

    def _fail(self, error: PystachioError) -> None:
        """Nobody answers any more."""
        with self._lock:
            if self._error is None:
                self._error = error
            awaited = tuple(self._pending.values())
            self._pending.clear()
        for each in awaited:
            with suppress(InvalidStateError):
                each.set_exception(_copied(self._error))


def expected(kind: type[Kind], answer: Answer) -> Kind:
    """Raises what the node refuses with, InternalError for the answer to another question."""
    if isinstance(answer, Failed):
        raise answer.failure.error()
    if not isinstance(answer, kind):
        raise InternalError(f"a node answered another question: {type(answer).__name__}")
    return answer


def _typed(error: BaseException) -> PystachioError:
    if isinstance(error, PystachioError):
        return error
    return InternalError(f"the connection to a node failed: {type(error).__name__}: {error}")


def _copied(error: PystachioError) -> PystachioError:
    """One for each who waits: they add tracebacks to it."""
    if isinstance(error, NodeLost):
        return NodeLost(error.message, hint=error.hint, node=error.node)
    if type(error) is InvalidRequest:
        return InvalidRequest(error.message, hint=error.hint)
    return error
