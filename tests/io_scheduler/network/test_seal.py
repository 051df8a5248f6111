"""A sealed message is believed once, in its turn, in its direction, on its connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.io_scheduler.network.frames import FrameReader, Goodbye, Heartbeat, Received, encode
from pystachio.io_scheduler.network.seal import MAC_BYTES, Seals, make_seals

KEY = b"k" * 32


def two_ends(connection: bytes = b"frames", key: bytes = KEY) -> tuple[Seals, Seals]:
    return make_seals(key, connection, is_initiator=True), make_seals(key, connection, is_initiator=False)


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_messages_in_their_order_are_authentic_both_ways(messages: list[bytes]) -> None:
    for sender, receiver in (two_ends(), two_ends()[::-1]):
        for message in messages:
            mac = sender.outgoing.mac(message)
            assert len(mac) == MAC_BYTES
            receiver.incoming.check(message, mac)


@pytest.mark.parametrize("attack", ["again", "left out", "swapped", "changed", "sent back", "elsewhere", "other key"])
def test_whatever_else_is_done_with_a_message_shows(attack: str) -> None:
    one, other = two_ends()
    macs = [one.outgoing.mac(bytes([number])) for number in range(3)]
    match attack:
        case "again":
            other.incoming.check(b"\0", macs[0])
            number, receiver = 0, other.incoming
        case "left out" | "swapped":
            number, receiver = 1, other.incoming
        case "changed":
            macs[1] = macs[0]
            number, receiver = 1, other.incoming
        case "sent back":
            number, receiver = 0, one.incoming
        case "elsewhere":
            number, receiver = 0, two_ends(b"data")[1].incoming
        case _:
            number, receiver = 0, two_ends(key=b"K" * 32)[1].incoming
    with pytest.raises(DataError, match="not authentic"):
        receiver.check(bytes([number]), macs[number])


@given(st.data())
def test_a_stream_of_frames_with_any_bit_changed_is_not_authentic(data: st.DataObject) -> None:
    one, other = two_ends()
    stream = bytearray(b"".join(encode(frame, one.outgoing) for frame in (Heartbeat(), Received(7), Goodbye("x"))))
    place = data.draw(st.integers(0, len(stream) * 8 - 1))
    stream[place // 8] ^= 1 << place % 8
    reader = FrameReader()
    reader.unseal(other.incoming)
    arrived = []
    try:
        reader.add(stream)
        while (frame := reader.next()) is not None:
            arrived.append(frame)
    except DataError:
        pass
    else:
        assert len(reader), "a longer length waits for what never comes"
    assert arrived == [Heartbeat(), Received(7), Goodbye("x")][: len(arrived)]
    assert len(arrived) < 3


def test_what_is_sealed_later_is_read_later() -> None:
    """Frames that came with the last one of the handshake are sealed already."""
    one, other = two_ends()
    reader = FrameReader()
    reader.add(encode(Received(1)) + encode(Received(2), one.outgoing))
    assert reader.next() == Received(1)
    reader.unseal(other.incoming)
    assert reader.next() == Received(2)
    assert reader.next() is None
    assert len(reader) == 0
