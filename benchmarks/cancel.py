"""Cancels at random points of running queries: time to the acknowledgement, and to the release of everything."""

from __future__ import annotations

import os
import random
import threading
import time

import pystachio
from benchmarks import data
from benchmarks.figures import Figure
from pystachio.errors import Cancelled


def run(*, scale: float, quick: bool) -> list[Figure]:
    count = 20 if quick else 100
    folder = data.tpch(scale)
    statements = list(data.queries().values())
    rng = random.Random(7)
    acknowledged: list[float] = []
    released: list[float] = []
    finished = 0
    with pystachio.connect(threads=2) as session:
        data.register(session, folder)
        for sql in statements:
            session.sql(sql).to_arrow()
        files = len(os.listdir("/proc/self/fd"))
        for number in range(count):
            result = session.sql(statements[number % len(statements)])
            threading.Event().wait(rng.random() * 0.2)
            start = time.perf_counter()
            result.cancel()
            try:
                result.to_arrow()
                finished += 1
            except Cancelled:
                acknowledged.append(time.perf_counter() - start)
            while session.statistics().running_plans or session.statistics().reserved_bytes:
                if time.perf_counter() - start > 10:
                    break
                threading.Event().wait(0.001)
            released.append(time.perf_counter() - start)
        statistics = session.statistics()
        files_left = len(os.listdir("/proc/self/fd")) - files
    acknowledged.sort()
    return [
        Figure(
            "p99 of the acknowledgement",
            acknowledged[int(len(acknowledged) * 0.99) - 1],
            "s",
            goal=0.5,
            samples=len(acknowledged),
        ),
        Figure("slowest release of everything", max(released), "s", goal=2.0, samples=count),
        Figure("bytes still reserved", statistics.reserved_bytes, "bytes", goal=0),
        Figure("leaks counted by the node", statistics.leaks, "leaks", goal=0),
        Figure("open files left", files_left, "files", goal=0),
        Figure("finished before the cancel came", finished, "queries"),
    ]
