"""The I/O scheduler in simulation: isolation, exchanges, overlap, faults; and how fast its core decides.

Simulated figures do not depend on the machine. The cases run in two processes, the longest first.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks import scheduler_cases as cases
from benchmarks import scheduler_centre
from benchmarks.figures import Figure
from pystachio.io_scheduler.core.events import (
    Action,
    ChunksCompleted,
    CompleteTransfer,
    CreditReleased,
    LinkOpened,
    PlanOpened,
    PoolOpened,
    StartChunk,
    TransfersSubmitted,
)
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler
from pystachio.io_scheduler.simulation import MIB

PROCESSES = 2
SEEDS = 10_000
QUICK_SEEDS = 300
SEEDS_AT_ONCE = 250
CYCLES = 40_000
TURN_SECONDS = 0.0024


def run(*, scale: float, quick: bool) -> list[Figure]:
    figures = core_speed(repetitions=3 if quick else 5)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        simulated = _submit_cases(pool, quick=quick)
        seeds = QUICK_SEEDS if quick else SEEDS
        starts = range(0, seeds, SEEDS_AT_ONCE)
        tried = [pool.submit(cases.random_simulations, at, min(at + SEEDS_AT_ONCE, seeds)) for at in starts]
        for case in simulated:
            figures += case.result()
            sys.stdout.write(f"{figures[-1].name}: {figures[-1].value:.4g}\n")
            sys.stdout.flush()
        figures += _random_figures([each.result() for each in tried], seeds)
    return figures


def _submit_cases(pool: ProcessPoolExecutor, *, quick: bool) -> Sequence[Future[list[Figure]]]:
    seconds = 4.0 if quick else 20.0
    size = (4 if quick else 8) * MIB
    if quick:
        large = pool.submit(cases.all_to_all, "uniform", 128, 4 * MIB, 0.99, None)
    else:
        large = pool.submit(cases.all_to_all, "uniform", 1024, MIB, 0.99, None)
    return [
        large,
        pool.submit(cases.isolation, "storage_bound", 1.1, seconds),
        pool.submit(cases.isolation, "gpu_bound", 1.2, seconds),
        pool.submit(cases.isolation, "pcie_bound", 1.2, seconds),
        pool.submit(cases.hard_isolation, seconds),
        pool.submit(cases.all_to_all, "uniform", 64, size, 0.98, 6.0),
        pool.submit(cases.all_to_all, "hot", 64, size, 0.98, 6.0),
        pool.submit(cases.all_to_all, "pareto", 64, size // 2, 0.98, 6.0),
        pool.submit(cases.overlap, (256 if quick else 1024) * MIB),
        pool.submit(cases.slow_disk, seconds),
        pool.submit(cases.inheritance, seconds * 2),
        pool.submit(cases.overload, seconds),
        pool.submit(scheduler_centre.figures, quick=quick),
    ]


def _random_figures(failures: Sequence[dict[str, int]], seeds: int) -> list[Figure]:
    return [
        Figure(
            f"{kind} in {seeds:,} random simulations, each run twice",
            sum(each[kind] for each in failures),
            "seeds",
            goal=0.0,
            samples=seeds,
        )
        for kind in ("deadlocks", "violations")
    ]


def core_speed(repetitions: int) -> list[Figure]:
    """From submission to release, in CPU time: eight reads per turn of the event loop.

    As scans read: they reserve memory from the runtime, and need no credit of the scheduler's own pools; what that
    costs stands beside it.
    """
    variants = {
        "8 per event": (8, False),
        "1 per event": (1, False),
        "8 per event, with memory credit": (8, True),
        "all at once": (CYCLES, False),
    }
    best = dict.fromkeys(variants, 0.0)
    for _ in range(repetitions):
        for name, (group, credited) in variants.items():
            best[name] = max(best[name], _Cycles(group, credited=credited).per_second())
    eight = best.pop("8 per event")
    return [Figure("submit-to-release cycles of the core", eight, "1/s", 150_000.0, "at least", best, repetitions)]


class _Cycles:
    """Transfers of one chunk from four plans of all classes go through one disk, whose chunks take one turn each.

    What clients make, the transfers, is made before the clock starts.
    """

    def __init__(self, group: int, *, credited: bool) -> None:
        self._group = group
        self._credited = credited
        self._core = Scheduler()
        self._inside: list[tuple[int, int]] = []
        self._released = 0
        self._now = 0.0
        link, pool, extent = Link("disk", "0"), CreditPool("host", 0), Extent(0, 2 * MIB)
        self._core.handle(LinkOpened(link, LinkLimits(chunk_bytes=2 * MIB, window_bytes=32 * MIB)), 0.0)
        self._core.handle(PoolOpened(pool, 1 << 30), 0.0)
        for plan in range(4):
            self._core.handle(PlanOpened(str(plan), PriorityClass(plan % 3)), 0.0)
        credit = pool if credited else None
        transfers = [Transfer(number, str(number % 4), link, extent, credit=credit) for number in range(CYCLES)]
        self._submissions = [TransfersSubmitted(tuple(transfers[at : at + group])) for at in range(0, CYCLES, group)]
        self._pool = pool

    def per_second(self) -> float:
        # What was made beforehand is no work for the garbage collector.
        gc.collect()
        gc.freeze()
        started = time.process_time()
        for submission in self._submissions:
            self._now += TURN_SECONDS
            ended, self._inside = tuple(self._inside), []
            self._act(self._core.handle(submission, self._now))
            self._complete(ended)
        while self._inside:
            self._now += TURN_SECONDS
            ended, self._inside = tuple(self._inside), []
            self._complete(ended)
        seconds = time.process_time() - started
        gc.unfreeze()
        assert self._released == CYCLES
        return CYCLES / seconds

    def _complete(self, ended: tuple[tuple[int, int], ...]) -> None:
        core = self._core
        released = self._released
        if ended:
            self._act(core.handle(ChunksCompleted(ended), self._now))
        if self._credited and released != self._released:
            nbytes = (self._released - released) * 2 * MIB
            self._act(core.handle(CreditReleased(self._pool, nbytes), self._now))
        core.next_wake()

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if type(action) is StartChunk:
                self._inside.append((action.transfer_id, action.chunk.offset))
            elif type(action) is CompleteTransfer:
                self._released += 1
