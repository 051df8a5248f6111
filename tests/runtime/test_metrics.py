"""Counters: exact under threads, and no second counted twice."""

from __future__ import annotations

import threading

import pytest

from pystachio.runtime.metrics import OperatorMetrics, PlanMetrics, WaitReason


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
    started = starter.job_started()
    clock.seconds += 1
    stage.add_batch(seconds=0.75)
    clock.seconds += 1
    starter.job_ended(started)
    busy = {each.name: each.busy_seconds for each in plan.snapshot().operators}
    assert busy == {"scan": 1.25, "filter": 0.75}
    assert plan.snapshot().busy_seconds == 2


def test_waits_by_reason() -> None:
    clock = ManualClock()
    metrics = OperatorMetrics("scan", clock)
    with metrics.waiting(WaitReason.IO):
        clock.seconds += 2
    metrics.add_wait(WaitReason.CHANNEL, 0.5)
    waits = metrics.snapshot().wait_seconds
    assert waits == {WaitReason.IO: 2, WaitReason.CHANNEL: 0.5, WaitReason.MEMORY: 0, WaitReason.STREAM: 0}


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
