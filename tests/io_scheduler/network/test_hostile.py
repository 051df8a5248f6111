"""Strangers who lie, and nodes that know the secret and misbehave: nobody hangs, and only what they touched fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from pystachio.errors import DataError, InvalidRequest, NodeLost, ResourceExhausted
from pystachio.io_scheduler.network.backlog import BACKLOGS
from pystachio.io_scheduler.network.frames import (
    Data,
    DataAddress,
    Frame,
    Goodbye,
    Grant,
    Heartbeat,
    Offer,
    Proof,
    Received,
    Refuse,
    Role,
    Withdraw,
    encode,
)
from pystachio.io_scheduler.network.handshake import Initiator
from tests.io_scheduler.network.insiders import KEY, identity, insider, introduced, stranger, victim
from tests.io_scheduler.network.test_network import until

pytestmark = pytest.mark.timeout(30)


async def ends_with(waiting: Awaitable[object], error: type[Exception], words: str | None = None) -> None:
    with pytest.raises(error, match=words):
        await waiting


# Strangers


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\xff" * 4096, b"\x00\x00\x00\x05\x01hello", encode(Proof(bytes(32)))],
)
async def test_noise_is_sent_away(noise: bytes) -> None:
    async with victim() as (network, address):
        guest = await stranger(address)
        guest.writer.write(noise)
        assert await guest.is_sent_away()
        assert network.statistics().refused == 1
        guest.leave()


async def test_silence_is_sent_away() -> None:
    async with victim(handshake_seconds=0.2) as (network, address):
        guests = [await stranger(address) for _ in range(3)]
        guests[1].say(Initiator(identity(), peer="first", role=Role.CONTROL, session=0, nonce=bytes(32)).hello())
        guests[2].writer.write(b"\x00")
        assert all(await asyncio.gather(*(guest.is_sent_away() for guest in guests)))
        assert network.statistics().refused == 3
        for guest in guests:
            guest.leave()


async def test_a_crowd_does_not_keep_others_out_for_long() -> None:
    async with victim(handshake_seconds=0.3, strangers=5) as (network, address):
        crowd = [await stranger(address) for _ in range(40)]
        assert all(await asyncio.gather(*(guest.is_sent_away() for guest in crowd)))
        assert network.statistics().refused == 40
        for guest in crowd:
            guest.leave()


async def test_a_crowd_that_says_nothing_keeps_nobody_out() -> None:
    """The oldest of it goes, and what it was is said; who has proved himself stays."""
    async with victim(handshake_seconds=5.0, strangers=5) as (network, address):
        waiting, established = await introduced(address, identity("waiting"), Role.CONTROL)
        crowd = [await stranger(address) for _ in range(20)]
        data, _ = await introduced(address, identity("waiting"), Role.DATA, established.session)
        await until(lambda: network.peers == ("waiting",))
        assert network.statistics().refused >= 15
        for guest in (*crowd, waiting, data):
            guest.leave()


async def test_a_talkative_stranger_is_sent_away() -> None:
    async with victim() as (_, address):
        guest = await stranger(address)
        guest.say(*(Heartbeat() for _ in range(1000)))
        assert await guest.is_sent_away()
        guest.leave()


async def test_a_data_connection_needs_a_session() -> None:
    async with victim() as (network, address):
        guest, _ = await introduced(address, identity(), Role.DATA, session=1234)
        assert await guest.is_sent_away()
        assert network.peers == ()
        guest.leave()


async def test_a_node_without_its_data_connection_is_no_peer() -> None:
    async with victim(handshake_seconds=0.3) as (network, address):
        guest, established = await introduced(address, identity(), Role.CONTROL)
        # Nobody else may bring it.
        thief, _ = await introduced(address, identity("thief"), Role.DATA, established.session)
        assert await thief.is_sent_away()
        assert await guest.is_sent_away()
        assert network.peers == ()
        guest.leave()
        thief.leave()


# Insiders


@pytest.mark.parametrize(
    "frame",
    [
        Grant(1, 1, 0, 101, 0),
        Grant(1, 1, 50, 51, 0),
        Grant(1, 1, 1 << 63, 1, 0),
        Grant(1, 1, 0, 0, 0),
        Grant(1, 1, 0, 100, BACKLOGS),
        Grant(1, 1, 0, 100, (1 << 32) - 1),
        Received(1),
        Proof(bytes(32)),
        DataAddress(b"elsewhere"),
        Data(10, 0, True, 1, 0, 1, 0),
        Goodbye("I had enough"),
    ],
    ids=lambda frame: type(frame).__name__,
)
async def test_who_breaks_the_protocol_is_lost(frame: Frame) -> None:
    async with insider() as (network, evil):
        sending = asyncio.create_task(network.send("second", KEY, memoryview(bytes(100))))
        await evil.control.hear(Offer)
        evil.control.say(frame)
        await ends_with(sending, NodeLost)
        assert network.peers == ()


async def test_who_claims_to_wait_for_the_whole_world_is_told_so() -> None:
    async with insider() as (network, evil):
        sending = asyncio.create_task(network.send("second", KEY, memoryview(bytes(100))))
        offer = await evil.control.hear(Offer)
        evil.control.say(Grant(offer.message, 1, 0, 50, BACKLOGS - 1), Grant(offer.message, 2, 50, 50, BACKLOGS))
        await ends_with(sending, NodeLost, "more than there can be")


async def test_asking_twice_for_the_same_bytes_gives_no_more_than_there_are() -> None:
    async with insider() as (network, evil):
        sending = asyncio.create_task(network.send("second", KEY, memoryview(bytes(100))))
        await evil.control.hear(Offer)
        evil.control.say(Grant(1, 1, 0, 60, 0), Grant(1, 2, 0, 60, 0))
        await ends_with(sending, NodeLost, "more than it was offered")


async def test_grants_of_unknown_messages_are_answered_with_nothing() -> None:
    async with insider() as (network, evil):
        evil.control.say(Grant(99, 7, 0, 1 << 30, 0), Received(99), Refuse(99, 1, ""), Withdraw(99, 1, ""))
        assert await evil.hear_header() == Data(0, 1, False, 7, evil.session, 1, 0)
        assert network.peers == ("second",)


async def test_offers_without_end_are_refused() -> None:
    async with insider(offers=50) as (network, evil):
        evil.control.say(*(Offer(number, 10, number, "normal", "flood") for number in range(1, 60)))
        assert await evil.control.is_sent_away()
        assert network.peers == ()


async def test_offers_that_go_back_in_number_are_refused() -> None:
    async with insider() as (_, evil):
        evil.control.say(Offer(2, 10, 2, "normal", "x"), Offer(2, 10, 3, "normal", "x"))
        assert await evil.control.is_sent_away()


async def test_a_message_as_long_as_the_world_is_refused_before_memory_is_taken() -> None:
    async with insider() as (_, evil):
        evil.control.say(Offer(1, 1 << 63, 0, "normal", "exchange"))
        refused = await evil.control.hear(Refuse)
        assert refused.message == 1


async def test_a_message_that_is_too_long_is_not_offered() -> None:
    async with insider(message_bytes=100) as (network, _):
        with pytest.raises(InvalidRequest, match="too long"):
            await network.send("second", KEY, memoryview(bytes(101)))


@pytest.mark.parametrize(
    "changes",
    [{"checksum": 1}, {"epoch": 2}, {"session": 1}, {"is_checked": False}],
    ids=lambda changes: next(iter(changes)),
)
async def test_damaged_data_fail_their_message_only(changes: dict[str, int]) -> None:
    async with insider() as (network, evil):
        receiving = asyncio.create_task(network.receive("second", KEY))
        other = asyncio.create_task(network.receive("second", KEY._replace(sequence=1)))
        evil.control.say(Offer(1, 10, 0, *KEY[:2]), Offer(2, 10, 1, *KEY[:2]))
        evil.answer(b"0123456789", (await evil.control.hear(Grant)).grant, **changes)
        await ends_with(receiving, DataError)
        evil.answer(b"abcdefghij", (await evil.control.hear(Grant)).grant)
        assert (await evil.control.hear(Refuse)).message == 1
        assert bytes(await other) == b"abcdefghij"  # type: ignore[arg-type]


async def test_a_connection_that_is_cut_in_the_middle_of_a_chunk() -> None:
    async with insider() as (network, evil):
        into = memoryview(bytearray(1000))
        receiving = asyncio.create_task(network.receive("second", KEY, into))
        evil.control.say(Offer(1, 1000, 0, *KEY[:2]))
        grant = await evil.control.hear(Grant)
        evil.data.writer.write(evil.header(b"x" * 1000, grant.grant) + b"x" * 400)
        await evil.data.writer.drain()
        evil.data.writer.close()
        await ends_with(receiving, NodeLost, "data connection")
        assert network.peers == ()


async def test_a_sender_that_never_answers_a_grant() -> None:
    async with insider(chunk_seconds=0.5) as (network, evil):
        receiving = asyncio.create_task(network.receive("second", KEY))
        evil.control.say(Offer(1, 1000, 0, *KEY[:2]))
        grant = await evil.control.hear(Grant)
        await ends_with(receiving, ResourceExhausted, "did not answer")
        # Later than anybody waits: it goes nowhere.
        evil.answer(bytes(1000), grant.grant)
        assert network.peers == ("second",)


async def test_a_sender_that_withdraws_says_why() -> None:
    async with insider() as (network, evil):
        early = asyncio.create_task(network.receive("second", KEY))
        evil.control.say(Offer(1, 1000, 0, *KEY[:2]), Offer(2, 10, 1, *KEY[:2]))
        await evil.control.hear(Grant)
        evil.control.say(Withdraw(1, 3, "the file is damaged"), Withdraw(2, 3, "this one too"))
        await ends_with(early, DataError, "the file is damaged")
        await ends_with(network.receive("second", KEY._replace(sequence=1)), DataError, "this one too")


async def test_a_receiver_that_grants_and_does_not_read() -> None:
    """Heartbeats go on, so it lives; but its data connection does not move."""
    async with insider(chunk_seconds=0.5, give_up_seconds=0.3) as (network, evil):
        evil.data.writer.transport.pause_reading()  # type: ignore[attr-defined]
        buffer = memoryview(bytes(64 << 20))
        sending = asyncio.create_task(network.send("second", KEY, buffer))
        offer = await evil.control.hear(Offer)
        for number in range(64):
            evil.control.say(Grant(offer.message, number + 1, number << 20, 1 << 20, 0))
        with pytest.raises((NodeLost, ResourceExhausted)):
            await sending


async def test_a_receiver_that_says_nothing_at_all_is_lost() -> None:
    async with victim(heartbeat_seconds=0.1, suspect_seconds=0.2, dead_seconds=0.5) as (network, address):
        who = identity()
        control, established = await introduced(address, who, Role.CONTROL)
        data, _ = await introduced(address, who, Role.DATA, established.session)
        await control.hear(Heartbeat)
        sending = asyncio.create_task(network.send("second", KEY, memoryview(bytes(100))))
        await ends_with(sending, NodeLost, "event loop")
        control.leave()
        data.leave()
