"""Frames survive the wire however it cuts them; what is none is a DataError and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.io_scheduler.network.frames import (
    DATA_BYTES,
    FRAME_BYTES,
    INSTANCE_BYTES,
    NAME_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    REASON_BYTES,
    BodyPart,
    Challenge,
    Data,
    DataAddress,
    Frame,
    FrameReader,
    Goodbye,
    Grant,
    Heartbeat,
    Hello,
    Offer,
    Proof,
    Received,
    Refusal,
    Refuse,
    Welcome,
    Withdraw,
    decode_data,
    encode,
    encode_data,
)


def _number(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def _bytes(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length)


_NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=NAME_BYTES // 4)
_REASONS = st.text(st.characters(exclude_categories=("Cs",)), max_size=REASON_BYTES // 4)
_LONG, _SHORT = _number(64), _number(8)
_DATA = st.builds(Data, _number(32), _SHORT, st.booleans(), _LONG, _LONG, _LONG, _LONG)
FRAMES: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        Hello,
        _number(16),
        _SHORT,
        _SHORT,
        _LONG,
        _LONG,
        _bytes(INSTANCE_BYTES),
        _bytes(NONCE_BYTES),
        _NAMES,
        _NAMES,
        _NAMES,
    ),
    st.builds(Challenge, _SHORT, _LONG, _bytes(INSTANCE_BYTES), _bytes(NONCE_BYTES), _NAMES),
    st.builds(Proof, _bytes(PROOF_BYTES)),
    st.builds(Welcome, _bytes(PROOF_BYTES)),
    st.builds(Refusal, _SHORT, _REASONS),
    st.just(Heartbeat()),
    st.builds(DataAddress, st.binary(max_size=1000)),
    st.builds(Offer, _LONG, _LONG, _LONG, _NAMES, _NAMES),
    st.builds(Grant, _LONG, _LONG, _LONG, _number(32), _number(32)),
    _DATA,
    st.builds(Received, _LONG),
    st.builds(Refuse, _LONG, _SHORT, _REASONS),
    st.builds(Withdraw, _LONG, _SHORT, _REASONS),
    st.builds(Goodbye, _REASONS),
    st.builds(BodyPart, _number(32), st.binary(max_size=1000)),
)


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_frames_arrive_as_they_were_sent_however_they_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(map(encode, frames))
    reader = FrameReader()
    arrived: list[Frame] = []
    position = 0
    while position < len(stream):
        length = cuts[position % len(cuts)]
        arrived += reader.feed(stream[position : position + length])
        position += length
    assert arrived == frames
    assert [type(frame) for frame in arrived] == [type(frame) for frame in frames]
    assert len(reader) == 0


@given(st.binary(max_size=300))
def test_noise_is_frames_or_a_data_error(noise: bytes) -> None:
    reader = FrameReader()
    try:
        for frame in reader.feed(noise):
            encode(frame)
    except DataError:
        pass


@given(FRAMES, st.data())
def test_a_damaged_frame_is_another_frame_or_a_data_error_or_is_not_complete(frame: Frame, data: st.DataObject) -> None:
    stream = bytearray(encode(frame))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    try:
        arrived = list(FrameReader().feed(stream))
    except DataError:
        return
    # Frames of the same fields are equal as tuples.
    assert arrived != [frame] or type(arrived[0]) is not type(frame)


def test_a_flag_is_written_in_one_way_only() -> None:
    stream = bytearray(encode(Data(0, 0, True, 0, 0, 0, 0)))
    stream[10] ^= 2
    with pytest.raises(DataError, match="neither 0 nor 1"):
        list(FrameReader().feed(stream))


@given(FRAMES, st.integers(0, 40))
def test_a_frame_that_is_cut_or_has_more_than_its_content_is_none(frame: Frame, change: int) -> None:
    stream = encode(frame)
    body = stream[5:]
    changed = body[: len(body) - change] if change % 2 and change <= len(body) else body + bytes(change + 1)
    if changed == body:
        return
    with pytest.raises(DataError):
        list(FrameReader().feed(len(changed).to_bytes(4) + stream[4:5] + changed))


def test_a_long_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(DataError, match="too long"):
        list(FrameReader().feed((FRAME_BYTES + 1).to_bytes(4) + b"\x06"))


@pytest.mark.parametrize("number", [0, 16, 255])
def test_an_unknown_type_is_refused(number: int) -> None:
    with pytest.raises(DataError, match="type"):
        list(FrameReader().feed(bytes(4) + bytes([number])))


def test_frames_before_a_wrong_one_are_delivered() -> None:
    reader = FrameReader().feed(encode(Heartbeat()) + encode(Received(7)) + b"\xff" * 10)
    assert next(reader) == Heartbeat()
    assert next(reader) == Received(7)
    with pytest.raises(DataError):
        next(reader)


def test_long_names_are_refused_and_long_reasons_are_cut() -> None:
    with pytest.raises(DataError, match="too long"):
        encode(Offer(1, 1, 1, "p" * (NAME_BYTES + 1), "operator"))
    with pytest.raises(DataError, match="fit"):
        encode(Received(1 << 64))
    (goodbye,) = FrameReader().feed(encode(Goodbye("ü" * REASON_BYTES)))
    assert goodbye == Goodbye("ü" * (REASON_BYTES // 2))


def test_a_grant_on_the_wire() -> None:
    words = (1).to_bytes(8) + (2).to_bytes(8) + (3).to_bytes(8) + (4).to_bytes(4) + (5).to_bytes(4)
    assert encode(Grant(1, 2, 3, 4, 5)) == len(words).to_bytes(4) + b"\x09" + words


@pytest.mark.parametrize("backlog", [-1, 1 << 32, 1 << 64, 1.5, "many", None])
def test_a_backlog_that_is_no_number_of_chunks_is_no_frame(backlog: Any) -> None:
    with pytest.raises(DataError, match="fit"):
        encode(Grant(1, 2, 3, 4, backlog))


def test_a_grant_of_the_first_protocol_is_none() -> None:
    with pytest.raises(DataError, match="Grant"):
        list(FrameReader().feed((28).to_bytes(4) + b"\x09" + bytes(28)))


@given(_DATA)
def test_data_headers_on_their_own(data: Data) -> None:
    block = encode_data(data)
    assert len(block) == DATA_BYTES
    assert decode_data(bytearray(block)) == data
