"""Reads that nobody waits for yet, and the word that somebody does."""

from __future__ import annotations

from typing import Protocol

from pystachio.io_scheduler.core.request import PREFETCH
from pystachio.io_scheduler.submission import Submission


class BoostingService(Protocol):
    """What prefetches need of `service.IoSchedulerService`, which says more."""

    def boost(self, submission: Submission, plan_id: str, criticality: int = 0) -> None: ...


class Prefetch:
    """Reads that are given it go behind all others of their plan until it is promoted, then like any. On the loop."""

    def __init__(self, service: BoostingService) -> None:
        self.criticality = PREFETCH
        """Of the reads that begin now."""
        self._service = service
        self._submissions: list[Submission] = []

    def note(self, submission: Submission) -> None:
        """A read has begun."""
        if self.criticality == PREFETCH:
            self._submissions.append(submission)

    def promote(self) -> None:
        """Somebody waits for all of them. Idempotent."""
        self.criticality = 0
        submissions, self._submissions = self._submissions, []
        for submission in submissions:
            if submission.remaining:
                self._service.boost(submission, submission.plan_id)
