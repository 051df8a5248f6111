"""Small actors: a coroutine that owns state, takes typed messages from its mailbox one by one, and has a supervisor.

Messages are frozen dataclasses; orders in the imperative, facts in the past tense. An order that wants an answer
carries a `Reply`. A child whose `receive` raises has crashed: its supervisor decides what happens to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, assert_never

from pystachio.errors import InternalError

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")


class Directive(StrEnum):
    """What a supervisor decides about a child that crashed."""

    RESTART = "restart"
    """A fresh actor goes on with the next message."""
    STOP = "stop"
    """The child ends; its siblings are untouched."""
    ESCALATE = "escalate"
    """The supervisor cannot go on without it: the error is raised in its own task."""


Decide = Callable[[str, BaseException], Directive]
"""Supervision: from a child's name and its error to what happens to it."""


class Actor(Protocol[M_contra]):
    async def receive(self, message: M_contra) -> None: ...


class Reply(Generic[R]):
    """Where one message's answer goes. The first answer counts; nobody may be waiting any more."""

    def __init__(self, future: asyncio.Future[R]) -> None:
        self._future = future

    def answer(self, value: R) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Letter(Generic[M]):
    message: M
    asked: asyncio.Future[Any] | None


class ActorRef(Generic[M]):
    """What others hold of an actor. On the actor's loop only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._mailbox: asyncio.Queue[_Letter[M]] = asyncio.Queue()
        self._asked: set[asyncio.Future[Any]] = set()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """No message will be read any more."""
        return self._ended

    def tell(self, message: M) -> None:
        """Leave a message; raises InternalError when the actor has ended."""
        self._post(_Letter(message, None))

    async def ask(self, message: Callable[[Reply[R]], M]) -> R:
        """Leave the message made with a reply, and await the answer.

        Raises what the actor answers with, or InternalError when it crashes over the message or ends first.
        """
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._post(_Letter(message(Reply(future)), future))
        self._asked.add(future)
        try:
            return await future
        finally:
            self._asked.discard(future)

    def _post(self, letter: _Letter[M]) -> None:
        if self._ended:
            raise InternalError(f"a message was sent to an actor that has ended: {self.name}")
        self._mailbox.put_nowait(letter)

    def _fail(self, futures: Iterable[asyncio.Future[Any]], cause: BaseException | None) -> None:
        for future in tuple(futures):
            if not future.done():
                error = InternalError(f"an actor ended or crashed before it answered: {self.name}")
                error.__cause__ = cause
                future.set_exception(error)


class Children:
    """The actors and tasks that one supervisor owns: `async with Children(decide) as children`.

    Leaving the block cancels those that still run and waits for them.
    """

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Children:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if isinstance(error, asyncio.CancelledError):
            # Perhaps the group's own way to stop the supervisor after an escalation; the group knows.
            await self._group.__aexit__(kind, error, traceback)
        else:
            # An error of the block is not the group's to wrap.
            await self._group.__aexit__(None, None, None)

    def spawn(self, name: str, create: Callable[[ActorRef[M]], Actor[M]]) -> ActorRef[M]:
        """Start an actor; `create` makes it, and makes it anew for a restart."""
        ref: ActorRef[M] = ActorRef(name)
        ref._task = self._own(self._run_actor(ref, create), name)
        return ref

    def stop(self, ref: ActorRef[M]) -> None:
        """End an actor whose work is done; messages that still wait are dropped."""
        if ref._task is not None:
            ref._task.cancel()

    def start(self, name: str, body: Callable[[], Coroutine[object, object, None]]) -> asyncio.Task[None]:
        """Start a task under the same supervision; RESTART is not possible and counts as STOP."""
        return self._own(self._run_task(name, body), name)

    def _own(self, body: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = self._group.create_task(body, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_actor(self, ref: ActorRef[M], create: Callable[[ActorRef[M]], Actor[M]]) -> None:
        actor = create(ref)
        try:
            while True:
                letter = await ref._mailbox.get()
                try:
                    await actor.receive(letter.message)
                except Exception as error:
                    if letter.asked is not None:
                        ref._fail((letter.asked,), error)
                    match self._decide(ref.name, error):
                        case Directive.RESTART:
                            actor = create(ref)
                        case Directive.STOP:
                            return
                        case Directive.ESCALATE:
                            raise
                        case unreachable:
                            assert_never(unreachable)
                del letter  # while waiting for the next one
        finally:
            ref._ended = True
            ref._fail(ref._asked, None)
            ref._task = None  # which keeps its error, whose frames keep the actor: nothing is left to the collector

    async def _run_task(self, name: str, body: Callable[[], Coroutine[object, object, None]]) -> None:
        try:
            await body()
        except Exception as error:
            if self._decide(name, error) is Directive.ESCALATE:
                raise
