"""Without proof, no frame does anything: every type there is, for nodes and clients, at every step of the handshake."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import get_args

import pytest

from pystachio.errors import Unauthorized
from pystachio.io_scheduler.network import frames
from pystachio.io_scheduler.network.frames import FRAME_TYPES, Frame, Role
from pystachio.io_scheduler.network.handshake import Identity, Initiator, client_identity
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.reception import Address
from pystachio.io_scheduler.network.tokens import Token, TokenRole, issue
from tests.io_scheduler.network.any_frames import any_frame
from tests.io_scheduler.network.insiders import Stranger, identity, introduced, stranger, victim
from tests.io_scheduler.network.two_nodes import SECRET

pytestmark = pytest.mark.timeout(30)

NOW = 1000.0
EVERY_TYPE = pytest.mark.parametrize("kind", FRAME_TYPES, ids=lambda kind: kind.__name__)
TOKENS = {
    "wrong": replace(issue(SECRET.encode(), TokenRole.CLIENT, "alice"), key=bytes(32)),
    "expired": issue(SECRET.encode(), TokenRole.CLIENT, "alice", expires_at=999),
    "observer's for a client's": Token(
        issue(SECRET.encode(), TokenRole.CLIENT, "alice").credential,
        issue(SECRET.encode(), TokenRole.OBSERVER, "alice").key,
    ),
}


class Doors:
    """What must not happen to a node that strangers talk to."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def options(self) -> dict[str, object]:
        return {
            "heard": lambda *event: self.events.append(event),
            "visited": self.events.append,
            "lost": lambda *event: self.events.append(event),
            "clock": lambda: NOW,
        }

    def check(self, network: Network) -> None:
        assert self.events == []
        assert network.peers == ()
        statistics = network.statistics()
        assert (statistics.visits, statistics.refused) == (0, 1)


def test_every_frame_is_in_the_registry() -> None:
    """And nothing else of that module looks like one."""
    declared = {
        value
        for value in vars(frames).values()
        if isinstance(value, type) and hasattr(value, "_fields") and not value.__name__.startswith("_")
    }
    assert declared == set(FRAME_TYPES) == set(get_args(Frame))
    assert len(FRAME_TYPES) == len(set(FRAME_TYPES))


@EVERY_TYPE
@pytest.mark.parametrize("seed", range(3))
async def test_no_token(kind: type[Frame], seed: int) -> None:
    """The frame is the first that is said, again and again."""
    doors = Doors()
    async with victim(handshake_seconds=0.5, **doors.options()) as (network, address):
        guest = await stranger(address)
        chance = random.Random(seed)
        guest.say(*(any_frame(kind, chance) for _ in range(5)))
        assert await guest.is_sent_away()
        doors.check(network)
        guest.leave()


@EVERY_TYPE
@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.name)
async def test_no_proof(kind: type[Frame], role: Role) -> None:
    """The frame comes where the proof should."""
    doors = Doors()
    async with victim(handshake_seconds=0.5, **doors.options()) as (network, address):
        guest = await said_hello(address, role)
        chance = random.Random(1)
        guest.say(*(any_frame(kind, chance) for _ in range(5)))
        assert await guest.is_sent_away()
        doors.check(network)
        guest.leave()


@EVERY_TYPE
@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.name)
@pytest.mark.parametrize("which", TOKENS)
async def test_a_token_that_is_not_good(kind: type[Frame], role: Role, which: str) -> None:
    """The proof is that of a wrong token, and the frame follows it."""
    doors = Doors()
    token = TOKENS[which]
    who = replace(client_identity(token, os.urandom(16)), epoch=1)
    async with victim(**doors.options()) as (network, address):
        guest = await said_hello(address, role, who, str(token.credential), proves=True)
        guest.say(any_frame(kind, random.Random(2)))
        assert await guest.is_sent_away()
        doors.check(network)
        guest.leave()


@pytest.mark.parametrize("role", [Role.CONTROL, Role.DATA], ids=lambda role: role.name)
@pytest.mark.parametrize("token_role", list(TokenRole))
async def test_a_good_token_of_a_client_opens_nothing_of_a_node(role: Role, token_role: TokenRole) -> None:
    doors = Doors()
    token = issue(SECRET.encode(), token_role, "alice")
    who = replace(client_identity(token, os.urandom(16)), epoch=1)
    async with victim(**doors.options()) as (network, address):
        with pytest.raises(Unauthorized, match="opens no connection of a node"):
            await introduced(address, who, role, credential=str(token.credential))
        doors.check(network)


@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.name)
async def test_a_wrong_secret(role: Role) -> None:
    doors = Doors()
    async with victim(**doors.options()) as (network, address):
        with pytest.raises(Unauthorized):
            await introduced(address, replace(identity(), secret=b"another secret than theirs"), role)
        doors.check(network)


async def said_hello(
    address: Address, role: Role, who: Identity | None = None, credential: str = "", *, proves: bool = False
) -> Stranger:
    guest = await stranger(address)
    initiator = Initiator(
        who if who is not None else identity(),
        peer="first",
        role=role,
        session=0,
        nonce=bytes(32),
        credential=credential,
    )
    guest.say(initiator.hello())
    challenge = await guest.hear(object)
    if proves:
        guest.say(initiator.proof(challenge))
    return guest
