"""The ledger: for each plan, class and link, what was moved, how it travelled and how long it waited.

Traces, `explain --analyze`, metrics and benchmarks all read this one record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pystachio.io_scheduler.core.request import Link, PathTaken, PriorityClass

REMEMBERED_PLANS = 1024
"""Closed plans whose entries are kept, so that a finished plan can still be explained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Bytes and seconds of a part of the ledger.

    `useful_bytes` were asked for and delivered; `transferred_bytes` crossed the link, including gaps between coalesced
    extents, rounding and what was given up on the way. `requests` counts chunks. `queue_seconds` sums the wait of
    every chunk from the submission of its transfer, `service_seconds` its time inside the device.
    """

    useful_bytes: int = 0
    transferred_bytes: int = 0
    requests: int = 0
    failed_requests: int = 0
    queue_seconds: float = 0.0
    service_seconds: float = 0.0
    paths: Mapping[PathTaken, int] = field(default_factory=dict)
    """Bytes transferred by the path that they took."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    plan_id: str
    priority: PriorityClass
    link: Link
    totals: Totals


@dataclass(slots=True, eq=False)
class Account:
    """One plan's running totals on one link in one class; filled by the service."""

    useful_bytes: int = 0
    transferred_bytes: int = 0
    requests: int = 0
    failed_requests: int = 0
    queue_seconds: float = 0.0
    service_seconds: float = 0.0
    paths: dict[PathTaken, int] = field(default_factory=dict)

    def record_chunk(
        self, transferred: int, path: PathTaken, failed: bool, queue_seconds: float, service_seconds: float
    ) -> None:
        self.transferred_bytes += transferred
        self.requests += 1
        self.failed_requests += failed
        self.queue_seconds += queue_seconds
        self.service_seconds += service_seconds
        self.paths[path] = self.paths.get(path, 0) + transferred


class Ledger:
    """Not thread-safe: it is written and read on the service's loop."""

    def __init__(self, *, remembered_plans: int = REMEMBERED_PLANS) -> None:
        self._accounts: dict[str, dict[tuple[PriorityClass, Link], Account]] = {}
        self._closed: dict[str, None] = {}
        self._remembered_plans = remembered_plans
        self._forgotten: Counter[Link] = Counter()

    def account(self, plan_id: str, priority: PriorityClass, link: Link) -> Account:
        accounts = self._accounts.setdefault(plan_id, {})
        account = accounts.get((priority, link))
        if account is None:
            account = accounts[priority, link] = Account()
        return account

    def accounts(self, plan_id: str) -> Mapping[tuple[PriorityClass, Link], Account]:
        """The plan's running totals as they grow; empty for a plan that moved nothing or is long gone."""
        return self._accounts.get(plan_id, {})

    def plan(self, plan_id: str) -> Totals:
        """The plan's totals over all links and classes; zeros for a plan that moved nothing or is long gone."""
        return _sum(self._accounts.get(plan_id, {}).values())

    def total(self) -> Totals:
        """Everything the ledger remembers."""
        return _sum(account for accounts in self._accounts.values() for account in accounts.values())

    def entries(self) -> tuple[LedgerEntry, ...]:
        return tuple(
            LedgerEntry(plan_id, priority, link, _sum((account,)))
            for plan_id, accounts in self._accounts.items()
            for (priority, link), account in accounts.items()
        )

    def plan_links(self, plan_id: str) -> dict[Link, int]:
        """Bytes that crossed each link for the plan."""
        return _by_link(self._accounts.get(plan_id, {}))

    def links(self) -> dict[Link, int]:
        """Bytes that crossed each link, also those of plans that are forgotten."""
        total = Counter(self._forgotten)
        for accounts in self._accounts.values():
            total.update(_by_link(accounts))
        return dict(total)

    def close_plan(self, plan_id: str) -> None:
        """The plan will move nothing more; the oldest closed plans are forgotten beyond the bound."""
        self._closed[plan_id] = None
        while len(self._closed) > self._remembered_plans:
            oldest = next(iter(self._closed))
            del self._closed[oldest]
            self._forgotten.update(_by_link(self._accounts.pop(oldest, {})))


def _by_link(accounts: Mapping[tuple[PriorityClass, Link], Account]) -> dict[Link, int]:
    total: Counter[Link] = Counter()
    for (_, link), account in accounts.items():
        total[link] += account.transferred_bytes
    return dict(total)


def _sum(accounts: Iterable[Account]) -> Totals:
    total = Account()
    for account in accounts:
        total.useful_bytes += account.useful_bytes
        total.transferred_bytes += account.transferred_bytes
        total.requests += account.requests
        total.failed_requests += account.failed_requests
        total.queue_seconds += account.queue_seconds
        total.service_seconds += account.service_seconds
        for path, transferred in account.paths.items():
            total.paths[path] = total.paths.get(path, 0) + transferred
    return Totals(
        useful_bytes=total.useful_bytes,
        transferred_bytes=total.transferred_bytes,
        requests=total.requests,
        failed_requests=total.failed_requests,
        queue_seconds=total.queue_seconds,
        service_seconds=total.service_seconds,
        paths=total.paths,
    )
