"""What supervisors tell each other, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pystachio.server.address_book import FORGET_SECONDS, WAIT_SECONDS, AddressBook
from tests import virtual_time


def in_virtual_time(main: Callable[[AddressBook], Awaitable[None]]) -> None:
    async def run() -> None:
        await main(AddressBook())

    virtual_time.run(run())


def test_a_change_reaches_who_waits_at_once() -> None:
    async def main(book: AddressBook) -> None:
        known = await book.exchange("a", "a=h:1", None)
        assert known.addresses == ("a=h:1",)
        waiting = asyncio.ensure_future(book.exchange("a", "a=h:1", known.version))
        await asyncio.sleep(1)
        assert not waiting.done()
        news = await book.exchange("b", "b=h:2", None)
        assert await waiting == news
        assert news.addresses == ("a=h:1", "b=h:2")
        assert asyncio.get_running_loop().time() < 2

    in_virtual_time(main)


def test_without_a_change_the_answer_is_the_same() -> None:
    async def main(book: AddressBook) -> None:
        known = await book.exchange("a", "a=h:1", None)
        began = asyncio.get_running_loop().time()
        assert await book.exchange("a", "a=h:1", known.version) == known
        assert asyncio.get_running_loop().time() - began >= WAIT_SECONDS

    in_virtual_time(main)


def test_a_node_that_ended_is_no_address_and_its_next_one_is_another() -> None:
    async def main(book: AddressBook) -> None:
        await book.exchange("a", "a=h:1", None)
        assert (await book.exchange("a", None, None)).addresses == ()
        assert (await book.exchange("a", "a=h:2", None)).addresses == ("a=h:2",)
        book.leave("a")
        assert book.addresses() == ()

    in_virtual_time(main)


def test_a_supervisor_that_is_silent_is_forgotten_and_one_that_waits_is_not() -> None:
    async def main(book: AddressBook) -> None:
        await book.exchange("gone", "gone=h:1", None)
        news = await book.exchange("here", "here=h:2", None)
        loop = asyncio.get_running_loop()
        until = loop.time() + FORGET_SECONDS + WAIT_SECONDS + 1
        while loop.time() < until:
            news = await book.exchange("here", "here=h:2", news.version)
        assert news.addresses == ("here=h:2",)

    in_virtual_time(main)


def test_a_book_that_began_anew_is_noticed() -> None:
    async def main(book: AddressBook) -> None:
        known = await book.exchange("a", "a=h:1", None)
        anew = await AddressBook().exchange("a", "a=h:1", known.version)
        assert anew.version != known.version
        assert anew.addresses == known.addresses

    in_virtual_time(main)
