"""What an event leaves to be looked at before the scheduler is done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pystachio.io_scheduler.core.link_queue import LinkQueue
    from pystachio.io_scheduler.core.progress import TransferProgress
    from pystachio.io_scheduler.core.resources import Resource


class Agenda:
    """Shared by the queues of a scheduler: what happens to one may concern others.

    `inside` are the transfers with chunks inside devices. Something came back to queues that are `unfilled`, and others
    may take some of what was `freed`.
    """

    __slots__ = ("_tickets", "freed", "inside", "unfilled")

    def __init__(self) -> None:
        self.inside: dict[TransferProgress, None] = {}
        self.unfilled: dict[LinkQueue, None] = {}
        self.freed: dict[Resource, None] = {}
        self._tickets = 0

    def next_ticket(self) -> int:
        """Who waits longer has the lower one."""
        self._tickets += 1
        return self._tickets
