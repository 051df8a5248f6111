from __future__ import annotations

from pystachio.io_scheduler.core.request import Link, PathTaken, PriorityClass
from pystachio.io_scheduler.ledger import Ledger, Totals

DISK = Link("disk", "1:0")
OTHER_DISK = Link("disk", "2:0")


def record(ledger: Ledger, plan_id: str, link: Link, transferred: int, path: PathTaken, failed: bool = False) -> None:
    ledger.account(plan_id, PriorityClass.NORMAL, link).record_chunk(
        transferred=transferred, path=path, failed=failed, queue_seconds=0.5, service_seconds=0.25
    )


def test_a_plan_adds_up_over_links_and_paths() -> None:
    ledger = Ledger()
    record(ledger, "a", DISK, 100, PathTaken.BUFFERED)
    record(ledger, "a", OTHER_DISK, 10, PathTaken.DIRECT, failed=True)
    record(ledger, "b", DISK, 1, PathTaken.BUFFERED)
    ledger.account("a", PriorityClass.NORMAL, DISK).useful_bytes += 90
    assert ledger.plan("a") == Totals(
        useful_bytes=90,
        transferred_bytes=110,
        requests=2,
        failed_requests=1,
        queue_seconds=1.0,
        service_seconds=0.5,
        paths={PathTaken.BUFFERED: 100, PathTaken.DIRECT: 10},
    )
    assert ledger.total().transferred_bytes == 111


def test_a_plan_that_moved_nothing() -> None:
    assert Ledger().plan("nobody") == Totals()


def test_entries_tell_plans_classes_and_links_apart() -> None:
    ledger = Ledger()
    record(ledger, "a", DISK, 1, PathTaken.BUFFERED)
    record(ledger, "a", OTHER_DISK, 2, PathTaken.BUFFERED)
    ledger.account("a", PriorityClass.BATCH, DISK).useful_bytes += 3
    entries = {
        (entry.plan_id, entry.priority, entry.link): entry.totals.transferred_bytes for entry in ledger.entries()
    }
    assert entries == {
        ("a", PriorityClass.NORMAL, DISK): 1,
        ("a", PriorityClass.NORMAL, OTHER_DISK): 2,
        ("a", PriorityClass.BATCH, DISK): 0,
    }


def test_the_oldest_closed_plans_are_forgotten() -> None:
    ledger = Ledger(remembered_plans=2)
    for plan_id in ("open", "first", "second", "third"):
        record(ledger, plan_id, DISK, 1, PathTaken.BUFFERED)
    for plan_id in ("first", "second", "third"):
        ledger.close_plan(plan_id)
    remembered = [ledger.plan(plan_id).requests for plan_id in ("open", "first", "second", "third")]
    assert remembered == [1, 0, 1, 1]


def test_what_crossed_a_link_is_remembered_when_its_plans_are_not() -> None:
    ledger = Ledger(remembered_plans=1)
    for number in range(3):
        account = ledger.account(f"p{number}", PriorityClass.BATCH, DISK)
        account.record_chunk(100, PathTaken.BUFFERED, False, 0.0, 0.0)
        ledger.close_plan(f"p{number}")
    assert ledger.links() == {DISK: 300}
    assert ledger.plan_links("p0") == {}
    assert ledger.plan_links("p2") == {DISK: 100}
