"""What nodes say to each other: typed frames of a fixed layout, plain data in and bytes out.

A frame is its length (four bytes), its type (one) and its body: fixed fields in network order, then texts or byte
strings, each with its length (two bytes), and, once the handshake is over, a MAC (`seal`). Nothing in a frame can make
the reader execute anything, allocate more than `FRAME_BYTES`, or read past it; what does not parse is a DataError.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from pystachio.errors import DataError
from pystachio.io_scheduler.network.seal import MAC_BYTES, Seal

PROTOCOL_VERSION = 5
"""2: a grant says how much its receiver still waits for. 3: every frame is sealed; bodies, and clients. 4: long
messages of nodes come as data, each in a class. 5: nodes say which paths of a source they have nothing of."""
FRAME_BYTES = 16 << 10
"""The longest body of a frame."""
NAME_BYTES = 255
"""The longest name of a node, plan or operator, in UTF-8."""
REASON_BYTES = 1000
NONCE_BYTES = 32
INSTANCE_BYTES = 16
PROOF_BYTES = 32
PART_BYTES = FRAME_BYTES - 6
"""The longest part of a body."""


class Role(IntEnum):
    """What a connection is for: a pair of nodes has one CONTROL, and one DATA where `tcp` carries the data.

    CLIENT is from somebody who is no node.
    """

    CONTROL = 1
    DATA = 2
    CLIENT = 3


class Carrier(IntEnum):
    """What carries the data between two nodes."""

    TCP = 1
    UCX = 2


class Hello(NamedTuple):
    """The first frame of whoever connects. `session` is that of the control connection when `role` is DATA, else 0.

    `credential` is the public part of a client's token; a node, which knows the secret itself, has none.
    """

    version: int
    role: int
    carrier: int
    epoch: int
    session: int
    instance: bytes
    nonce: bytes
    node: str
    peer: str
    credential: str


class Challenge(NamedTuple):
    """The answer: who listens, and the number that must go into the proof."""

    carrier: int
    epoch: int
    instance: bytes
    nonce: bytes
    node: str


class Proof(NamedTuple):
    """Whoever connects knows the secret."""

    proof: bytes


class Welcome(NamedTuple):
    """So does whoever listens; the session begins."""

    proof: bytes


class Refusal(NamedTuple):
    """No session, and why."""

    code: int
    reason: str


class Heartbeat(NamedTuple):
    """The event loop of the sender turns."""


class DataAddress(NamedTuple):
    """Where UCX of the sender is reached."""

    address: bytes


class Offer(NamedTuple):
    """The sender has a message of `length` bytes for the operator of the plan."""

    message: int
    length: int
    sequence: int
    plan_id: str
    operator: str


class Grant(NamedTuple):
    """The receiver has room for this part of the message, which is awaited under the number `grant`.

    `backlog` is how much of the plan it still waits for, this part included, in whole chunks (`backlog`).
    """

    message: int
    grant: int
    offset: int
    length: int
    backlog: int


class Data(NamedTuple):
    """What answers a grant: its bytes follow (or come through UCX), or none do, when `length` is 0, because of `code`.

    `checksum` is XXH3-64 of the bytes; not `is_checked` when they never were in host memory.
    """

    length: int
    code: int
    is_checked: bool
    grant: int
    session: int
    epoch: int
    checksum: int


class Received(NamedTuple):
    """The receiver has the whole message, checked."""

    message: int


class Refuse(NamedTuple):
    """The receiver does not want the message, or no more of it."""

    message: int
    code: int
    reason: str


class Withdraw(NamedTuple):
    """The sender gives the message up; what is granted of it is still answered."""

    message: int
    code: int
    reason: str


class Goodbye(NamedTuple):
    """The sender closes the connection on purpose."""

    reason: str


class BodyPart(NamedTuple):
    """Of a body that is too long for one frame: its next bytes, and how many are left after them (`bodies`)."""

    left: int
    content: bytes


Frame = (
    Hello
    | Challenge
    | Proof
    | Welcome
    | Refusal
    | Heartbeat
    | DataAddress
    | Offer
    | Grant
    | Data
    | Received
    | Refuse
    | Withdraw
    | Goodbye
    | BodyPart
)


class _Layout(NamedTuple):
    """The fixed fields, the longest length of each text (str) or byte string that follows them, and the places of
    flags: these are 0 or 1, so that no two blocks are the same frame."""

    number: int
    kind: Any
    fixed: Struct
    tails: tuple[tuple[type[str] | type[bytes], int], ...] = ()
    flags: tuple[int, ...] = ()


_NAME = (str, NAME_BYTES)
_REASON = (str, REASON_BYTES)
_LAYOUTS = (
    _Layout(1, Hello, Struct(f"!HBBQQ{INSTANCE_BYTES}s{NONCE_BYTES}s"), (_NAME, _NAME, _NAME)),
    _Layout(2, Challenge, Struct(f"!BQ{INSTANCE_BYTES}s{NONCE_BYTES}s"), (_NAME,)),
    _Layout(3, Proof, Struct(f"!{PROOF_BYTES}s")),
    _Layout(4, Welcome, Struct(f"!{PROOF_BYTES}s")),
    _Layout(5, Refusal, Struct("!B"), (_REASON,)),
    _Layout(6, Heartbeat, Struct("!")),
    _Layout(7, DataAddress, Struct("!"), ((bytes, FRAME_BYTES - 2),)),
    _Layout(8, Offer, Struct("!QQQ"), (_NAME, _NAME)),
    _Layout(9, Grant, Struct("!QQQII")),
    _Layout(10, Data, Struct("!IB?QQQQ"), flags=(5,)),
    _Layout(11, Received, Struct("!Q")),
    _Layout(12, Refuse, Struct("!QB"), (_REASON,)),
    _Layout(13, Withdraw, Struct("!QB"), (_REASON,)),
    _Layout(14, Goodbye, Struct("!"), (_REASON,)),
    _Layout(15, BodyPart, Struct("!I"), ((bytes, PART_BYTES),)),
)
_BY_KIND = {layout.kind: layout for layout in _LAYOUTS}
_BY_NUMBER = {layout.number: layout for layout in _LAYOUTS}
_HEAD = Struct("!IB")
_TAIL_LENGTH = Struct("!H")
_DATA = _BY_KIND[Data].fixed

FRAME_TYPES: tuple[type[Frame], ...] = tuple(layout.kind for layout in _LAYOUTS)
DATA_BYTES = _DATA.size
"""A `Data` on a data connection, where nothing else is ever sent, is its fixed fields alone."""


def encode(frame: Frame, seal: Seal | None = None) -> bytes:
    """`seal` is of the direction it goes, once there is one. Reasons are cut where they are too long.

    Raises DataError for any other text or byte string that is too long.
    """
    layout = _BY_KIND[type(frame)]
    fields: tuple[Any, ...] = frame
    fixed = len(fields) - len(layout.tails)
    try:
        parts = [layout.fixed.pack(*fields[:fixed])]
    except StructError as error:
        raise DataError(f"a number does not fit its frame: {frame!r}") from error
    for value, (kind, longest) in zip(fields[fixed:], layout.tails, strict=True):
        tail: bytes = value.encode("utf-8", "replace") if kind is str else value
        if len(tail) > longest:
            if longest != REASON_BYTES:
                raise DataError(f"a name is too long for the network: {len(tail):,} of {longest:,} bytes")
            tail = tail[:longest].decode("utf-8", "ignore").encode()
        parts += (_TAIL_LENGTH.pack(len(tail)), tail)
    body = b"".join(parts)
    block = _HEAD.pack(len(body), layout.number) + body
    return block if seal is None else block + seal.mac(block)


def encode_data(data: Data) -> bytes:
    """For a data connection."""
    return _DATA.pack(*data)


def decode_data(block: bytes | bytearray) -> Data:
    """The inverse; any `DATA_BYTES` bytes are some `Data`, whether it makes sense is for others to say."""
    return Data(*_DATA.unpack(block))


class FrameReader:
    """Frames out of a stream of bytes, however they are cut."""

    def __init__(self) -> None:
        self._bytes = b""
        self._start = 0
        self._seal: Seal | None = None

    def __len__(self) -> int:
        """Bytes that were not read yet."""
        return len(self._bytes) - self._start

    def unseal(self, seal: Seal) -> None:
        """Every frame from here on has a MAC of this seal, also those whose bytes have come."""
        self._seal = seal

    def add(self, received: bytes | memoryview) -> None:
        # Frames come whole, as a rule: what is left is nothing, or short.
        self._bytes = self._bytes[self._start :] + received
        self._start = 0

    def next(self) -> Frame | None:
        """The next frame, if it is complete. Raises DataError for what is none; nothing may be read after it."""
        start = self._start
        if len(self._bytes) - start < _HEAD.size:
            return None
        length, number = _HEAD.unpack_from(self._bytes, start)
        if length > FRAME_BYTES:
            raise DataError(f"a frame is too long: {length:,} bytes")
        end = start + _HEAD.size + length
        sealed_end = end if self._seal is None else end + MAC_BYTES
        if sealed_end > len(self._bytes):
            return None
        self._start = sealed_end
        block = self._bytes[start:end]
        if self._seal is not None:
            self._seal.check(block, self._bytes[end:sealed_end])
        return _decode(number, block[_HEAD.size :])

    def feed(self, received: bytes | memoryview) -> Iterator[Frame]:
        """The frames that are complete now; raises like `next`."""
        self.add(received)
        while (frame := self.next()) is not None:
            yield frame


def _decode(number: int, body: bytes) -> Frame:
    layout = _BY_NUMBER.get(number)
    if layout is None:
        raise DataError(f"a frame of no known type: {number}")
    try:
        fields = list(layout.fixed.unpack_from(body))
        if any(body[place] > 1 for place in layout.flags):
            raise DataError(f"a frame's flag is neither 0 nor 1: {layout.kind.__name__}")
        position = layout.fixed.size
        for kind, longest in layout.tails:
            (length,) = _TAIL_LENGTH.unpack_from(body, position)
            position += _TAIL_LENGTH.size
            tail = body[position : position + length]
            if len(tail) != length or length > longest:
                raise DataError(f"a frame's text is cut or too long: {layout.kind.__name__}")
            fields.append(tail.decode() if kind is str else tail)
            position += length
    except (StructError, UnicodeDecodeError) as error:
        raise DataError(f"a frame does not parse ({error}): {layout.kind.__name__}") from error
    if position != len(body):
        raise DataError(f"a frame is longer than its content: {layout.kind.__name__}")
    frame: Frame = layout.kind(*fields)
    return frame
