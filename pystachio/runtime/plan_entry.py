"""What the node's shared parts know of a plan: its rank, and whether anything can still move it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pystachio.io_scheduler.core.policy import due


class PlanEntry:
    """One per running plan; the worker pool and the memory order their waiters by it.

    `priority` is `PriorityClass` (0 is the most urgent) and may change while the plan runs, as may
    `deadline`; `sequence` counts submissions. Times are seconds of the node's clock.

    `external` counts what will move the plan from outside its coroutines: jobs on workers, transfers, and `unread`,
    the channels with items that a client has yet to take and the blocks that other nodes have yet to come to; `remote`
    counts the latter alone. `progress` changes with every step inside. A plan without
    external work whose progress stands still waits for memory or for nothing. Loop thread only.
    """

    __slots__ = (
        "_idle",
        "_when_idle",
        "deadline",
        "external",
        "opened_at",
        "plan_id",
        "priority",
        "progress",
        "remote",
        "sequence",
        "unread",
        "worker_seconds",
    )

    def __init__(
        self,
        plan_id: str,
        priority: int,
        sequence: int,
        when_idle: Callable[[], None] | None = None,
        *,
        opened_at: float = 0.0,
        deadline: float | None = None,
    ) -> None:
        self.plan_id = plan_id
        self.priority = priority
        self.sequence = sequence
        self.opened_at = opened_at
        self.deadline = deadline
        self.worker_seconds = 0.0
        """CPU seconds of the jobs that have ended; the worker pool counts them."""
        self.external = 0
        self.unread = 0
        self.remote = 0
        self.progress = 0
        self._when_idle = when_idle
        self._idle: asyncio.Event | None = None

    @property
    def due(self) -> float:
        """By what interactive plans are ordered among each other, on workers as on links."""
        return due(self.deadline, self.opened_at, self.worker_seconds)

    def begin_external(self) -> None:
        self.external += 1

    def end_external(self) -> None:
        self.external -= 1
        self.progress += 1
        self._report_idleness()
        if self.external == 0 and self._idle is not None:
            self._idle.set()

    def begin_unread(self) -> None:
        self.unread += 1
        self.begin_external()
        self._report_idleness()

    def end_unread(self) -> None:
        self.unread -= 1
        self.end_external()

    def begin_remote(self) -> None:
        """Another node is awaited."""
        self.remote += 1
        self.begin_unread()

    def end_remote(self) -> None:
        self.remote -= 1
        self.end_unread()

    def _report_idleness(self) -> None:
        """Nothing on the node is under way for the plan: at most its client is awaited."""
        if self.external == self.unread and self._when_idle is not None:
            self._when_idle()

    async def wait_idle(self) -> None:
        """Until no external work is left; for the end of the plan, when nothing new can start."""
        if self.external:
            self._idle = asyncio.Event()
            await self._idle.wait()
