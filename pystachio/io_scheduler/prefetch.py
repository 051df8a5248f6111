"""Reads that nobody waits for yet, and the word that somebody does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pystachio.io_scheduler.core.request import PREFETCH
from pystachio.io_scheduler.submission import Submission

if TYPE_CHECKING:
    from pystachio.io_scheduler.client import TransferService


class Prefetch:
    """Reads that are given it go behind all others of their plan until it is promoted, then like any. On the loop."""

    def __init__(self, service: TransferService) -> None:
        self.criticality = PREFETCH
        """Of the reads that begin now."""
        self._service = service
        self._under_way: set[Submission] = set()

    def note(self, submission: Submission) -> None:
        """A read has begun. It is remembered until it ends, and its buffers with it."""
        if self.criticality == PREFETCH:
            self._under_way.add(submission)
            submission.ended.add_done_callback(lambda _: self._under_way.discard(submission))

    def promote(self) -> None:
        """Somebody waits for all of them. Idempotent."""
        self.criticality = 0
        for submission in sorted(self._under_way, key=lambda each: each.transfer_ids):
            self._service.boost(submission, submission.plan_id)
        self._under_way.clear()
