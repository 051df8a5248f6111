"""What the core knows of a plan, and how far each of its transfers has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.policy import due
from pystachio.io_scheduler.core.request import Extent, PriorityClass, Transfer
from pystachio.io_scheduler.core.resources import CreditBudget

if TYPE_CHECKING:
    from pystachio.io_scheduler.core.flow import Line
    from pystachio.io_scheduler.core.link_queue import LinkQueue


@dataclass(slots=True, eq=False)
class Plan:
    """What the scheduler knows of a plan. `priority` and `weight` are those in force, which a lease may have set."""

    plan_id: str
    local_priority: PriorityClass
    local_weight: float
    deadline: float | None
    opened_at: float
    priority: PriorityClass = PriorityClass.NORMAL
    weight: float = 1.0
    cancelled: bool = False
    priority_is_local: bool = False
    """The priority was changed here, and the centre's leases have not yet followed."""
    transfers: dict[int, TransferProgress] = field(default_factory=dict)
    shared: dict[TransferProgress, None] = field(default_factory=dict)
    """Transfers of this plan for which others wait, and those of others for which this one waits."""

    def due(self, taken: float) -> float:
        """When an interactive plan that took so many seconds of a link should have ended."""
        return due(self.deadline, self.opened_at, taken)

    def precedes(self, other: Plan) -> bool:
        """Whether it is more urgent; plans of a class share, except that interactive ones go by deadline."""
        if self.priority != other.priority:
            return self.priority < other.priority
        return self.priority is PriorityClass.INTERACTIVE and self.due(0.0) < other.due(0.0)


class TransferProgress:
    """How far a transfer has come.

    `payer` is whose line it waits in: its own plan's, or that of the most urgent of its `boosters`. `outstanding` maps
    the offset of each chunk inside the device to its length and when it was started. `redo` holds chunks that failed
    and may be started again, with their credit; None when there are none. `credited` bytes of its `budget` are its own.
    `entry` is its place in the `line` where it waits, None when it does not. Once `error` is set it can no longer
    succeed and nothing more of it is started.
    """

    __slots__ = (
        "attempts",
        "backing_off",
        "boosters",
        "budget",
        "by_chunk",
        "credited",
        "criticality",
        "dispatched",
        "entry",
        "error",
        "gate",
        "length",
        "line",
        "outstanding",
        "payer",
        "plan",
        "queue",
        "redo",
        "sequence",
        "submitted_at",
        "transfer",
        "transfer_id",
    )

    def __init__(
        self,
        transfer: Transfer,
        queue: LinkQueue,
        plan: Plan,
        submitted_at: float,
        sequence: int,
        budget: CreditBudget | None,
        gate: LinkQueue | None,
    ) -> None:
        self.transfer = transfer
        self.transfer_id = transfer[0]
        self.queue = queue
        self.plan = plan
        self.payer = plan
        self.submitted_at = submitted_at
        self.sequence = sequence
        self.criticality = transfer.criticality
        self.length = transfer.extent[1]
        self.by_chunk = transfer.by_chunk
        self.budget = budget
        self.gate = gate
        self.dispatched = 0
        self.outstanding: dict[int, tuple[int, float]] = {}
        self.redo: list[Extent] | None = None
        self.backing_off = 0
        self.attempts: dict[int, int] | None = None
        self.credited = 0
        self.boosters: tuple[Plan, ...] = ()
        self.error: PystachioError | None = None
        self.entry: tuple[int, int, TransferProgress] | None = None
        self.line: Line | None = None

    @property
    def waits(self) -> bool:
        """Whether something of it could be started now."""
        return self.error is None and (self.dispatched < self.length or self.redo is not None)

    @property
    def remaining(self) -> int:
        """Bytes of it that have not been dispatched, or must be again."""
        return self.length - self.dispatched + sum(chunk.length for chunk in self.redo or ())

    @property
    def has_credit(self) -> bool:
        """Whether its next chunk needs no (further) credit."""
        return self.budget is None or self.redo is not None or (not self.by_chunk and self.credited > 0)
