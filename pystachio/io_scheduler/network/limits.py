"""What a network asks of its links, and how long it is patient."""

from __future__ import annotations

from dataclasses import dataclass

from pystachio.io_scheduler.core.request import LinkLimits

EGRESS_CHUNKS = 2
"""They keep a sending port busy; every further chunk inside would go before whatever is urgent, or waited for most."""

CHUNK_DEVICE_SECONDS = 0.002
"""Of a fast network's time in one chunk: a few times what a chunk costs both ends beyond its bytes. It is also what the
first urgent message waits for; while others are expected, chunks are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """A grant is for `chunk_bytes` or less, on a fast network for up to `fast_chunks` times as much, or a quarter more;
    both ends of a connection must use the same.

    A node may have `window_bytes` under way to it, `peer_bytes` of them from one peer, while chunks are not longer. A
    message that makes no progress for `wait_seconds` (its receiver does not ask for it, its sender does not offer it)
    ends with ResourceExhausted. A granted chunk may take `chunk_seconds`, and must have ended `give_up_seconds` after
    nobody wanted it any more, or the peer is lost. So is one whose loop has not turned for `dead_seconds`; after
    `suspect_seconds` it is suspect. A peer may have `offers` messages offered that nobody has asked for, of up to
    `message_bytes` each.
    """

    chunk_bytes: int = 1 << 20
    fast_chunks: int = 4
    window_bytes: int = 4 << 20
    peer_bytes: int = 2 << 20
    wait_seconds: float = 300.0
    chunk_seconds: float = 60.0
    give_up_seconds: float = 10.0
    handshake_seconds: float = 5.0
    heartbeat_seconds: float = 0.5
    suspect_seconds: float = 3.0
    dead_seconds: float = 4.0
    offers: int = 65_536
    message_bytes: int = 1 << 30
    strangers: int = 64
    """Connections that have not proved themselves yet, at once."""
    visitors: int = 128
    """Clients, at once; half of them with one credential, and half of them observers."""
    visitor_body_bytes: int = 4 << 20
    """The longest body that a client may send: a statement, not data."""

    @property
    def grant_bytes(self) -> int:
        """The longest grant: the scheduler lets up to a quarter of a chunk join the last one of a message."""
        longest = self.fast_chunks * self.chunk_bytes
        return longest + longest // 4

    def ingress(self) -> LinkLimits:
        """A chunk that fails is lost with its message: there is nothing to try again.

        Chunks do not become smaller than `chunk_bytes` on slow networks: each is an exchange of frames and several
        turns of both loops, which halves what loopback carries in chunks of 256 KiB, and so makes the network look
        slow. For the same reason they are longer than on disks where they may be.
        """
        return LinkLimits(
            chunk_bytes=self.fast_chunks * self.chunk_bytes,
            smallest_chunk_bytes=self.chunk_bytes,
            window_bytes=self.window_bytes,
            device_seconds=CHUNK_DEVICE_SECONDS,
            peer_bytes=self.fast_chunks * self.peer_bytes,
            urgent_bytes=self.chunk_bytes,
            timeout_seconds=self.chunk_seconds,
            attempts=1,
        )

    def egress(self) -> LinkLimits:
        """What a grant asks for is never cut again: it is answered by one piece of data.

        The window is fixed: what a chunk takes here is how soon its receiver reads. Each peer has one chunk of it,
        however long, or as many short ones as a chunk and its quarter hold: one
        that does not read, or claims a longer backlog than it has, leaves the rest to others. How much is on its way at
        all is up to the receivers' windows.
        """
        return LinkLimits(
            chunk_bytes=self.grant_bytes,
            smallest_chunk_bytes=self.grant_bytes,
            window_bytes=EGRESS_CHUNKS * self.chunk_bytes,
            calibrated=False,
            peer_bytes=self.chunk_bytes + self.chunk_bytes // 4,
            urgent_bytes=self.chunk_bytes,
            timeout_seconds=self.chunk_seconds,
            attempts=1,
        )
