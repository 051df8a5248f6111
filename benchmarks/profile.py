"""Where the time of five TPC-H queries goes: planning, scheduling, decoding, kernels, Python between them, waiting.

A thread of its own looks at the stacks of all others five hundred times a second and says by the innermost file of
ours what each is about; the processor time of each thread (by its clock) is shared out accordingly. What workers do
not compute they wait: for a core, as the kernel counts it, or for anything else, be it jobs or the interpreter's lock.
The price of looking is measured: the same queries run without it.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import pystachio
from benchmarks import chart, data
from benchmarks.engines import THREADS
from benchmarks.figures import Figure
from benchmarks.report import Report, table

QUERIES = ("q01", "q03", "q09", "q18", "q21")
KINDS = (
    "planning",
    "scheduling",
    "decode",
    "kernels",
    "Python in operators",
    "results",
    "other",
    "waiting for a core",
    "waiting",
)
INTERVAL = 0.002
ROUNDS = 4
LARGE = 10.0
"""From this scale on scheduling and Python have a goal."""

_WORKER = "pystachio-worker"
_ROOT = str(Path(pystachio.__file__).parent) + "/"
_BY_PLACE = (
    ("operators/kernels/", "kernels"),
    ("operators/functions/", "kernels"),
    ("operators/parquet/", "decode"),
    ("operators/chunks/", "decode"),
    ("operators/narrowing", "decode"),
    ("operators/export", "results"),
    ("operators/arrow", "results"),
    ("operators/", "Python in operators"),
    ("planner/", "planning"),
    ("session", "planning"),
    ("runtime/", "scheduling"),
    ("io_scheduler/", "scheduling"),
    ("trace/", "scheduling"),
    ("embedded", "scheduling"),
    ("result", "results"),
)
"""The first prefix that fits says what a file below `pystachio` is about."""

_IDLE = {("runtime/worker_pool.py", "Inbox.get"), ("runtime/host.py", "NodeHost._run")}
"""Where a thread waits for work when it has none; beside these, threads wait in the standard library."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`seconds` by kind, per run: those of processors, and what workers waited."""

    wall: float
    plain_wall: float
    seconds: dict[str, float]
    samples: int
    verdict: str


def run(*, scale: float, quick: bool) -> Report:
    found = {}
    with pystachio.connect(threads=THREADS) as session:
        data.register(session, data.tpch(scale))
        for query in QUERIES:
            found[query] = _profile(session, data.queries()[query], seconds=0.5 if quick else 5.0)
            sys.stdout.write(f"{query}: {found[query].wall * 1e3:.1f} ms, {found[query].verdict}\n")
            sys.stdout.flush()
    cost = statistics.geometric_mean(each.wall / each.plain_wall for each in found.values())
    figures = [
        Figure("time with stacks being looked at over without, geometric mean", cost, "ratio", 1.1),
        *(figure for query, each in found.items() for figure in _shares(query, each, is_large=scale >= LARGE)),
    ]
    head = ["query", "ms", *(f"{kind}, ms" for kind in KINDS), "samples", "verdict of the trace"]
    rows = [
        [query, each.plain_wall * 1e3, *(each.seconds[kind] * 1e3 for kind in KINDS), each.samples, each.verdict]
        for query, each in found.items()
    ]
    series = {kind: [each.seconds[kind] * 1e3 for each in found.values()] for kind in KINDS}
    title = f"TPC-H at scale {scale:g}: milliseconds of threads, {THREADS} workers"
    return Report(
        figures,
        table(head, rows),
        ["`ms` is wall time without the sampler; the other columns add up to more where threads work side by side."],
        partial(chart.stacks, title=title, labels=list(found), series=series, unit="milliseconds"),
    )


def _shares(query: str, found: Profile, *, is_large: bool) -> Iterator[Figure]:
    """Of the time of all workers."""
    useful = found.seconds["kernels"] + found.seconds["decode"]
    overhead = found.seconds["scheduling"] + found.seconds["Python in operators"]
    whole = found.wall * THREADS
    yield Figure(f"{query}: kernels and decoding, of both threads' time", useful / whole, "share")
    goal = 0.1 if is_large else None
    yield Figure(f"{query}: scheduling and Python, of both threads' time", overhead / whole, "share", goal)


