"""Everything under TLS, on both event loops: who has no certificate of the authority is not even asked for a secret."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pystachio.errors import InvalidRequest, NodeLost, PystachioError, Unauthorized
from pystachio.io_scheduler.devices.ucx_library import UcxReport
from pystachio.io_scheduler.network.frames import Carrier
from pystachio.io_scheduler.network.tls import TlsFiles, load
from pystachio.io_scheduler.network.transports import choose_transport
from pystachio.io_scheduler.network.visits import visit
from tests.io_scheduler.network.authorities import signed
from tests.io_scheduler.network.test_network import key, nodes, talk
from tests.io_scheduler.network.test_visits import server, token
from tests.io_scheduler.network.two_nodes import first_node, running_service

pytestmark = pytest.mark.timeout(60)

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return signed(tmp_path_factory.mktemp("tls"), "authority", "node")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return signed(tmp_path_factory.mktemp("tls"), "somebody", "node")


def run(main: Coroutine[Any, Any, None], loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_messages_and_bodies_pass_under_tls(files: TlsFiles, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        content = random.Random(3).randbytes(20 << 20)
        async with nodes("a", "b", tls=files, heard=lambda peer, body: heard.put_nowait(body)) as (a, b):
            await a.network.connect("b", *b.address)
            await b.joined.get()
            sending = [
                asyncio.create_task(sender.network.send(receiver, key(1), memoryview(content)))
                for sender, receiver in ((a, "b"), (b, "a"))
            ]
            a.network.tell("b", content[: 10 << 20])
            received = await asyncio.gather(a.network.receive("b", key(1)), b.network.receive("a", key(1)))
            assert [bytes(each) == content for each in received] == [True, True]  # type: ignore[arg-type]
            await asyncio.gather(*sending)
            assert await heard.get() == content[: 10 << 20]
            await talk(a, b, 2)
            a.network.disconnect("b", "that was all")
            assert await b.lost.get() == "a"

    run(main(), loop)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_clients_pass_under_tls(files: TlsFiles, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with server(tls=files) as node, await visit(*node.address, token(), tls=files) as client:
            for length in (0, 4 << 20, 1 << 20):
                client.tell(bytes(length))
            assert [len(await client.receive()) for _ in range(3)] == [0, 4 << 20, 1 << 20]
            guest = await node.visits.get()
            for _ in range(20):
                guest.tell(bytes(8 << 20))
                draining = asyncio.create_task(guest.drained())
                assert await client.receive() == bytes(8 << 20)
                await draining

    run(main(), loop)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_who_has_no_certificate_of_the_authority_is_sent_away(
    files: TlsFiles, others: TlsFiles, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        async with server(tls=files, handshake_seconds=1.0) as node:
            for wrong in (others, None):
                with pytest.raises((Unauthorized, NodeLost)) as caught:
                    await visit(*node.address, token(), tls=wrong)
                assert ("not of our authority" in str(caught.value)) is (wrong is others)
                assert ("TLS" if wrong is None else "authority") in str(caught.value.hint)
            stranger = load(others).connecting
            stranger.verify_mode = ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(*node.address, ssl=stranger)
            with suppress(ConnectionError, ssl.SSLError):
                assert await reader.read() == b""
            writer.close()
            assert node.visits.empty()
            async with await visit(*node.address, token(), tls=files):
                await node.visits.get()
        async with server(handshake_seconds=1.0) as node:
            with pytest.raises(NodeLost) as caught:
                await visit(*node.address, token(), tls=files)
            assert "TLS" in str(caught.value.hint)

    run(main(), loop)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_who_is_refused_by_tls_is_told_of(
    files: TlsFiles, others: TlsFiles, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        refused: asyncio.Queue[tuple[str, PystachioError]] = asyncio.Queue()

        def refuse(address: str, error: PystachioError) -> None:
            refused.put_nowait((address, error))

        async with server(tls=files, handshake_seconds=0.5, refused=refuse) as node, asyncio.timeout(10):
            stranger = load(others).connecting
            stranger.verify_mode = ssl.CERT_NONE
            for wrong in (stranger, None):
                reader, writer = await asyncio.open_connection(*node.address, ssl=wrong)
                with suppress(ConnectionError, ssl.SSLError):
                    writer.write(b"no TLS" * 100)
                    assert await reader.read() == b""
                writer.close()
                address, error = await refused.get()
                assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
                assert isinstance(error, Unauthorized)
                assert re.search("CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER", error.message)
            for says in (b"", None):  # it goes, or stays and says nothing
                _, writer = await asyncio.open_connection(*node.address)
                own = writer.get_extra_info("sockname")
                if says is not None:
                    writer.close()
                address, error = await refused.get()
                assert (address, type(error)) == (f"127.0.0.1:{own[1]}", NodeLost)
                writer.close()

    run(main(), loop)


async def test_nothing_older_than_tls_1_3_is_spoken(files: TlsFiles) -> None:
    contexts = load(files)
    for context in (contexts.listening, contexts.connecting):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    old = contexts.connecting
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    async with server(tls=files) as node:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(*node.address, ssl=old)


async def test_ucx_is_not_under_tls(files: TlsFiles) -> None:
    report = UcxReport("1.20.1", ("rc_mlx5", "tcp"))
    both = "transport asks for UCX, and tls_certificate for TLS"
    for name in ("ucx", "rdma"):
        with pytest.raises(InvalidRequest, match=both):
            choose_transport(name, report, with_tls=True)  # type: ignore[arg-type]
    assert choose_transport("auto", report, with_tls=True).carrier is Carrier.TCP
    async with running_service() as service:
        with pytest.raises(InvalidRequest, match=both):
            first_node(service, "UCX", tls=files)


def test_files_that_are_none_are_named(files: TlsFiles, others: TlsFiles, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for wrong, name in (
        (replace(files, authority=tmp_path / "none"), "none"),
        (replace(files, authority=empty), "empty"),
        (replace(files, certificate=empty), "empty"),
        (replace(files, key=tmp_path / "none"), "none"),
        (replace(files, key=others.key), "node.key"),
        (replace(others, authority=files.authority), "not of the authority"),
    ):
        with pytest.raises(PystachioError, match=name) as caught:
            load(wrong)
        assert isinstance(caught.value, InvalidRequest)
        assert "tls_" in str(caught.value.hint)


def test_a_key_that_others_can_read_is_refused(files: TlsFiles, tmp_path: Path) -> None:
    key = tmp_path / "node.key"
    key.write_bytes(files.key.read_bytes())
    key.chmod(0o640)
    with pytest.raises(Unauthorized, match="mode 0640") as caught:
        load(replace(files, key=key))
    assert f"chmod 600 {key}" in str(caught.value.hint)
    key.chmod(0o600)
    load(replace(files, key=key))


def test_a_client_s_certificate_need_not_be_a_node_s(tmp_path: Path) -> None:
    load(signed(tmp_path, "authority", "client", purpose="clientAuth"))


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_who_has_not_ended_its_tls_handshake_counts_as_a_stranger(
    files: TlsFiles, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        async with server(tls=files, strangers=3, handshake_seconds=1.0) as node:
            silent = [await asyncio.open_connection(*node.address) for _ in range(3)]
            await asyncio.sleep(0.05)
            async with await visit(*node.address, token(), tls=files) as client:  # in place of the first
                client.tell(b"hello")
                assert await client.receive() == b"hello"
            async with asyncio.timeout(5):
                for waiting, _ in silent:
                    with suppress(ConnectionResetError):
                        assert await waiting.read() == b""  # the others after a second
            assert node.network.statistics().refused >= 1
            for _, writer in silent:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    run(main(), loop)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_crowd_that_comes_at_once_is_sent_away(
    files: TlsFiles, loop: Callable[[], asyncio.AbstractEventLoop], is_encrypted: bool
) -> None:
    """Whoever has to go before anybody has looked at him leaves no connection behind."""

    async def main() -> None:
        async with server(tls=files if is_encrypted else None, strangers=3, handshake_seconds=0.3) as node:
            crowd = [socket.create_connection(node.address) for _ in range(40)]  # between two turns of the loop
            for each in crowd:
                each.setblocking(False)
            async with asyncio.timeout(5):
                for each in crowd:
                    with suppress(ConnectionResetError):
                        while await asyncio.get_running_loop().sock_recv(each, 1024):
                            pass
                    each.close()
            assert node.network.statistics().refused == 40

    run(main(), loop)
