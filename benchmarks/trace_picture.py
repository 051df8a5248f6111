"""A picture of a trace: `python -m benchmarks.trace_picture docs/trace.svg q3.pftrace`.

If the trace is not there it is made: TPC-H's Q3 at scale 0.1, of the normal class, beside an endless batch scan and
short interactive queries, all on a disk that is emulated at 60 MiB/s.
"""

from __future__ import annotations

import argparse
import re
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

import pystachio
from benchmarks import data

STATEMENT = "q03"
SCAN = "select max(l_comment), sum(l_extendedprice) from lineitem"
LOOKUP = "select sum(ps_availqty) from partsupp where ps_suppkey < 10"
DISK = {"rate": "60MiB", "latency": 0.0002}
WORK, INPUT, BYTES, MEMORY, OTHER = "#2f6690", "#c9d6df", "#f4a259", "#b5179e", "#e5e5e5"
CLASSES = {"interactive": "#d1495b", "normal": "#2f6690", "batch": "#9db4ab"}
_FOLDERS = re.compile(r"/\S*/(?=\S)")
"""Of paths: their last part says enough."""
WAITS = {
    "waits for bytes": BYTES,
    "waits for memory": MEMORY,
    "waits for input": INPUT,
    "waits for its consumer": INPUT,
    "waits for the client": INPUT,
}


@dataclass
class Lane:
    """Spans (start and length in ms, name) of a track, or the levels of a counter; the plan's verdict."""

    path: tuple[str, ...]
    verdict: str = ""
    spans: list[tuple[float, float, str]] = field(default_factory=list)
    levels: list[tuple[float, int]] = field(default_factory=list)


def read(content: bytes) -> list[Lane]:
    """The lanes in the file's order; sibling tracks of one name are one lane."""
    trace = Trace()
    trace.ParseFromString(content)
    lanes: dict[tuple[str, ...], Lane] = {}
    paths: dict[int, tuple[str, ...]] = {}
    open_slices: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            paths[track.uuid] = (*paths.get(track.parent_uuid, ()), track.name)
            lanes.setdefault(paths[track.uuid], Lane(paths[track.uuid]))
            continue
        event, at = packet.track_event, packet.timestamp / 1e6
        lane = lanes[paths[event.track_uuid]]
        if event.type == TrackEvent.TYPE_COUNTER:
            lane.levels.append((at, event.counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid].append((at, event.name))
            verdicts = (each.string_value for each in event.debug_annotations if each.name == "verdict")
            lane.verdict = next(verdicts, lane.verdict)
        else:
            started, name = open_slices[event.track_uuid].pop()
            lane.spans.append((started, at - started, name))
    return list(lanes.values())


def draw(lanes: Sequence[Lane], target: Path) -> None:
    """Operators, workers, links and memory from top to bottom, over the plan's time."""
    mpl.rcParams.update({"font.size": 8, "font.family": "DejaVu Sans", "svg.hashsalt": "trace"})
    operators = [lane for lane in lanes if lane.path[1:2] == ("Operators",) and len(lane.path) == 3]
    threads = [lane for lane in lanes if lane.path[1:2] == ("Workers and streams",) and len(lane.path) == 3]
    links = [lane for lane in lanes if lane.path[1:2] == ("Links",) and len(lane.path) == 3]
    counters = [lane for lane in lanes if lane.levels and lane.path[-1] == "waiting"]
    counters += [lane for lane in lanes if lane.levels and lane.path[1] == "Memory"]
    by_path = {lane.path: lane for lane in lanes}
    chunks = [row for lane in links for row in _chunks(by_path, lane)]
    heights = [len(operators), len(threads), len(chunks), 2.2]
    figure, axes = plt.subplots(
        4, 1, sharex=True, figsize=(11, 0.26 * sum(heights) + 2.1), gridspec_kw={"height_ratios": heights}
    )
    _rows(axes[0], "operators", [(lane.path[-1], _operator(by_path, lane)) for lane in operators])
    _rows(axes[1], "workers", [(lane.path[-1].removeprefix("pystachio-"), _thread(lane)) for lane in threads])
    _rows(axes[2], "links: chunks inside the device", chunks)
    _levels(axes[3], counters)
    axes[3].set_xlabel("milliseconds since the plan was submitted")
    end = max(start + length for lane in lanes for start, length, _ in lane.spans)
    axes[3].set_xlim(0, end)
    figure.text(0.01, 0.98, lanes[0].path[0], va="top", fontsize=9, fontweight="bold")
    figure.text(0.01, 0.945, fill(_FOLDERS.sub("", lanes[0].verdict), 170), va="top")
    _legend(figure)
    figure.tight_layout(rect=(0, 0.04, 1, 0.91), h_pad=0.4)
    figure.patch.set_facecolor("white")
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None, dpi=150)


