"""Proof, with each message of a connection, that it comes from who was met there, whole, once and in its turn.

The two ends share a session key (`handshake`). Each direction of each connection derives a key of its own from it, and
a MAC covers how many messages went before: one that was forged, changed, sent again, left out, moved or sent back does
not fit. It hides nothing: whoever watches reads along, unless the connection is under TLS (`tls`).
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import NamedTuple

from pystachio.errors import DataError

MAC_BYTES = 16
"""Of keyed BLAKE2b. A forger has one guess for each connection: the first wrong one ends it."""


class Seal:
    """One direction of one connection, at one of its ends."""

    def __init__(self, key: bytes, label: bytes) -> None:
        # Copied for each message: that takes two thirds of the time of beginning with the key again.
        self._keyed = blake2b(digest_size=MAC_BYTES, key=hmac.digest(key, label, "sha256"))
        self._count = 0

    def mac(self, message: bytes | bytearray | memoryview) -> bytes:
        """Of the next message."""
        count = self._count
        self._count = count + 1
        mac = self._keyed.copy()
        mac.update(count.to_bytes(8) + message)
        return mac.digest()

    def check(self, message: bytes | bytearray | memoryview, mac: bytes | bytearray | memoryview) -> None:
        """That it is the next message. Raises DataError, after which nothing of the connection may be believed."""
        if not hmac.compare_digest(self.mac(message), mac):
            raise DataError("a frame is not authentic")


class Seals(NamedTuple):
    """Of one connection, at one of its ends."""

    outgoing: Seal
    incoming: Seal


def make_seals(key: bytes, connection: bytes, *, is_initiator: bool) -> Seals:
    """`connection` tells apart those that share a session key."""
    to_listener = Seal(key, connection + b" to the listener")
    to_initiator = Seal(key, connection + b" to the initiator")
    return Seals(to_listener, to_initiator) if is_initiator else Seals(to_initiator, to_listener)
