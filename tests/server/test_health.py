from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pystachio.endpoint import Endpoint
from pystachio.errors import ResourceExhausted
from pystachio.server import health
from pystachio.server.health import HealthServer


@asynccontextmanager
async def opened(is_ready: bool) -> AsyncIterator[Endpoint]:
    async with HealthServer(Endpoint("127.0.0.1", 0), lambda: is_ready) as server:
        yield server.address


async def answer(address: Endpoint, request: bytes) -> bytes:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request)
        try:
            return await reader.read()
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("path", "is_ready", "status"),
    [
        ("/live", False, b"200"),
        ("/live", True, b"200"),
        ("/ready", False, b"503"),
        ("/ready?verbose", True, b"200"),
        ("/", True, b"404"),
        ("/metrics", True, b"404"),
    ],
)
async def test_answers(path: str, is_ready: bool, status: bytes) -> None:
    async with opened(is_ready) as address:
        said = await answer(address, f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        assert said.split()[:2] == [b"HTTP/1.1", status]
        head, _, body = said.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head


async def test_head_has_no_body_and_nothing_else_is_done() -> None:
    async with opened(True) as address:
        assert (await answer(address, b"HEAD /ready HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert b" 405 " in await answer(address, b"POST /ready HTTP/1.1\r\n\r\n")
        assert b" 405 " in await answer(address, b"\x00\xff\r\n\r\n")


async def test_requests_without_end_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(True) as address:
        assert await answer(address, b"x" * 100_000) == b""
        monkeypatch.setattr(health, "REQUEST_SECONDS", 0.01)
        assert await answer(address, b"GET /live") == b""


async def test_an_address_that_is_taken() -> None:
    async with opened(True) as address:
        with pytest.raises(ResourceExhausted, match="health"):
            await HealthServer(address, lambda: True).__aenter__()
