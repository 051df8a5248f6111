"""Back ends: where the addresses of other nodes come from. Everything else is the same for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from pystachio.endpoint import parse_endpoint
from pystachio.errors import InvalidRequest, shown
from pystachio.runtime.membership.views import Address


class Discovery(Protocol):
    """For example a configured list, the place of one node that knows the others, or Ray's list of its actors."""

    def addresses(self) -> AsyncIterator[tuple[Address, ...]]:
        """All that is known, and all again whenever that changes; the iterator may end when nothing can change.

        The node's own address may be among them. An address whose name is not known has an empty one: a seed.
        """
        ...


class StaticDiscovery:
    """A list that does not change: of all nodes, of some, or of one seed."""

    def __init__(self, *listed: Address) -> None:
        self._listed = listed

    async def addresses(self) -> AsyncIterator[tuple[Address, ...]]:
        yield self._listed


def parse_address(text: str) -> Address:
    """`NAME=HOST:PORT`, or `HOST:PORT` for a seed; an IPv6 address in brackets. Raises InvalidRequest."""
    name, equals, place = text.rpartition("=")
    hint = "write HOST:PORT, or NAME=HOST:PORT in a list of nodes"
    try:
        host, port = parse_endpoint(place)
    except InvalidRequest as error:
        raise InvalidRequest(f"this is no address of a node: {shown(text)}", hint=hint) from error
    if not port or (equals and not name):
        raise InvalidRequest(f"this is no address of a node: {shown(text)}", hint=hint)
    return Address(name, host, port)
