"""Messages that nobody wants any more before they are there: their sender is told, and nothing is kept."""

from __future__ import annotations

import asyncio

import pytest

from pystachio.io_scheduler.network.backlog import Backlog
from pystachio.io_scheduler.network.frames import Frame, Offer, Received, Refuse, Withdraw
from pystachio.io_scheduler.network.inbox import Inbox
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.refusals import CANCELLED
from pystachio.io_scheduler.network.unwanted import Unwanted

pytestmark = pytest.mark.timeout(30)

KEY = MessageKey("plan", "operator", 0)
OFFER = Offer(1, 0, 0, "plan", "operator")


class Receiver:
    """An inbox whose messages are empty: nothing moves. `said` is what the peer hears."""

    def __init__(self) -> None:
        self.said: list[Frame] = []
        self.inbox = Inbox(
            peer="peer",
            prefix="peer",
            service=None,  # type: ignore[arg-type]
            ingress=None,  # type: ignore[arg-type]
            data_path=None,  # type: ignore[arg-type]
            backlog=Backlog(1),
            unwanted=Unwanted(),
            limits=NetworkLimits(),
            timers=asyncio.get_running_loop(),
            rank=lambda: 0,
            send_frame=self.said.append,
        )

    async def waiting(self, name: MessageKey = KEY) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.create_task(self.inbox.receive(name, None, 0, None))
        await asyncio.sleep(0)
        return task

    async def give_up(self, task: asyncio.Task[object]) -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    @property
    def refused(self) -> list[tuple[int, int]]:
        return [(frame.message, frame.code) for frame in self.said if isinstance(frame, Refuse)]


async def test_what_was_given_up_is_refused_when_it_is_offered() -> None:
    receiver = Receiver()
    await receiver.give_up(await receiver.waiting())
    receiver.inbox.take_offer(OFFER)
    assert receiver.refused == [(1, CANCELLED)]
    assert receiver.inbox.offered_messages == 0


async def test_what_is_offered_as_it_is_given_up_is_refused() -> None:
    receiver = Receiver()
    task = await receiver.waiting()
    receiver.inbox.take_offer(OFFER)
    await receiver.give_up(task)
    assert receiver.refused == [(1, CANCELLED)]
    assert receiver.inbox.offered_messages == 0


async def test_what_was_withdrawn_as_it_is_given_up_is_forgotten() -> None:
    receiver = Receiver()
    task = await receiver.waiting()
    receiver.inbox.take_offer(OFFER)
    receiver.inbox.take_withdraw(Withdraw(1, CANCELLED, ""))
    await receiver.give_up(task)
    assert receiver.said == []
    assert receiver.inbox.offered_messages == 0


async def test_whoever_asks_again_in_time_has_it() -> None:
    receiver = Receiver()
    await receiver.give_up(await receiver.waiting())
    again = await receiver.waiting()
    receiver.inbox.take_offer(OFFER)
    assert await again == b""
    assert receiver.said == [Received(1)]


async def test_a_name_that_was_refused_once_may_be_offered_again() -> None:
    receiver = Receiver()
    await receiver.give_up(await receiver.waiting())
    receiver.inbox.take_offer(OFFER)
    again = await receiver.waiting()
    receiver.inbox.take_offer(OFFER._replace(message=2))
    assert await again == b""
    assert receiver.said[1:] == [Received(2)]
