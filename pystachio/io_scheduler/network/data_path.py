"""What carries the bytes between two nodes: one interface, two ways (`tcp_path`, `ucx_path`).

The control connection says what may move: a receiver expects a grant's bytes in a buffer, then sends the grant; the
sender answers each grant exactly once, with its bytes or with none. A path holds no queue worth its name: what it is
given was dispatched by the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.request import PathTaken
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.frames import Data


class Arrival(NamedTuple):
    """The end of a grant at its receiver: `transferred` bytes came, and whether they are what was asked for."""

    transferred: int
    error: PystachioError | None = None


Arrived = Callable[[Arrival], None]
Sent = Callable[[PystachioError | None], None]


class DataPath(Protocol):
    """Between this node and one peer. Everything is called on the loop; callbacks may come inside the call."""

    @property
    def taken(self) -> PathTaken: ...

    def expect(self, grant: int, buffer: Buffer, arrived: Arrived) -> None:
        """The bytes of `grant` go into `buffer`, which is as long; `arrived` is called once, when it is not written
        any more."""
        ...

    def give_up(self, grant: int) -> None:
        """Nobody wants the bytes any more: `arrived` follows as soon as the buffer is safe, if it has not come yet.

        Where only the sender can end it and does not, the path breaks after `NetworkLimits.give_up_seconds`.
        """
        ...

    def send(self, grant: int, buffer: Buffer, sent: Sent) -> None:
        """Answer a grant; `sent` is called once, when `buffer` may be reused."""
        ...

    def take_back(self, grant: int) -> None:
        """Nobody wants to send it any more: `sent` is called with Cancelled if `send` has not begun with it.

        What is on its way goes on; when the receiver does not take it, the path breaks after `give_up_seconds`.
        """
        ...

    def void(self, grant: int, code: int) -> None:
        """Answer a grant with nothing, because of `code`."""
        ...

    def take(self, data: Data) -> None:
        """A `Data` that came by the control connection, for paths whose bytes have no header of their own."""
        ...

    def close(self, error: PystachioError) -> None:
        """Every `arrived` and `sent` that is due is called with `error`; no buffer is touched any more. Idempotent."""
        ...
