"""Places where a node of a test cluster is made to fail: below its files, on its data path, and between its sockets.

They stand outside of the product, whose code knows nothing of them: `install` puts them in place before a node starts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh3_64, xxh3_64_intdigest

from pystachio import embedded
from pystachio.io_scheduler.core.request import Direction, Link
from pystachio.io_scheduler.devices import Device, DeviceName, OpenDevice
from pystachio.io_scheduler.devices.faulty import Fail, Fault, FaultyDevice
from pystachio.io_scheduler.network import reception, tcp_path, ucx_path


@dataclass(slots=True)
class Seams:
    """`failing` has, by direction, the error number and how many more chunks fail with it; `routes` has, by the port
    that a node is said to listen on, the one to connect to. `corrupt` is how many more pieces of data that are sent
    arrive as other ones than were checked.
    """

    routes: Mapping[int, int] = field(default_factory=dict)
    failing: dict[Direction, tuple[int, int]] = field(default_factory=dict)
    corrupt: int = 0
    corrupted: int = 0
    failed: int = 0

    def install(self) -> None:
        """Once, before the node is made."""
        choose = embedded.choose  # type: ignore[attr-defined]

        def choose_faulty(name: DeviceName = "auto", *, direct: bool = False, sparing: bool = False) -> OpenDevice:
            open_device = choose(name, direct=direct, sparing=sparing)

            def open_faulty(link: Link) -> Device:
                return FaultyDevice(
                    open_device(link),
                    lambda number, now: self._fault(link.direction),
                    timers=asyncio.get_running_loop(),
                    direction=link.direction,
                )

            return open_faulty

        embedded.choose = choose_faulty  # type: ignore[attr-defined]
        connect_frames = reception.connect_frames  # type: ignore[attr-defined]

        async def connect_on_route(host: str, port: int, node: str, tls: Any = None) -> Any:
            return await connect_frames(host, self.routes.get(port, port), node, tls)

        reception.connect_frames = connect_on_route  # type: ignore[attr-defined]
        tcp_path.xxh3_64 = self._checksum  # type: ignore[assignment, attr-defined]
        ucx_path.xxh3_64_intdigest = self._digest  # type: ignore[assignment, attr-defined]

    def fail(self, direction: str, number: int, chunks: int) -> None:
        self.failing[Direction(direction)] = (number, chunks)

    def _fault(self, direction: Direction) -> Fault | None:
        number, left = self.failing.get(direction, (0, 0))
        if left <= 0:
            return None
        self.failing[direction] = (number, left - 1)
        self.failed += 1
        return Fail(number)

    def _is_corrupt(self) -> bool:
        if not self.corrupt:
            return False
        self.corrupt -= 1
        self.corrupted += 1
        return True

    def _checksum(self, data: Any = b"") -> Any:
        return _Wrong(data) if len(data) and self._is_corrupt() else xxh3_64(data)

    def _digest(self, data: Any) -> int:
        """UCX's ends both ask for it: a sender's is wrong as well as a receiver's."""
        return xxh3_64_intdigest(data) ^ int(self._is_corrupt())


class _Wrong:
    """The checksum of bytes one bit of which arrives flipped."""

    def __init__(self, data: Any) -> None:
        self._digest = xxh3_64(data).intdigest() ^ 1

    def intdigest(self) -> int:
        return self._digest


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    import ctypes
    import signal

    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
