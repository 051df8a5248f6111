"""What an operator's coroutine is given, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pystachio.records import record
from pystachio.runtime.clock import Clock
from pystachio.runtime.hot_cache import HotCache
from pystachio.runtime.memory import OperatorMemory
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.peers import PlanPeers
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.slots import Slot
from pystachio.runtime.streams import Stream
from pystachio.runtime.transfers import Transfers


@record
class PlanIdentity:
    """Who asks: carried by every transfer, reservation, log line and error of the plan."""

    plan_id: str
    priority: int
    """`io_scheduler.core.request.PriorityClass`."""


@record
class Context:
    """One operator's view of the node.

    `slots` are the plan's single-assignment values by key: scalar subqueries `("scalar", index)`, runtime filters
    `("filter", id)`, this node's parts of filters of all nodes `("filter part", id)`.
    """

    plan: PlanIdentity
    operator: str
    stream: Stream
    memory: OperatorMemory
    transfers: Transfers
    clock: Clock
    settings: ExecutionSettings
    metrics: OperatorMetrics
    slots: Mapping[tuple[str, int], Slot[object]]
    hot: HotCache[Any] = field(default_factory=lambda: HotCache(0))
    """What the node's plans keep for each other while nobody needs the memory."""
    chunks: object | None = None
    """What they keep for each other on disk (`operators.chunks.cache.ChunkCache`); None where they do not."""
    peers: PlanPeers | None = None
    """The other nodes that run the plan; None where it runs on this one alone."""
