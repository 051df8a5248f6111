"""The I/O scheduler's ledger against what the operating system counted, over all 22 TPC-H queries.

The kernel also counts the 8 bytes that uvloop reads each time that a worker wakes it: about 1 KiB a query. (On
asyncio's own loop, whose wake-ups are not counted, a test finds the two equal to the byte.)
"""

from __future__ import annotations

from pathlib import Path

import pystachio
from benchmarks import data
from benchmarks.figures import Figure


def run(*, scale: float, quick: bool) -> list[Figure]:
    folder = data.tpch(scale)
    with pystachio.connect(threads=2, chunk_cache=False) as session:
        data.register(session, folder)
        statements = list(data.queries().values())
        for sql in statements:
            session.sql(sql).to_arrow()  # samples and imports are read now
        ledger = 0
        before = _bytes_read()
        for sql in statements:
            result = session.sql(sql)
            result.to_arrow()
            ledger += result.metrics().bytes_read
        counted = _bytes_read() - before - _bytes_of_counting()
    return [
        Figure("bytes of the ledger", ledger, "bytes"),
        Figure("bytes read by the process, as the kernel counts", counted, "bytes"),
        Figure("difference", abs(counted - ledger) / ledger, "of all", goal=1e-4),
    ]


def _bytes_read() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not count")


def _bytes_of_counting() -> int:
    """What reading the counter itself adds."""
    before = _bytes_read()
    return _bytes_read() - before
