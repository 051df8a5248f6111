"""What happened in a simulation, as a file for https://ui.perfetto.dev (Chrome's trace event format, JSON)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from pystachio.io_scheduler.core.request import Extent, Link
from pystachio.io_scheduler.simulation.outcome import LinkOutcome
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer

CAPACITY = 200_000
"""Spans; a longer simulation keeps its first ones, which is some 60 MB of JSON."""


class _Span(NamedTuple):
    node: int
    link: Link
    transfer_id: int
    plan_id: str
    priority: str
    offset: int
    length: int
    start: float
    end: float


class Trace:
    """Collects spans of chunks on links and of plans. `dropped` counts those beyond the capacity."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.dropped = 0
        self._capacity = capacity
        self._spans: list[_Span] = []
        self._plans: list[tuple[str, str, float, float, str]] = []

    def served(self, transfer: SimulatedTransfer, chunk: Extent, start: float, end: float) -> None:
        """The bytes of a chunk pass a link from `start` to `end`."""
        if len(self._spans) >= self._capacity:
            self.dropped += 1
            return
        inner = transfer.transfer
        self._spans.append(
            _Span(
                transfer.node.index,
                inner.link,
                inner.transfer_id,
                inner.plan_id,
                transfer.priority.name.lower(),
                chunk.offset,
                chunk.length,
                start,
                end,
            )
        )

    def ended(self, plan_id: str, priority: str, start: float, end: float, how: str) -> None:
        """A plan has ended: `done`, or the code of its error."""
        if len(self._plans) < self._capacity:
            self._plans.append((plan_id, priority, start, end, how))

    def write(self, sink: BinaryIO, links: Sequence[LinkOutcome]) -> None:
        """Lanes for plans and for each link of each node, and a counter of each link's utilisation."""
        sink.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        first = True
        for event in self._events(links):
            sink.write(b"" if first else b",\n")
            sink.write(json.dumps(event, separators=(",", ":")).encode())
            first = False
        sink.write(b"\n]}\n")

    def _events(self, links: Sequence[LinkOutcome]) -> Iterator[dict[str, Any]]:
        yield _name("process_name", 0, 0, "plans")
        yield from self._plan_events()
        lanes: dict[tuple[int, Link], int] = {}
        named: set[int] = set()
        for span in self._spans:
            process = span.node + 1
            if process not in named:
                named.add(process)
                yield _name("process_name", process, 0, f"node {span.node}")
            lane = lanes.get((span.node, span.link))
            if lane is None:
                lane = lanes[span.node, span.link] = len(lanes) + 1
                yield _name("thread_name", process, lane, str(span.link))
            yield {
                "ph": "X",
                "name": span.plan_id,
                "cat": span.priority,
                "pid": process,
                "tid": lane,
                "ts": _microseconds(span.start),
                "dur": _duration(span.start, span.end),
                "cname": _COLOURS[span.priority],
                "args": {
                    "transfer": span.transfer_id,
                    "class": span.priority,
                    "offset": span.offset,
                    "bytes": span.length,
                },
            }
        for link in links[:_COUNTERS]:
            for slot, share in enumerate(link.shares):
                yield {
                    "ph": "C",
                    "name": f"{link.name}: busy %",
                    "pid": link.node + 1,
                    "ts": _microseconds(slot * link.slot_seconds),
                    "args": {"busy": round(100 * share, 1)},
                }

    def _plan_events(self) -> Iterator[dict[str, Any]]:
        """Plans overlap, so each takes the first lane that is free."""
        free_at: list[float] = []
        for plan_id, priority, start, end, how in sorted(self._plans, key=lambda plan: plan[2]):
            lane = next((index for index, free in enumerate(free_at) if free <= start), len(free_at))
            free_at[lane : lane + 1] = [end]
            yield {
                "ph": "X",
                "name": plan_id,
                "cat": priority,
                "pid": 0,
                "tid": lane,
                "ts": _microseconds(start),
                "dur": _duration(start, end),
                "cname": _COLOURS[priority],
                "args": {"class": priority, "ended": how},
            }


_COUNTERS = 256
"""Links with a counter of their own in the file."""

_COLOURS = {"interactive": "thread_state_running", "normal": "thread_state_runnable", "batch": "grey"}


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _duration(start: float, end: float) -> float:
    """Between what both are rounded to: a span must not reach into the next one by a nanosecond."""
    return round(_microseconds(end) - _microseconds(start), 3)


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
