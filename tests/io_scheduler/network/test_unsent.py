"""The limit of what the kernel holds follows what a connection carries; the socket is asked what it was told."""

from __future__ import annotations

import socket

import pytest

from pystachio.io_scheduler.network.unsent import (
    LEAST_UNSENT_BYTES,
    LOCAL_BYTES,
    MEASURED_BYTES,
    MOST_UNSENT_BYTES,
    UnsentLimit,
)

MIB = 1 << 20


def limit_after(rate: float, nbytes: int = MIB) -> int:
    """Of a connection that has carried messages of so many bytes at this rate for long enough."""
    limit, now = UnsentLimit(None, 100.0), 100.0
    for _ in range(2 * MEASURED_BYTES // nbytes):
        now += nbytes / rate
        limit.note(nbytes, now)
    return limit.nbytes


def test_it_is_what_passes_in_a_millisecond() -> None:
    assert limit_after(2e9) == pytest.approx(2e6, rel=0.25)
    assert limit_after(1e9, 4 * MIB) == pytest.approx(1e6, rel=0.25)


def test_slow_and_idle_connections_keep_the_least_and_nothing_has_more_than_the_most() -> None:
    assert limit_after(1e6) == LEAST_UNSENT_BYTES
    assert limit_after(1e12) == MOST_UNSENT_BYTES


def test_it_falls_again_when_the_connection_slows_down() -> None:
    limit, now = UnsentLimit(None, 0.0), 0.0
    for rate, expected in ((3e9, 3e6), (1e8, LEAST_UNSENT_BYTES), (3e9, 3e6)):
        for _ in range(2 * MEASURED_BYTES // MIB):
            now += MIB / rate
            limit.note(MIB, now)
        assert limit.nbytes == pytest.approx(expected, rel=0.25)


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="a limit of Linux and others")
def test_the_socket_is_told() -> None:
    with socket.socket() as connection:
        limit = UnsentLimit(connection, 0.0)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == LEAST_UNSENT_BYTES
        limit.note(MEASURED_BYTES, MEASURED_BYTES / 2e9)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == limit.nbytes > MIB


def test_a_connection_within_the_machine_holds_what_stays_in_caches() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        UnsentLimit(near, 0.0)
        held = near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert LOCAL_BYTES <= held <= 2 * LOCAL_BYTES
    with socket.socket() as unconnected:
        before = unconnected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        UnsentLimit(unconnected, 0.0)
        assert unconnected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
