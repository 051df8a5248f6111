from __future__ import annotations

import pytest

from pystachio.endpoint import Endpoint
from pystachio.server.ready_line import Ready, parse_ready


@pytest.mark.parametrize("health", [None, Endpoint("::1", 8080)])
def test_what_is_printed_is_read(health: Endpoint | None) -> None:
    ready = Ready("n1", Endpoint("127.0.0.1", 7100), health)
    assert parse_ready(str(ready)) == ready


@pytest.mark.parametrize(
    "line", ["", "\n", "n1 serves at\n", "n1 serves at nowhere\n", "n1 serves at h:99999\n", "a b serves at h:1\n"]
)
def test_other_lines_are_none(line: str) -> None:
    assert parse_ready(line) is None
