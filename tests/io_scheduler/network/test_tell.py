"""Bodies between nodes: in order, of any length up to the longest, and never in the way of anything else."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pystachio.errors import DataError, InvalidRequest, NodeLost
from pystachio.io_scheduler.network import frame_connection
from pystachio.io_scheduler.network.bodies import BODY_BYTES
from pystachio.io_scheduler.network.frames import BodyPart, Heartbeat, encode
from tests.io_scheduler.network.insiders import insider, intruder, victim
from tests.io_scheduler.network.test_network import nodes, talk

pytestmark = pytest.mark.timeout(30)

Heard = asyncio.Queue[tuple[str, bytes]]


def hearing() -> tuple[Heard, dict[str, Any]]:
    heard: Heard = asyncio.Queue()
    return heard, {"heard": lambda peer, body: heard.put_nowait((peer, body))}


async def test_bodies_arrive_in_order_whatever_their_length() -> None:
    heard, options = hearing()
    chance = random.Random(1)
    bodies = [chance.randbytes(chance.choice([0, 1, 100, 16_378, 16_379, 100_000, 1 << 20])) for _ in range(40)]
    async with nodes("a", "b", **options) as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        for body in bodies:
            a.network.tell("b", body)
        assert [await heard.get() for _ in bodies] == [("a", body) for body in bodies]
        b.network.tell("a", b"and back")
        assert await heard.get() == ("b", b"and back")


async def test_the_longest_body_arrives_and_a_longer_one_is_refused() -> None:
    heard, options = hearing()
    async with nodes("a", "b", **options) as (a, b):
        await a.network.connect("b", *b.address)
        with pytest.raises(InvalidRequest, match="too long"):
            a.network.tell("b", bytes(BODY_BYTES + 1))
        longest = random.Random(2).randbytes(BODY_BYTES)
        a.network.tell("b", longest)
        assert (await heard.get())[1] == longest


async def test_who_is_told_as_soon_as_it_joins_hears_it() -> None:
    """The listener's side may not have begun to listen: what comes waits."""
    heard, options = hearing()
    async with nodes("a", "b", **options) as (a, b):
        a.network._on_joined = lambda name: [a.network.tell(name, bytes([n]) * (1 << 20)) for n in range(8)]
        await a.network.connect("b", *b.address)
        assert [(await heard.get())[1][:1] for _ in range(8)] == [bytes([n]) for n in range(8)]


async def test_messages_and_heartbeats_pass_a_long_body() -> None:
    async with insider(heard=lambda peer, body: None, dead_seconds=20.0) as (network, evil):
        evil.control.writer.transport.pause_reading()  # type: ignore[attr-defined]
        network.tell("second", bytes(BODY_BYTES))
        # Nothing is read, so the body waits; what is sent now waits for a few buffers of it only.
        for _ in range(3):
            await asyncio.sleep(0.1)
        evil.control.writer.transport.resume_reading()  # type: ignore[attr-defined]
        parts = beats_behind = 0
        while parts * frame_connection.PART_BYTES < BODY_BYTES:
            frame = await evil.control.hear(object)
            if isinstance(frame, Heartbeat) and parts:
                beats_behind = beats_behind or parts
            parts += isinstance(frame, BodyPart)
        assert 0 < beats_behind < parts // 2, "a heartbeat went before most of the body"


async def test_messages_go_on_while_a_body_is_under_way() -> None:
    heard, options = hearing()
    async with nodes("a", "b", **options) as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        a.network.tell("b", bytes(BODY_BYTES))
        await talk(a, b)
        assert heard.empty(), "the message was faster"
        assert len((await heard.get())[1]) == BODY_BYTES


async def test_who_is_not_connected_is_told_nothing() -> None:
    async with nodes("a", "b", heard=lambda peer, body: None) as (a, b):
        with pytest.raises(NodeLost, match="not connected"):
            a.network.tell("b", b"hello")
        await a.network.connect("b", *b.address)
        a.network.disconnect("b", "enough")
        with pytest.raises(NodeLost, match="not connected"):
            a.network.tell("b", b"hello")


async def test_who_hears_what_it_does_not_understand_ends_the_peer_and_says_why() -> None:
    def refuse(peer: str, body: bytes) -> None:
        raise DataError(f"no such word: {body!r}")

    losses: asyncio.Queue[str] = asyncio.Queue()
    options = {"heard": refuse}
    async with nodes("a", "b", **options) as (a, b):
        a.network._on_lost = lambda peer, error: losses.put_nowait(str(error))
        await a.network.connect("b", *b.address)
        a.network.tell("b", b"gibberish")
        assert await b.lost.get() == "a"
        assert "no such word" in await losses.get()


async def test_a_node_that_listens_to_nobody_loses_who_talks() -> None:
    async with nodes("a", "b") as (a, b):
        await a.network.connect("b", *b.address)
        a.network.tell("b", b"hello?")
        assert await a.lost.get() == "b"


async def test_a_peer_that_beats_and_does_not_read_is_lost_when_too_much_waits() -> None:
    async with insider(heard=lambda peer, body: None, dead_seconds=20.0) as (network, evil):
        evil.control.writer.transport.pause_reading()  # type: ignore[attr-defined]
        told = 0
        while network.peers:
            network.tell("second", bytes(BODY_BYTES))
            told += 1
        assert told == 6


async def test_a_peer_that_takes_nothing_for_long_is_lost_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_connection, "UNREAD_SECONDS", 0.2)
    async with insider(heard=lambda peer, body: None, dead_seconds=20.0) as (network, evil):
        evil.control.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(2):
            network.tell("second", bytes(BODY_BYTES))
        assert network.peers
        await asyncio.sleep(0.3)
        network.tell("second", b"are you there?")
        assert not network.peers


async def test_a_peer_that_reads_may_be_told_much_at_once() -> None:
    heard, options = hearing()
    bodies = [bytes([number % 256]) * 8_000 for number in range(4_000)]
    async with nodes("a", "b", **options) as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        for body in bodies:
            a.network.tell("b", body)
        assert [(await heard.get())[1] for _ in bodies] == bodies


@pytest.mark.parametrize("attack", ["again", "changed", "left out", "unsealed"])
async def test_a_frame_that_is_not_authentic_ends_the_connection(attack: str) -> None:
    heard: list[bytes] = []
    lost: list[str] = []
    options: dict[str, Any] = {
        "heard": lambda peer, body: heard.append(body),
        "lost": lambda peer, error: lost.append(str(error)),
    }
    async with victim(**options) as (network, address), intruder(address, "second") as evil:
        seal = evil.control.seal
        assert seal is not None
        first, second = (encode(BodyPart(0, bytes([n])), seal) for n in (1, 2))
        match attack:
            case "again":
                stream = first + first
            case "changed":
                stream = first + second.replace(b"\x02", b"\x03")
            case "left out":
                stream = second
            case _:
                stream = first + encode(BodyPart(0, b"\x02"))
        evil.control.writer.write(stream + bytes(64))
        assert await evil.control.is_sent_away()
        assert network.peers == ()
        assert heard == ([] if attack == "left out" else [b"\x01"])
        assert "not authentic" in lost[0]
