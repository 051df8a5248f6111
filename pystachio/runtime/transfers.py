"""An operator's access to the I/O scheduler: the plan's client, and word to the plan that a transfer is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from pystachio.runtime.plan_entry import PlanEntry

if TYPE_CHECKING:
    from pystachio.errors import PystachioError
    from pystachio.io_scheduler.activity import IoActivity
    from pystachio.io_scheduler.client import HostBuffer, TransferClient
    from pystachio.io_scheduler.core.request import Extent, Lease, Link, PriorityClass
    from pystachio.io_scheduler.ledger import Ledger
    from pystachio.io_scheduler.prefetch import Prefetch


class Transfers(Protocol):
    """What an operator may ask of the I/O scheduler; `io_scheduler.client.TransferClient` says more."""

    def link(self, path: str) -> Link | None: ...

    def memory(self, lengths: Sequence[int]) -> list[memoryview]: ...

    def prefetch(self) -> Prefetch: ...

    async def read(
        self, path: str, extents: Sequence[Extent], *, criticality: int = 0, prefetch: Prefetch | None = None
    ) -> list[HostBuffer]: ...

    async def read_files(
        self, files: Sequence[tuple[str, int]], *, beside: str, prefetch: Prefetch | None = None
    ) -> list[HostBuffer | PystachioError]: ...

    async def read_into(
        self, path: str, offset: int, destination: memoryview | torch.Tensor, *, criticality: int = 0
    ) -> None: ...

    async def write(
        self, path: str, offset: int, source: memoryview | torch.Tensor, *, criticality: int = 0, spill: bool = False
    ) -> None: ...


class PlanTransfers:
    """The plan's client, counted as external work while a transfer is under way."""

    def __init__(self, client: TransferClient, entry: PlanEntry) -> None:
        self._client = client
        self._entry = entry

    def link(self, path: str) -> Link | None:
        return self._client.link(path)

    def memory(self, lengths: Sequence[int]) -> list[memoryview]:
        return self._client.memory(lengths)

    def prefetch(self) -> Prefetch:
        return self._client.prefetch()

    async def read(
        self, path: str, extents: Sequence[Extent], *, criticality: int = 0, prefetch: Prefetch | None = None
    ) -> list[HostBuffer]:
        self._entry.begin_external()
        try:
            return await self._client.read(path, extents, criticality=criticality, prefetch=prefetch)
        finally:
            self._entry.end_external()

    async def read_files(
        self, files: Sequence[tuple[str, int]], *, beside: str, prefetch: Prefetch | None = None
    ) -> list[HostBuffer | PystachioError]:
        self._entry.begin_external()
        try:
            return await self._client.read_files(files, beside=beside, prefetch=prefetch)
        finally:
            self._entry.end_external()

    async def read_into(
        self, path: str, offset: int, destination: memoryview | torch.Tensor, *, criticality: int = 0
    ) -> None:
        self._entry.begin_external()
        try:
            await self._client.read_into(path, offset, destination, criticality=criticality)
        finally:
            self._entry.end_external()

    async def write(
        self, path: str, offset: int, source: memoryview | torch.Tensor, *, criticality: int = 0, spill: bool = False
    ) -> None:
        self._entry.begin_external()
        try:
            await self._client.write(path, offset, source, criticality=criticality, spill=spill)
        finally:
            self._entry.end_external()


class TransferService(Protocol):
    """The part of `io_scheduler.service.IoSchedulerService` that a node drives."""

    ledger: Ledger

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def client(
        self, plan_id: str, priority: PriorityClass, *, deadline: float | None = None, weight: float = 1.0
    ) -> TransferClient: ...

    def close_plan(self, plan_id: str) -> None: ...

    def set_priority(self, plan_id: str, priority: PriorityClass, deadline: float | None = None) -> None: ...

    def activity(self) -> IoActivity: ...

    def set_lease(self, lease: Lease) -> None: ...
