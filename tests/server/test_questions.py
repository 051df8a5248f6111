"""Questions to other nodes: each node has its time once it has the question, and who is gone is not waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pystachio.errors import NodeLost
from pystachio.server.plan_messages import FilesAsked, FilesSeen, SameFile
from pystachio.server.questions import NotAnswered, Questions
from tests import virtual_time
from tests.server.plain_plane import PlainPlane


class SlowPlane(PlainPlane):
    """A question is `seconds` on its way: it is long, and others are before it."""

    def __init__(self, seconds: float) -> None:
        super().__init__("a", "b")
        self._seconds = seconds

    async def deliver(self, node: str, message: Any) -> None:
        await asyncio.sleep(self._seconds)
        await super().deliver(node, message)


def question(number: int) -> FilesAsked:
    return FilesAsked(number, (SameFile("/f", 1, 1),))


def test_a_node_that_is_gone_already_is_not_waited_for() -> None:
    async def ask() -> None:
        plane = PlainPlane("a", "b")
        questions = Questions(plane, FilesSeen, asked_for="which files it has")
        plane.lose("b")
        with pytest.raises(NodeLost, match="a node is gone that was asked which files it has"):
            await asyncio.wait_for(questions.ask("b", question, FilesSeen, seconds=60.0), 1.0)
        assert not plane.told

    virtual_time.run(ask())


def test_a_question_that_waits_for_its_turn_does_not_take_the_time_for_its_answer() -> None:
    async def ask() -> None:
        plane = SlowPlane(30.0)
        questions = Questions(plane, FilesSeen, asked_for="which files it has")
        asking = asyncio.ensure_future(questions.ask("b", question, FilesSeen, seconds=5.0))
        await asyncio.sleep(34.0)
        plane.hear("b", FilesSeen(plane.told[0][1].number, (3,)))
        assert (await asking).missing == (3,)

    virtual_time.run(ask())


def test_who_says_nothing_is_asked_for_so_long_and_who_is_gone_not_at_all() -> None:
    async def ask() -> None:
        plane, loop = SlowPlane(1.0), asyncio.get_running_loop()
        questions = Questions(plane, FilesSeen, asked_for="which files it has")
        began = loop.time()
        with pytest.raises(NotAnswered):
            await questions.ask("b", question, FilesSeen, seconds=5.0)
        assert loop.time() - began == pytest.approx(6.0, abs=0.1)
        asking = asyncio.ensure_future(questions.ask("b", question, FilesSeen, seconds=5.0))
        await asyncio.sleep(2.0)
        plane.lose("b")
        with pytest.raises(NodeLost, match="is gone"):
            await asking
        assert loop.time() - began == pytest.approx(8.0, abs=0.1)

    virtual_time.run(ask())


@pytest.mark.parametrize(("times", "is_gone"), [(1, False), (2, False), (3, True)])
def test_a_node_that_has_merely_connected_again_is_asked_anew(times: int, is_gone: bool) -> None:
    async def ask() -> None:
        plane = PlainPlane("a", "b")
        questions = Questions(plane, FilesSeen, asked_for="which files it has")
        asking = asyncio.ensure_future(questions.ask("b", question, FilesSeen, seconds=5.0))
        for lost in range(times):
            await plane.until_told(lost + 1)
            plane.lose("b")
            plane.come_back("b")
        if is_gone:
            with pytest.raises(NodeLost, match="is gone"):
                await asking
            assert len(plane.told) == times
            return
        await plane.until_told(times + 1)
        first, last = plane.told[0][1].number, plane.told[-1][1].number
        assert first != last
        plane.hear("b", FilesSeen(first, (1,)))
        plane.hear("b", FilesSeen(last, (3,)))
        assert (await asking).missing == (3,)

    virtual_time.run(ask())