def _profile(session: pystachio.Session, sql: str, seconds: float) -> Profile:
    for _ in range(2):
        session.sql(sql).to_arrow()
    verdict = session.sql(sql).explain(analyze=True).rstrip().splitlines()[-1]
    spent = dict.fromkeys(KINDS, 0.0)
    plain: list[float] = []
    walls: list[float] = []
    rounds = 0
    for _ in range(ROUNDS):
        plain += _runs(session, sql, seconds / ROUNDS)
        sampler = _Sampler()
        before, process = _Clocks(), time.process_time()
        looked_at = _runs(session, sql, seconds / ROUNDS)
        after, process = _Clocks(), time.process_time() - process
        sampler.stop()
        _share_out(spent, sampler, before, after, wall=sum(looked_at), process=process)
        walls += looked_at
        rounds += sampler.rounds
    per_run = {kind: total / len(walls) for kind, total in spent.items()}
    return Profile(statistics.median(walls), statistics.median(plain), per_run, rounds, verdict)


def _share_out(
    spent: dict[str, float], sampler: _Sampler, before: _Clocks, after: _Clocks, *, wall: float, process: float
) -> None:
    """Add each thread's processor time to the kinds of work it was seen at, and what workers waited."""
    working = 0.0
    for thread, clock in after.processor.items():
        used = clock - before.processor.get(thread, 0.0)
        process -= used
        if thread == sampler.ident:
            continue
        kinds = sampler.kinds.get(thread) or Counter({"other": 1})
        for kind, count in kinds.items():
            spent[kind] += used * count / kinds.total()
        if sampler.names.get(thread, "").startswith(_WORKER):
            working += used
    delayed = after.delay - before.delay
    spent["other"] += max(process, 0.0)
    spent["waiting for a core"] += delayed
    spent["waiting"] += max(THREADS * wall - working - delayed, 0.0)


def _runs(session: pystachio.Session, sql: str, seconds: float) -> list[float]:
    walls: list[float] = []
    while sum(walls) < seconds or len(walls) < 3:
        started = time.perf_counter()
        session.sql(sql).to_arrow()
        walls.append(time.perf_counter() - started)
    return walls


class _Clocks:
    """Processor seconds of each Python thread so far, and those that workers were ready to run but had no core."""

    def __init__(self) -> None:
        threads = threading.enumerate()
        self.processor = {
            thread.ident: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            for thread in threads
            if thread.ident is not None
        }
        self.delay = sum(_delay(thread) for thread in threads if thread.name.startswith(_WORKER))


def _delay(thread: threading.Thread) -> float:
    """0 where the kernel does not count it."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class _Sampler:
    """Counts, by thread, what it is about when it is about something."""

    def __init__(self) -> None:
        self.kinds: dict[int, Counter[str]] = {}
        self.names: dict[int, str] = {}
        self.rounds = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        own = threading.get_ident()
        while not self._ended.wait(INTERVAL):
            self.rounds += 1
            for thread, frame in sys._current_frames().items():
                kind = None if thread == own else _kind(frame)
                if kind is not None:
                    self.kinds.setdefault(thread, Counter())[kind] += 1
            if self.rounds % 64 == 1:
                self.names = {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}


def _kind(leaf: FrameType) -> str | None:
    """What a thread is about, by its innermost frame in our code; None where it waits."""
    frame: FrameType | None = leaf
    if leaf.f_code.co_filename.endswith(("threading.py", "concurrent/futures/thread.py", "selectors.py", "queue.py")):
        return None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_ROOT):
            place = name.removeprefix(_ROOT)
            if frame is leaf and (place, frame.f_code.co_qualname) in _IDLE:
                return None
            return next((kind for prefix, kind in _BY_PLACE if place.startswith(prefix)), "other")
        frame = frame.f_back
    return "other"
