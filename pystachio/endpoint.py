"""Where a node listens: a host and a port, as people write them."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from pystachio.errors import InvalidRequest, shown

_MOST_PORT = 65_535


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Only this machine can reach it. A name other than localhost may be anything."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_endpoint(text: str) -> Endpoint:
    """`host:port` or `[::1]:port`. Raises InvalidRequest."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (colon and host and port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= _MOST_PORT):
        raise InvalidRequest(f"not an address: {shown(text)}", hint="write HOST:PORT, for example 127.0.0.1:7100")
    if any(character.isspace() or not character.isprintable() for character in host) or not _is_name(host):
        raise InvalidRequest(f"not the name of a host: {shown(host)}")
    return Endpoint(host, int(port))


def _is_name(host: str) -> bool:
    """Whether the resolver can be asked for it: a part between dots has 1 to 63 characters."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True
