"""Nodes for tests of the runtime: without I/O, or with the real scheduler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import torch

from pystachio.io_scheduler.activity import IoActivity
from pystachio.io_scheduler.client import TransferClient
from pystachio.io_scheduler.core.request import Lease, PriorityClass
from pystachio.io_scheduler.ledger import Ledger
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import Node
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.transfers import TransferService


@dataclass
class NoTransfers:
    """A `TransferService` that only takes notes."""

    priorities: dict[str, PriorityClass] = field(default_factory=dict)
    deadlines: dict[str, float | None] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    running: bool = False

    async def start(self) -> None:
        self.running = True

    async def stop(self) -> None:
        self.running = False

    def client(
        self, plan_id: str, priority: PriorityClass, *, deadline: float | None = None, weight: float = 1.0
    ) -> TransferClient:
        self.priorities[plan_id] = priority
        self.deadlines[plan_id] = deadline
        return TransferClient(None, plan_id)  # type: ignore[arg-type]

    def close_plan(self, plan_id: str) -> None:
        self.closed.append(plan_id)

    def activity(self) -> IoActivity:
        return IoActivity((), (), {}, {})

    def set_lease(self, lease: Lease) -> None:
        self.leases.append(lease)

    def set_priority(self, plan_id: str, priority: PriorityClass, deadline: float | None = None) -> None:
        self.priorities[plan_id] = priority
        self.deadlines[plan_id] = deadline


def make_node(transfers: TransferService | None = None, *, memory: int = 1 << 20, workers: int = 2) -> Node:
    return Node(
        transfers=transfers if transfers is not None else NoTransfers(),
        settings=ExecutionSettings(workers=workers),
        memory={Tier.HOST: memory},
        device=torch.device("cpu"),
    )


async def settle() -> None:
    """Let every ready task run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)
