"""Addresses as people write them, and lists that do not change."""

from __future__ import annotations

import pytest

from pystachio.errors import InvalidRequest
from pystachio.runtime.membership.discovery import StaticDiscovery, parse_address
from pystachio.runtime.membership.views import Address
from tests import virtual_time


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:8815", Address("", "host", 8815)),
        ("n1=10.0.0.1:1", Address("n1", "10.0.0.1", 1)),
        ("n1=[::1]:65535", Address("n1", "::1", 65_535)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:1e3", "host:\u0661", "=host:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no address of a node"):
        parse_address(text)


def test_a_static_list_is_told_once() -> None:
    async def main() -> None:
        listed = (Address("a", "host", 1), Address("", "host", 2))
        assert [told async for told in StaticDiscovery(*listed).addresses()] == [listed]

    virtual_time.run(main())
