"""The two links of a node's network, and what its messages need of the scheduler and of time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pystachio.io_scheduler.core.request import Link
from pystachio.io_scheduler.devices import Device
from pystachio.io_scheduler.history import History
from pystachio.io_scheduler.network.messages import MessageDevice
from pystachio.io_scheduler.submission import Request, Submission


class TransferService(Protocol):
    """What a network needs of `service.IoSchedulerService`, which says more."""

    @property
    def history(self) -> History: ...

    def now(self) -> float: ...

    def submit(
        self,
        plan_id: str,
        path: str,
        link: Link,
        requests: Sequence[Request],
        criticality: int = 0,
        operator: str = "",
    ) -> Submission: ...

    def abandon(self, submission: Submission) -> None: ...

    def boost(self, submission: Submission, plan_id: str, criticality: int = 0) -> None: ...

    def register_device(self, link: Link, device: Device) -> None: ...


class Timers(Protocol):
    """An event loop's, or virtual ones."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle: ...


class NetworkLink(NamedTuple):
    """One direction of the node's network, and the device that serves it."""

    link: Link
    device: MessageDevice