Bars = list[tuple[float, float, str]]
"""Start, length, colour."""


def _operator(lanes: dict[tuple[str, ...], Lane], operator: Lane) -> Bars:
    """Waits below, work above."""
    bars: Bars = []
    for start, length, name in _spans(lanes, operator, "waits"):
        bars.append((start, length, next((WAITS[wait] for wait in WAITS if name.startswith(wait)), OTHER)))
    bars += [(start, length, WORK) for start, length, _ in _spans(lanes, operator, "work")]
    return bars


def _spans(lanes: dict[tuple[str, ...], Lane], above: Lane, name: str) -> list[tuple[float, float, str]]:
    lane = lanes.get((*above.path, name))
    return lane.spans if lane is not None else []


def _thread(lane: Lane) -> Bars:
    return [(start, length, OTHER if name.startswith("plan ") else WORK) for start, length, name in lane.spans]


def _chunks(lanes: dict[tuple[str, ...], Lane], link: Lane) -> list[tuple[str, Bars]]:
    """A row for each class."""
    spans = _spans(lanes, link, "chunks")
    medium, name, direction = link.path[-1].split(" ")
    label = f"{medium} {Path(name).name} {direction}"
    return [
        (f"{label}, {each}", bars)
        for each, colour in CLASSES.items()
        if (bars := [(start, length, colour) for start, length, name in spans if name.startswith(each)])
    ]


def _rows(axes: Axes, title: str, rows: Sequence[tuple[str, Bars]]) -> None:
    for position, (_, bars) in enumerate(rows):
        axes.broken_barh(
            [(start, max(length, 0.05)) for start, length, _ in bars],
            (position - 0.4, 0.8),
            facecolors=[colour for _, _, colour in bars],
            linewidth=0,
        )
    axes.set_yticks(range(len(rows)), [name if len(name) < 46 else f"{name[:45]}…" for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_title(title, loc="left", fontsize=8, color="#666666", pad=2)
    _plain(axes)


def _levels(axes: Axes, counters: Sequence[Lane]) -> None:
    for lane in counters:
        times = [at for at, _ in lane.levels]
        most = max(level for _, level in lane.levels) or 1
        is_bytes = lane.path[-1] != "waiting"
        amount = f"{most / (1 << 20):.1f} MiB" if is_bytes else f"{most} transfers"
        label = f"{lane.path[-1]} (at most {amount})"
        axes.step(times, [level / most for _, level in lane.levels], where="post", linewidth=0.9, label=label)
    axes.set_yticks([])
    axes.set_title("counters, each over its maximum", loc="left", fontsize=8, color="#666666", pad=2)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6.5, frameon=False)
    _plain(axes)


def _plain(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.grid(axis="x", color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)


def _legend(figure: Figure) -> None:
    named = {
        "work": WORK,
        "waits for bytes": BYTES,
        "waits for input or a consumer": INPUT,
        "waits for memory": MEMORY,
        "jobs of other plans": OTHER,
        **{f"{name} chunks": colour for name, colour in CLASSES.items()},
    }
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in named.values()]
    figure.legend(handles, named.keys(), loc="lower center", ncol=len(named), frameon=False, fontsize=7.5)


def make(target: Path) -> None:
    """Write the trace of the plan of the normal class."""
    folder = data.tpch(0.1)
    with pystachio.connect(threads=2, emulated=[{"path": str(folder), **DISK}], chunk_cache=False) as session:
        data.register(session, folder)
        stop = threading.Event()

        def repeat(sql: str, priority: str, pause: float) -> None:
            while not stop.wait(pause):
                session.sql(sql, priority=priority).to_arrow()

        others = [
            threading.Thread(target=repeat, args=arguments)
            for arguments in ((SCAN, "batch", 0.0), (LOOKUP, "interactive", 0.02))
        ]
        for thread in others:
            thread.start()
        session.sql(SCAN).to_arrow()
        result = session.sql(data.queries()[STATEMENT])
        print(result.explain(analyze=True))
        result.trace(target)
        stop.set()
        for thread in others:
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, help="an .svg or .png file")
    parser.add_argument("trace", type=Path, help="a .pftrace file, which is made if it is not there")
    options = parser.parse_args()
    if not options.trace.exists():
        make(options.trace)
    draw(read(options.trace.read_bytes()), options.picture)


if __name__ == "__main__":
    main()
