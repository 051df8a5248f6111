"""The line that `pystachio-node serve` prints when it serves: who started it reads it."""

from __future__ import annotations

import re
from typing import NamedTuple

from pystachio.endpoint import Endpoint, parse_endpoint
from pystachio.errors import InvalidRequest

_READY = re.compile(r"(\S+) serves at (\S+?)(?:, health at (\S+))?\n?")


class Ready(NamedTuple):
    """`address` is where the node listens."""

    name: str
    address: Endpoint
    health: Endpoint | None = None

    def __str__(self) -> str:
        health = "" if self.health is None else f", health at {self.health}"
        return f"{self.name} serves at {self.address}{health}\n"


def parse_ready(line: str) -> Ready | None:
    """None for another line, and for none at all."""
    match = _READY.fullmatch(line)
    if match is None:
        return None
    try:
        return Ready(match[1], parse_endpoint(match[2]), None if match[3] is None else parse_endpoint(match[3]))
    except InvalidRequest:
        return None
