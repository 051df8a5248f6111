"""Where files are located, without a disk."""

from __future__ import annotations

import asyncio

import pytest

from pystachio.errors import NotFound
from pystachio.io_scheduler.core.request import Direction, Link
from pystachio.io_scheduler.links import Links
from tests.io_scheduler.scripted_device import ScriptedDevice

LINK = Link("disk", "8:0")


class Looks:
    """Looks that end when they are let; the first `failing` of them fail."""

    def __init__(self, failing: int = 0) -> None:
        self.seen: list[str] = []
        self.failing = failing
        self.may_end = asyncio.Event()

    async def __call__(self, path: str) -> Link:
        self.seen.append(path)
        await self.may_end.wait()
        if len(self.seen) <= self.failing:
            raise NotFound(f"no such file: {path}")
        return LINK

    def links(self) -> Links:
        return Links(self, lambda link: ScriptedDevice({}))


def test_one_look_serves_all_who_ask_for_a_file_at_once() -> None:
    async def main() -> None:
        looks = Looks()
        links = looks.links()
        asked = [asyncio.create_task(links.locate("a", Direction.READ)) for _ in range(5)]
        other = asyncio.create_task(links.locate("b", Direction.READ))
        await asyncio.sleep(0)
        assert sorted(looks.seen) == ["a", "b"]
        looks.may_end.set()
        assert await asyncio.gather(*asked, other) == [LINK] * 6
        assert len(looks.seen) == 2

    asyncio.run(main())


@pytest.mark.parametrize("given_up", [False, True])
def test_those_who_wait_for_a_look_that_fails_or_is_given_up_look_for_themselves(given_up: bool) -> None:
    async def main() -> None:
        looks = Looks(failing=0 if given_up else 1)
        links = looks.links()
        first = asyncio.create_task(links.locate("a", Direction.READ))
        await asyncio.sleep(0)
        others = [asyncio.create_task(links.locate("a", Direction.READ)) for _ in range(3)]
        await asyncio.sleep(0)
        if given_up:
            first.cancel()
            await asyncio.wait((first,))
        looks.may_end.set()
        assert await asyncio.gather(*others) == [LINK] * 3
        # What one of them finds at once, the others need not look for.
        assert looks.seen == ["a"] * (4 if given_up else 2)
        with pytest.raises(asyncio.CancelledError if given_up else NotFound):
            await first

    asyncio.run(main())


def test_a_file_that_is_not_there_is_not_there_for_anybody() -> None:
    async def main() -> None:
        looks = Looks(failing=10_000)
        links = looks.links()
        asked = [asyncio.create_task(links.locate("a", Direction.READ)) for _ in range(2000)]
        await asyncio.sleep(0)
        asked.pop().cancel()
        looks.may_end.set()
        assert all(isinstance(error, NotFound) for error in await asyncio.gather(*asked, return_exceptions=True))
        looks.failing = 0
        assert await links.locate("a", Direction.READ) == LINK

    asyncio.run(main())
