"""A client's plan at its node: rows in pieces that a message holds, one for each time that the client asks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from pystachio.errors import Cancelled, InternalError, InvalidRequest, PystachioError
from pystachio.remote.messages import Answer, Ended, Failed, Rows
from pystachio.remote.rows import pieces
from pystachio.runtime.failure_message import Failure
from pystachio.runtime.logging import get_logger
from pystachio.server.served_node import ServedPlan

MOST_WAITING = 16
"""Fetches of one plan at once."""


class GuestPlan:
    """On the node's loop. `tell` is called with every answer, and awaited: a client that does not read stops its plan.

    `ask` runs what blocks elsewhere. `ended` is called once, when the plan has none of its rows left here and its
    client was told so, or has cancelled it.
    """

    def __init__(
        self,
        plan: ServedPlan,
        node: str,
        *,
        tell: Callable[[Answer], Awaitable[None]],
        ask: Callable[[Callable[[], int]], Awaitable[int]],
        ended: Callable[[GuestPlan], None],
    ) -> None:
        self.plan = plan
        self._node = node
        self._tell = tell
        self._ask = ask
        self._on_ended = ended
        self._numbers: deque[int] = deque()
        self._asked = asyncio.Event()
        self._is_cancelled = False
        self._is_settled = False
        self.is_delivered = False
        """`deliver` is over: further fetches are answered by `last`."""
        self._pieces: Iterator[bytes] = iter(())
        self._last: Callable[[int], Answer] | None = None
        """The answer to every fetch from the plan's end on."""

    @property
    def has_ended(self) -> bool:
        return self._last is not None

    def fetch(self, number: int) -> None:
        """Raises InvalidRequest when too many wait."""
        if len(self._numbers) >= MOST_WAITING:
            raise InvalidRequest(f"more than {MOST_WAITING} fetches of one plan at once")
        self._numbers.append(number)
        self._asked.set()

    def cancel(self) -> None:
        """The plan ends, and what is left of its rows is dropped; whoever fetches is told. Idempotent."""
        if not self.has_ended:
            self._is_cancelled = True
            self._pieces = iter(())
            self.plan.cancel()
            self._asked.set()

    async def deliver(self) -> None:
        """Answers fetches until the plan's end was told, it is cancelled, or telling fails."""
        while True:
            while not self._numbers:
                if self.has_ended:
                    self.is_delivered = True
                    return
                if self._is_cancelled:
                    await self._next()  # nobody may ask for the end
                    self._settle()
                else:
                    self._asked.clear()
                    await self._asked.wait()
            answer = await self._next()
            await self._tell(answer(self._numbers.popleft()))
            self._settle()

    def last(self, number: int) -> Answer:
        """To a fetch that comes when all is delivered."""
        assert self._last is not None, "the plan has ended"
        return self._last(number)

    async def _next(self) -> Callable[[int], Answer]:
        if self._last is not None:
            return self._last
        try:
            while not self._is_cancelled:
                piece = next(self._pieces, None)
                if piece is not None:
                    return partial(_rows, piece)
                batch = await self.plan.take()
                if batch is None:
                    return self._end(await self._ended())
                self._pieces = pieces(batch)
            while await self.plan.take() is not None:
                """It may have ended before: rows that were left of it are not told, so neither is such an end."""
            raise Cancelled("the plan was cancelled", plan_id=self.plan.plan_id)
        except PystachioError as error:
            failure = Failure.of(error, self._node)
        except Exception as unexpected:
            get_logger().error("rows for a client could not be made", exc_info=unexpected)
            failure = Failure.of(InternalError(f"rows could not be made: {type(unexpected).__name__}"), self._node)
        self.plan.cancel()
        return self._end(lambda number: Failed(number, failure))

    async def _ended(self) -> Callable[[int], Answer]:
        plan = self.plan
        transferred = await self._ask(lambda: plan.transferred().transferred_bytes)
        rows, seconds = plan.rows, plan.seconds
        return lambda number: Ended(number, rows, seconds, transferred)

    def _end(self, last: Callable[[int], Answer]) -> Callable[[int], Answer]:
        self._last = last
        return last

    def _settle(self) -> None:
        if self.has_ended and not self._is_settled:
            self._is_settled = True
            self._on_ended(self)


def _rows(piece: bytes, number: int) -> Answer:
    return Rows(number, piece)
