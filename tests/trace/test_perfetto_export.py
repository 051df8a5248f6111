"""The file, decoded again: lanes nest, times rise, arrows connect what belongs together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.tracing import MemoryRecord, WaitReason
from pystachio.trace.perfetto_export import perfetto_trace
from pystachio.trace.plan_trace import PlanTrace
from tests.trace.records import MIB, Device, Records


@dataclass
class Slice:
    lane: str
    name: str
    started: int
    ended: int
    leaving: list[int]
    arriving: list[int]
    details: dict[str, object]


@dataclass
class Decoded:
    """The trace as a viewer would see it; reading it checks nesting and the order of times in each lane."""

    slices: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def named(self, part: str) -> list[Slice]:
        return [each for each in self.slices if part in each.lane]


def decode(content: bytes) -> Decoded:
    trace = Trace()
    trace.ParseFromString(content)
    names: dict[int, str] = {}
    decoded = Decoded()
    stacks: dict[int, list[Slice]] = defaultdict(list)
    latest: dict[int, int] = defaultdict(int)
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            above = f"{names[track.parent_uuid]}/" if track.parent_uuid else ""
            assert track.uuid not in names
            names[track.uuid] = above + track.name
            continue
        event, at = packet.track_event, packet.timestamp
        lane = event.track_uuid
        assert at >= latest[lane], "times in a lane rise"
        latest[lane] = at
        if event.type == TrackEvent.TYPE_COUNTER:
            decoded.counters[names[lane]].append((at, event.counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            details = {each.name: getattr(each, each.WhichOneof("value")) for each in event.debug_annotations}
            stacks[lane].append(
                Slice(names[lane], event.name, at, 0, [*event.flow_ids], [*event.terminating_flow_ids], details)
            )
        else:
            ended = stacks[lane].pop()
            ended.ended = at
            decoded.slices.append(ended)
    assert not any(stacks.values()), "every slice ends"
    check_arrows(decoded)
    return decoded


def check_arrows(decoded: Decoded) -> None:
    """Each arrow leaves one slice and arrives at one other that does not begin earlier."""
    leaving = [(arrow, each) for each in decoded.slices for arrow in each.leaving]
    arriving = [(arrow, each) for each in decoded.slices for arrow in each.arriving]
    targets = dict(arriving)
    assert len(dict(leaving)) == len(leaving)
    assert len(targets) == len(arriving)
    assert dict(leaving).keys() == targets.keys()
    assert all(source.started <= targets[arrow].started for arrow, source in leaving)


def story() -> PlanTrace:
    """A scan that reads two extents behind an urgent plan, waits for memory, and decodes with a filter inside."""
    records = Records()
    urgent = Device(100 * MIB).serve([MIB] * 4)
    records.transfer(urgent, [MIB] * 4, plan_id="urgent", priority=PriorityClass.INTERACTIVE)
    mine = Device(100 * MIB).serve([MIB] * 4, since=0.04)
    records.transfer(mine[:2], [MIB] * 2, path="/data/a.parquet")
    records.transfer(mine[2:], [MIB] * 2, path="/data/b.parquet")
    records.consumed[1] = 0.07
    late = 0.5
    records.transfer([(late, late + 0.1)], [MIB], plan_id="batch", priority=PriorityClass.BATCH)
    records.wait(WaitReason.IO, 0, 0.06, "/data/a.parquet")
    records.wait(WaitReason.MEMORY, 0.01, 0.03, "host", MIB)
    records.other_job(0.05, 0.1, "worker-0", plan_id="urgent")
    records.other_job(0.3, 0.4, "worker-1", plan_id="batch")
    records.job(0.1, 0.2, operator="scan", submitted=0.06)
    records.part(0.12, 0.15, "join")
    records.part(0.15 - 1e-7, 0.2 + 1e-7, "join")
    records.job(0.2, 0.25, operator="scan", submitted=0.19)
    records.memory += [
        MemoryRecord(0.01, "mine", "scan", "host", MIB, 3 * MIB),
        MemoryRecord(0.2, "mine", "scan", "host", 0, 2 * MIB),
    ]
    return records.trace(0.7)


@pytest.fixture(scope="module")
def decoded() -> Decoded:
    return decode(perfetto_trace(story()))


def test_the_plan_with_its_phases_and_verdict(decoded: Decoded) -> None:
    (phase,) = [each for each in decoded.slices if "/" not in each.lane]
    assert (phase.lane, phase.name, phase.started, phase.ended) == ("Plan mine (normal)", "run", 0, 700_000_000)
    assert "bounded this plan" in str(phase.details["verdict"])


def test_operators_work_waits_and_transfers(decoded: Decoded) -> None:
    work = decoded.named("/Scan lineitem/work")
    assert [(each.started, each.ended) for each in work] == [(100_000_000, 200_000_000), (200_000_000, 250_000_000)]
    assert work[0].details["waited for a worker, ms"] == pytest.approx(40)
    assert {each.name for each in decoded.named("/Scan lineitem/waits")} == {
        "waits for bytes of a.parquet",
        "waits for memory (1 MiB of host)",
    }
    transfers = decoded.named("/Scan lineitem/transfers")
    assert {each.name for each in transfers} == {"a.parquet 2 MiB", "b.parquet 2 MiB"}
    taken = next(each for each in transfers if each.name.startswith("a"))
    assert taken.ended == 70_000_000, "until the bytes were taken over"
    assert str(taken.details["queued behind"]).startswith("urgent (interactive) 4 MiB")


def test_parts_lie_inside_their_jobs(decoded: Decoded) -> None:
    lane = decoded.named("/worker-0")
    job = next(each for each in lane if each.name == "Scan lineitem" and each.started == 100_000_000)
    parts = [each for each in lane if each.name == "Join"]
    assert len(parts) == 2
    assert all(job.started <= part.started <= part.ended <= job.ended for part in parts)


def test_of_others_only_who_held_the_plan_up(decoded: Decoded) -> None:
    chunks = {each.name for each in decoded.named("/disk 259:0 read/chunks")}
    assert chunks == {"normal: Scan lineitem", "interactive: plan urgent"}
    jobs = {each.name for each in decoded.named("/Workers and streams/")}
    assert jobs == {"Scan lineitem", "Join", "plan urgent: join"}


def test_arrows_from_transfer_to_chunk_to_job(decoded: Decoded) -> None:
    leaving = {arrow: each for each in decoded.slices for arrow in each.leaving}
    arriving = {arrow: each for each in decoded.slices for arrow in each.arriving}
    assert leaving.keys() == arriving.keys()
    ways = {(leaving[arrow].lane.split("/")[-1], arriving[arrow].lane.split("/")[-1]) for arrow in leaving}
    assert ways == {("transfers", "chunks"), ("chunks", "work")}
    for arrow, source in leaving.items():
        assert source.started <= arriving[arrow].started
    used = [each for each in decoded.named("/work") if each.arriving]
    ends = {arrow: leaving[arrow].ended for arrow in leaving}
    assert all(ends[arrow] <= each.started for each in used for arrow in each.arriving)
    assert len(leaving) == 4, "two for each transfer of the plan"


def test_counters(decoded: Decoded) -> None:
    waiting = decoded.counters["Plan mine (normal)/Links/disk 259:0 read/waiting"]
    assert max(level for _, level in waiting) == 4
    assert waiting[-1][1] == 0
    inside = decoded.counters["Plan mine (normal)/Links/disk 259:0 read/bytes inside"]
    assert max(level for _, level in inside) == 4 * MIB
    assert decoded.counters["Plan mine (normal)/Memory/host, this plan"] == [(10_000_000, MIB), (200_000_000, 0)]
    assert decoded.counters["Plan mine (normal)/Memory/host, all plans"][-1] == (200_000_000, 2 * MIB)


def test_a_plan_without_records() -> None:
    assert len(decode(perfetto_trace(Records().trace(0.0))).slices) == 1
