"""Both ends prove themselves, or nothing they say is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pystachio.errors import InvalidRequest, NodeLost, PystachioError, Unauthorized
from pystachio.io_scheduler.network.frames import (
    PROTOCOL_VERSION,
    Carrier,
    Heartbeat,
    Hello,
    Proof,
    Refusal,
    Role,
    Welcome,
)
from pystachio.io_scheduler.network.handshake import Established, Identity, Initiator, Listener

A = Identity(node="a", instance=b"a" * 16, epoch=3, carrier=Carrier.TCP, secret=b"sixteen bytes or more")
NOW = 1_000_000.0
B = replace(A, node="b", instance=b"b" * 16)


def initiator(identity: Identity = A, peer: str = "b", nonce: int = 1) -> Initiator:
    return Initiator(identity, peer=peer, role=Role.CONTROL, session=0, nonce=bytes([nonce]) * 32)


def listener(identity: Identity = B, nonce: int = 2) -> Listener:
    return Listener(identity, nonce=bytes([nonce]) * 32, now=NOW)


def shake(one: Initiator, other: Listener) -> tuple[Established, Established]:
    proof = one.proof(other.challenge(one.hello()))
    _, welcome, theirs = other.established(proof)
    return one.established(welcome), theirs


def test_both_know_each_other_and_share_a_key() -> None:
    ours, theirs = shake(initiator(), listener())
    assert (ours.node, ours.instance) == ("b", B.instance)
    assert (theirs.node, theirs.instance) == ("a", A.instance)
    assert ours.key == theirs.key
    assert ours.session == theirs.session


def test_each_session_has_its_own_key() -> None:
    keys = {shake(initiator(nonce=n), listener(nonce=m))[0].key for n, m in ((1, 2), (3, 2), (1, 4))}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"secret": b"another secret than that"}, Unauthorized),
        ({"epoch": 4}, NodeLost),
        ({"carrier": Carrier.UCX}, InvalidRequest),
    ],
)
def test_who_does_not_fit_is_refused(change: dict[str, object], error: type[PystachioError]) -> None:
    with pytest.raises(error):
        shake(initiator(replace(A, **change)), listener())


def test_the_wrong_node_is_refused_by_both() -> None:
    with pytest.raises(Unauthorized, match="another node"):
        shake(initiator(peer="c"), listener())
    one, other = initiator(peer="c"), listener()
    challenge = other.challenge(one.hello())._replace(node="c")
    with pytest.raises((InvalidRequest, Unauthorized)):
        other.established(one.proof(challenge))


def test_a_node_connects_neither_to_itself_nor_to_another_of_its_name() -> None:
    with pytest.raises(NodeLost, match="itself"):
        shake(initiator(peer="a"), listener(A))
    with pytest.raises(InvalidRequest, match="name is taken: 'a'"):
        shake(initiator(peer="a"), listener(replace(A, instance=b"c" * 16)))


def test_a_proof_is_good_for_one_handshake_only() -> None:
    one = initiator()
    proof = one.proof(listener().challenge(one.hello()))
    again = listener(nonce=9)
    again.challenge(one.hello())
    with pytest.raises(Unauthorized):
        again.established(proof)


def test_a_proof_does_not_come_back_as_a_welcome() -> None:
    one = initiator()
    proof = one.proof(listener().challenge(one.hello()))
    with pytest.raises(Unauthorized):
        one.established(Welcome(proof.proof))


@pytest.mark.parametrize(
    "field", ["version", "role", "carrier", "epoch", "session", "instance", "nonce", "node", "peer", "credential"]
)
def test_whatever_is_changed_on_the_way_breaks_the_proof(field: str) -> None:
    one, other = initiator(), listener()
    hello = one.hello()
    value = getattr(hello, field)
    other_value = (
        value + 1 if isinstance(value, int) else value[:-1] + type(value)(b"x" if isinstance(value, bytes) else "x")
    )
    forged = hello._replace(**{field: other_value})
    with pytest.raises((Unauthorized, InvalidRequest)):
        other.established(one.proof(other.challenge(forged)))


def test_other_frames_and_refusals_end_it() -> None:
    with pytest.raises(Unauthorized, match="wrong frame"):
        listener().challenge(Heartbeat())
    with pytest.raises(Unauthorized, match="wrong frame"):
        initiator().proof(Proof(bytes(32)))
    with pytest.raises(NodeLost, match="no room"):
        initiator().proof(Refusal(2, "no room"))


@pytest.mark.parametrize("version", [0, 1, PROTOCOL_VERSION + 1])
def test_another_protocol_is_refused(version: int) -> None:
    hello = initiator().hello()
    assert isinstance(hello, Hello)
    with pytest.raises(InvalidRequest, match="protocols"):
        listener().challenge(hello._replace(version=version))


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="secret"):
        replace(A, secret=b"short")
