"""Counters: exact under threads, and no second counted twice."""

from __future__ import annotations

import threading

import pytest

from pystachio.runtime.metrics import OperatorMetrics, PlanMetrics
from pystachio.runtime.tracing import JobRecord, Tracing, WaitReason


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_batches_add_up_over_threads() -> None:
    metrics = OperatorMetrics("scan", ManualClock())

    def add() -> None:
        for _ in range(1000):
            metrics.add_batch(rows_in=3, rows_out=2, nbytes=10, seconds=0.5)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = metrics.snapshot()
    assert (seen.rows_in, seen.rows_out, seen.bytes, seen.batches) == (12_000, 8_000, 40_000, 4_000)
    assert seen.busy_seconds == pytest.approx(2_000)


def test_a_jobs_seconds_are_split_between_those_who_report_and_the_starter() -> None:
    clock = ManualClock()
    plan = PlanMetrics("p", clock)
    starter, stage = plan.operator("scan"), plan.operator("filter")
    job = starter.job_started(submitted=-1)
    clock.seconds += 1
    stage.add_batch(seconds=0.75)
    clock.seconds += 1
    starter.job_ended(job)
    assert starter.snapshot().wait_seconds[WaitReason.STREAM] == 1
    busy = {each.name: each.busy_seconds for each in plan.snapshot().operators}
    assert busy == pytest.approx({"scan": 1.25, "filter": 0.75})
    assert plan.snapshot().busy_seconds == pytest.approx(2)


def test_waits_by_reason() -> None:
    clock = ManualClock()
    metrics = OperatorMetrics("scan", clock)
    with metrics.waiting(WaitReason.IO):
        clock.seconds += 2
    metrics.add_wait(WaitReason.INPUT, 0.5)
    waits = metrics.snapshot().wait_seconds
    assert waits == dict.fromkeys(WaitReason, 0) | {WaitReason.IO: 2, WaitReason.INPUT: 0.5}


def test_peak_memory_is_the_most_seen() -> None:
    metrics = OperatorMetrics("join", ManualClock())
    for held in (5, 9, 2):
        metrics.record_memory(held)
    assert metrics.snapshot().peak_memory == 9


def test_an_operator_is_found_again_by_name_and_snapshots_stay() -> None:
    plan = PlanMetrics("p", ManualClock())
    assert plan.operator("scan") is plan.operator("scan")
    before = plan.snapshot()
    plan.operator("scan").add_batch(rows_out=1)
    assert before.operators[0].rows_out == 0
    assert plan.snapshot().operators[0].rows_out == 1


def test_jobs_their_parts_and_waits_are_traced() -> None:
    clock = ManualClock()
    tracing = Tracing()
    plan = PlanMetrics("p", clock, tracing)
    scan, stage = plan.operator("scan"), plan.operator("filter")
    with scan.waiting(WaitReason.MEMORY, "host", 7):
        clock.seconds = 1
    clock.seconds = 2
    job = scan.job_started(submitted=1)
    clock.seconds = 3
    stage.add_batch(seconds=0.5)
    clock.seconds = 4
    scan.job_ended(job)
    seen = tracing.snapshot()
    thread = threading.current_thread().name
    assert seen.jobs == (JobRecord("p", "filter", thread, None, 2.5, 3), JobRecord("p", "scan", thread, 1, 2, 4))
    assert seen.waits == (("p", "scan", WaitReason.MEMORY, "host", 7, 0, 1),)


def test_without_tracing_only_the_counters_are_kept() -> None:
    clock = ManualClock()
    tracing = Tracing(enabled=False)
    metrics = PlanMetrics("p", clock, tracing).operator("scan")
    with metrics.waiting(WaitReason.IO):
        clock.seconds = 1
    metrics.job_ended(metrics.job_started(submitted=0))
    assert metrics.snapshot().wait_seconds[WaitReason.IO] == 1
    assert tracing.snapshot() == ((), (), (), (), 0)
