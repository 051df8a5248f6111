"""A transfer as the simulator sees it: what the core knows of it, and who wants to hear of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.request import Extent, PriorityClass, Transfer

if TYPE_CHECKING:
    from pystachio.io_scheduler.simulation.node import SimulatedNode


class SimulatedTransfer:
    """`delivered` hears of every chunk of a `by_chunk` transfer, `ended` of its end, with an error if it failed."""

    __slots__ = ("context", "delivered", "ended", "node", "priority", "transfer")

    def __init__(
        self,
        transfer: Transfer,
        priority: PriorityClass,
        ended: Callable[[SimulatedTransfer, PystachioError | None], None],
        *,
        delivered: Callable[[SimulatedTransfer, Extent], None] | None = None,
        context: object = None,
    ) -> None:
        self.transfer = transfer
        self.priority = priority
        self.ended = ended
        self.delivered = delivered
        self.context = context
        """What whoever made it needs to go on."""
        self.node: SimulatedNode
        """Set by the node that it is submitted to."""
