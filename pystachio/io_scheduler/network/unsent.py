"""How much of a connection's data the kernel may hold before it is on its way: whatever is urgent waits behind it."""

from __future__ import annotations

import socket

UNSENT_SECONDS = 0.001
"""Of what the connection carries. Less than it takes until the sender is awake again leaves the network idle."""
LEAST_UNSENT_BYTES = 512 << 10
MOST_UNSENT_BYTES = 4 << 20
MEASURED_BYTES = 16 << 20
"""Sent between two looks at how long they took."""
LOCAL_BYTES = 480 << 10
"""Held by the kernel of a connection that stays on this machine, which counts them twice for what it adds: what one end
has written stays in the processor's caches until the other end reads it. Of the megabytes that the kernel would choose
it does not: loopback then carries a fourth to a half less. A network needs what is on its way, and gets the kernel's
choice."""
_CHANGE = 4
"""The limit follows changes of more than a fourth."""


class UnsentLimit:
    """Of one connection's socket: what it carries in `UNSENT_SECONDS`, as far as it had something to carry.

    What the kernel says of how fast it delivers does not count: on a busy machine it delivers fast, and seldom.
    """

    def __init__(self, connection: socket.socket | None, now: float) -> None:
        """None is a connection without a limit; `now` in seconds of any clock."""
        self._connection = connection if hasattr(socket, "TCP_NOTSENT_LOWAT") else None
        self.nbytes = 0
        self._sent = 0
        self._since = now
        self._set(LEAST_UNSENT_BYTES)
        if connection is not None and _is_local(connection):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_BYTES)

    def note(self, nbytes: int, now: float) -> None:
        """So many bytes are about to be written."""
        self._sent += nbytes
        if self._sent >= MEASURED_BYTES:
            rate = self._sent / max(now - self._since, UNSENT_SECONDS)
            self._sent, self._since = 0, now
            self._set(max(LEAST_UNSENT_BYTES, min(int(rate * UNSENT_SECONDS), MOST_UNSENT_BYTES)))

    def _set(self, nbytes: int) -> None:
        if abs(nbytes - self.nbytes) * _CHANGE > self.nbytes:
            self.nbytes = nbytes
            if self._connection is not None:
                self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, nbytes)


def _is_local(connection: socket.socket) -> bool:
    """Whether both ends have the same address, which is this machine's."""
    try:
        return bool(connection.getpeername()[0] == connection.getsockname()[0])
    except OSError:  # it has ended, or was never connected
        return False
