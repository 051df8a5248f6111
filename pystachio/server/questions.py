"""Questions to other nodes: each has a number, one answer, and so many seconds for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from types import TracebackType
from typing import Any, TypeVar

from pystachio.errors import InternalError, NodeLost, PystachioError
from pystachio.runtime.actors import Children, Directive
from pystachio.runtime.logging import get_logger
from pystachio.server.plane import Plane

Answer = TypeVar("Answer")

TRAVEL_SECONDS = 10.0
"""For an answer's way, beside what finding it takes: it may be long, and wait for its turn. A node that is gone is
noticed sooner."""


_MOST_TIMES = 3
"""A node that is lost and comes back again and again is as good as gone."""


class NotAnswered(NodeLost):
    """The node is there, but has not said anything in time."""


class Questions:
    """On the node's loop. `answers` are the messages that answer them, which have a `number`; nobody else handles
    those."""

    def __init__(self, plane: Plane, *answers: type[Any], asked_for: str) -> None:
        """`asked_for` is what the questions are about, for error messages."""
        self._plane = plane
        self._asked_for = asked_for
        self._numbers = count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        for answer in answers:
            plane.handle(answer, self._take)
        plane.when_node_lost(self._lose)

    async def ask(self, node: str, question: Callable[[int], Any], answer: type[Answer], *, seconds: float) -> Answer:
        """Tell the node the question of the number that it is given; twice must be as well as once. Raises NodeLost
        when the node is gone, and NotAnswered when it is silent for so many seconds after it has the question."""
        for _ in range(_MOST_TIMES):
            if not self._plane.reaches(node):
                break  # nobody would tell that it is lost any more
            try:
                return await self._ask_once(node, question, answer, seconds)
            except NotAnswered:
                raise
            except NodeLost:
                # Two that connect to each other at once, as nodes that have just met do, give one connection up, and
                # what was said on it. If that was all, the node is there by now.
                continue
        raise self._gone(node)

    async def _ask_once(
        self, node: str, question: Callable[[int], Any], answer: type[Answer], seconds: float
    ) -> Answer:
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = (node, future)
        try:
            await self._plane.deliver(node, question(number))
            async with asyncio.timeout(seconds):
                answered = await future
        except TimeoutError:
            raise NotAnswered(f"a node does not say {self._asked_for}", node=node) from None
        finally:
            del self._asked[number]
        if not isinstance(answered, answer):
            raise InternalError("a node answered another question", node=node)
        return answered

    def _lose(self, node: str, error: PystachioError) -> None:
        for asked, future in self._asked.values():
            if asked == node and not future.done():
                future.set_exception(self._gone(node))

    def _gone(self, node: str) -> NodeLost:
        return NodeLost(f"a node is gone that was asked {self._asked_for}", node=node)

    def _take(self, sender: str, answer: Any) -> None:
        asked = self._asked.get(answer.number)
        if asked is not None and asked[0] == sender and not asked[1].done():
            asked[1].set_result(answer)


class Answers:
    """What this node is about to say to others: `async with`; leaving gives up what is not said yet, and nothing more
    is begun."""

    def __init__(self) -> None:
        self._children = Children(_decide)
        self._is_open = False

    async def __aenter__(self) -> Answers:
        await self._children.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        await self._children.__aexit__(kind, error, traceback)

    def begin(
        self, answer: Callable[[], Coroutine[object, object, None]], refuse: Callable[[PystachioError], None]
    ) -> None:
        """`refuse` says what `answer` failed with, whatever that is: who asked must not wait for nothing."""

        async def answered() -> None:
            try:
                await answer()
            except PystachioError as error:
                refuse(error)
            except Exception as unexpected:
                get_logger().error("another node's question failed", exc_info=unexpected)
                refuse(InternalError(f"a node could not answer: {type(unexpected).__name__}: {unexpected}"))

        if self._is_open:
            self._children.start("answers another node", answered)


def _decide(name: str, error: BaseException) -> Directive:
    get_logger().error("another node was not answered", exc_info=error)
    return Directive.STOP


async def together(questions: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """What all of them return, in this order; the first error ends the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(question) for question in questions]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in asked]
