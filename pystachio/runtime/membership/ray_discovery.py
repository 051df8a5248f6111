"""The back end `ray`: a supervisor, which is Ray's, tells its node where the nodes of all supervisors are.

The node itself is no part of Ray: it neither imports it nor opens one of its ports. Addresses are all it is told, one
line for each change, through the pipe that also says that the supervisor is still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from pystachio.errors import InternalError, InvalidRequest
from pystachio.runtime.membership.discovery import parse_address
from pystachio.runtime.membership.views import Address

LONGEST_LINE = 1 << 20
"""Bytes; some 20,000 addresses."""


def line_of(addresses: Iterable[str]) -> bytes:
    """What a supervisor writes: all addresses, each as `NAME=HOST:PORT`."""
    return " ".join(addresses).encode() + b"\n"


def addresses_in(line: bytes) -> tuple[Address, ...]:
    """Raises InvalidRequest for what is no line of addresses."""
    try:
        words = line.decode().split()
    except UnicodeDecodeError:
        raise InvalidRequest("a supervisor's list of addresses is no text") from None
    return tuple(parse_address(word) for word in words)


class RayDiscovery:
    """`tell` is for any thread, `addresses` for one task."""

    def __init__(self) -> None:
        self._latest: tuple[Address, ...] | None = None
        self._told: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def tell(self, line: bytes) -> None:
        """All that is known now. Raises InvalidRequest for what is no line of addresses, which changes nothing."""
        self._latest = addresses_in(line)
        if self._loop is not None and self._told is not None:
            try:
                self._loop.call_soon_threadsafe(self._told.set)
            except RuntimeError:  # the loop is closed: the node has ended
                return

    async def addresses(self) -> AsyncIterator[tuple[Address, ...]]:
        """Of several changes that were told at once, only the last is seen: it says all."""
        if self._loop is not None:
            raise InternalError("a supervisor's addresses are read by one task")
        self._told = told = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        seen: tuple[Address, ...] | None = None
        while True:
            latest = self._latest
            if latest is not None and latest != seen:
                seen = latest
                yield latest
            else:
                await told.wait()
                told.clear()
