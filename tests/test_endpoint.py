from __future__ import annotations

import pytest

from pystachio.endpoint import Endpoint, parse_endpoint
from pystachio.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:7100", Endpoint("127.0.0.1", 7100)),
        (" node-1.example:0 ", Endpoint("node-1.example", 0)),
        ("[::1]:65535", Endpoint("::1", 65535)),
    ],
)
def test_addresses(text: str, expected: Endpoint) -> None:
    assert parse_endpoint(text) == expected
    assert parse_endpoint(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":1",
        "host:",
        "host:x",
        "host:65536",
        "::1:80",
        "host:-1",
        "host:\u0661",
        "a b:1",
        "a\n:1",
        "a..b:1",
        f"{'a' * 64}.b:1",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_endpoint(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert Endpoint(host, 1).is_loopback is expected
    assert not Endpoint("10.0.0.1", 1).is_loopback
    assert not Endpoint("localhost.example", 1).is_loopback
