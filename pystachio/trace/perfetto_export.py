"""One plan's records as a Perfetto trace.

Lanes, from top to bottom: the plan with its phases; for each operator its work, its waits with their reasons, and its
transfers from submission to the moment when the bytes were taken over; the worker threads and devices' streams; for
each link the chunks inside the device, by class, and counters of what waits, what is inside, and the window; memory
by tier. Arrows lead from a transfer to its first chunk, and from its last chunk to the job that used its bytes.

Of other plans only what held this one up is there: jobs that ran while this plan's waited for a worker, and chunks that
were inside a device while this plan's waited for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from pystachio.io_scheduler.core.request import Link
from pystachio.io_scheduler.history import ChunkRecord, TransferRecord
from pystachio.runtime.tracing import JobRecord, Phase, WaitReason, WaitRecord
from pystachio.trace.lanes import Overlaps, lanes
from pystachio.trace.perfetto_file import PerfettoFile
from pystachio.trace.plan_trace import PlanTrace
from pystachio.trace.verdict import bytes_text, verdict

_PHASES = {Phase.START: "start", Phase.RUN: "run", Phase.DRAIN: "the client reads the rest"}
_WAITS = {
    WaitReason.INPUT: "waits for input",
    WaitReason.CONSUMER: "waits for its consumer",
    WaitReason.CLIENT: "waits for the client",
    WaitReason.MEMORY: "waits for memory",
    WaitReason.IO: "waits for bytes",
    WaitReason.STREAM: "waits for a worker",
}
_MOST_NAMED = 3


def perfetto_trace(trace: PlanTrace) -> bytes:
    """The content of a `.pftrace` file."""
    return _Export(trace).content()


class _Export:
    def __init__(self, trace: PlanTrace) -> None:
        self._trace = trace
        self._file = PerfettoFile(trace.started)
        self._own_transfers = [each for each in trace.history.transfers if trace.is_own(each)]
        self._own_waits = [each for each in trace.tracing.waits if each.plan_id == trace.plan_id]
        self._own_chunks = [each for each in trace.history.chunks if trace.is_own(each)]
        # Of chunks whose transfer's record is lost or yet to come, no arrow is drawn.
        by_start = sorted(self._own_chunks, key=_stay)
        self._first_chunk = {chunk.transfer_id: chunk for chunk in reversed(by_start)}
        self._last_chunk = {chunk.transfer_id: chunk for chunk in by_start}
        self._with_record = {transfer.transfer_id for transfer in self._own_transfers}
        self._used: set[int] = set()
        self._stays = {
            link: Overlaps((chunk for chunk in trace.history.chunks if chunk.link == link), _stay)
            for link in {each.link for each in self._own_transfers}
        }
        self._own_jobs = sorted(
            (each for each in trace.tracing.jobs if trace.is_own(each)), key=lambda job: job.started
        )

    def content(self) -> bytes:
        trace, file = self._trace, self._file
        title = f": {trace.title}" if trace.title else ""
        self._plan = file.track(f"Plan {trace.plan_id} ({trace.priority.name.lower()}){title}")
        details: dict[str, str | int | float] = {"verdict": str(verdict(trace))}
        for phase in sorted(trace.tracing.phases, key=lambda phase: phase.started):
            if phase.plan_id == trace.plan_id:
                file.begin(self._plan, phase.started, _PHASES[phase.phase], details=details)
                file.end(self._plan, phase.ended)
        self._operators()
        self._threads()
        self._links()
        self._memory()
        return file.content

    def _operators(self) -> None:
        parent = self._file.track("Operators", self._plan)
        seen = {job.operator for job in self._own_jobs} | {wait.operator for wait in self._own_waits}
        seen |= {transfer.operator for transfer in self._own_transfers}
        named = [name for name in self._trace.labels if name in seen]
        for operator in [*named, *sorted(seen.difference(named))]:
            self._operator(operator, parent)

    def _operator(self, operator: str, parent: int) -> None:
        label = self._trace.label(operator) or "plan"
        track = self._file.track(label, parent)
        jobs = [job for job in self._own_jobs if job.operator == operator]
        self._jobs_with_arrows(operator, label, jobs, track)
        for lane in lanes((wait for wait in self._own_waits if wait.operator == operator), _span):
            lane_track = self._file.track("waits", track)
            for wait in lane:
                self._file.begin(lane_track, wait.started, _wait_name(wait))
                self._file.end(lane_track, wait.ended)
        transfers = [each for each in self._own_transfers if each.operator == operator]
        for transfer_lane in lanes(transfers, self._transfer_span):
            lane_track = self._file.track("transfers", track)
            for transfer in transfer_lane:
                self._transfer(transfer, lane_track)

    def _jobs_with_arrows(self, operator: str, label: str, jobs: Sequence[JobRecord], track: int) -> None:
        """The operator's work, on any thread; each transfer's arrow ends at the first job after its bytes arrived."""
        ready = sorted(
            (job.started if job.submitted is None else job.submitted, index) for index, job in enumerate(jobs)
        )
        arrows: dict[int, list[int]] = {}
        for transfer in self._own_transfers:
            if transfer.operator == operator and transfer.transfer_id in self._first_chunk:
                position = bisect_left(ready, (transfer.ended_at, 0))
                if position < len(ready):
                    arrows.setdefault(ready[position][1], []).append(_arrow_from_link(transfer.transfer_id))
                    self._used.add(transfer.transfer_id)
        for lane in lanes(enumerate(jobs), lambda entry: _span(entry[1])):
            lane_track = self._file.track("work", track)
            for index, job in lane:
                where: dict[str, str | int | float] = {"on": job.thread}
                if job.submitted is not None:
                    where["waited for a worker, ms"] = (job.started - job.submitted) * 1e3
                self._file.begin(lane_track, job.started, label, details=where, arrows_to=arrows.get(index, ()))
                self._file.end(lane_track, job.ended)

    def _transfer_span(self, transfer: TransferRecord) -> tuple[float, float]:
        """Until its bytes were taken over."""
        consumed = self._trace.history.consumed.get(transfer.transfer_id, transfer.ended_at)
        return transfer.submitted_at, max(consumed, transfer.ended_at)

    def _transfer(self, transfer: TransferRecord, track: int) -> None:
        started, ended = self._transfer_span(transfer)
        details: dict[str, str | int | float] = {
            "file": transfer.path,
            "link": str(transfer.link),
            "bytes": transfer.length,
            "bytes arrived after, ms": (transfer.ended_at - transfer.submitted_at) * 1e3,
        }
        if transfer.started_at is not None:
            details["queued, ms"] = (transfer.started_at - transfer.submitted_at) * 1e3
            details["queued behind"] = self._behind(transfer.link, transfer.submitted_at, transfer.started_at)
        if transfer.error is not None:
            details["error"] = transfer.error
        if transfer.peer is not None:
            details["peer"] = transfer.peer
        name = f"{PurePath(transfer.path).name} {bytes_text(transfer.length)}"
        arrows = [_arrow_to_link(transfer.transfer_id)] if transfer.transfer_id in self._first_chunk else []
        self._file.begin(track, started, name, details=details, arrows_from=arrows)
        self._file.end(track, ended)

    def _behind(self, link: Link, started: float, ended: float) -> str:
        """Whose chunks were inside the device meanwhile, those with most bytes first."""
        nbytes: dict[str, int] = {}
        for chunk in self._stays[link].with_span(started, ended):
            who = "this plan" if self._trace.is_own(chunk) else f"{chunk.plan_id} ({chunk.priority.name.lower()})"
            nbytes[who] = nbytes.get(who, 0) + chunk.length
        most = sorted(nbytes, key=lambda who: -nbytes[who])[:_MOST_NAMED]
        return ", ".join(f"{who} {bytes_text(nbytes[who])}" for who in most) or "nobody"

    def _threads(self) -> None:
        parent = self._file.track("Workers and streams", self._plan)
        queued = [(job.submitted, job.started) for job in self._own_jobs if job.submitted is not None]
        others = Overlaps((job for job in self._trace.tracing.jobs if not self._trace.is_own(job)), _span)
        jobs = [*self._own_jobs, *others.with_any(queued)]
        for thread in sorted({job.thread for job in jobs}):
            track = self._file.track(thread, parent)
            whole = [job for job in jobs if job.thread == thread and job.submitted is not None]
            parts = [job for job in jobs if job.thread == thread and job.submitted is None]
            self._thread(track, sorted(whole, key=_span), sorted(parts, key=_span))

    def _thread(self, track: int, whole: Sequence[JobRecord], parts: Sequence[JobRecord]) -> None:
        """Jobs of one thread follow each other. Parts lie inside; their ends come from a clock read a little later."""
        starts = [part.started for part in parts]
        free_at = self._trace.started
        for position, job in enumerate(whole):
            started = max(job.started, free_at)
            ended = max(job.ended, started)
            until = min(ended, whole[position + 1].started) if position + 1 < len(whole) else ended
            self._file.begin(track, started, self._job_name(job))
            inside = started
            for part in parts[bisect_left(starts, job.started - 1e-4) : bisect_left(starts, until)]:
                if part.ended <= inside or part.plan_id != job.plan_id:
                    continue
                begins = max(part.started, inside)
                inside = min(max(part.ended, begins), ended)
                self._file.begin(track, begins, self._job_name(part))
                self._file.end(track, inside)
            self._file.end(track, ended)
            free_at = ended

    def _job_name(self, job: JobRecord) -> str:
        return self._trace.label(job.operator) if self._trace.is_own(job) else f"plan {job.plan_id}: {job.operator}"

    def _links(self) -> None:
        parent = self._file.track("Links", self._plan)
        for link in sorted({chunk.link for chunk in self._own_chunks}):
            self._link(link, parent)

    def _link(self, link: Link, parent: int) -> None:
        track = self._file.track(str(link), parent)
        own = [chunk for chunk in self._own_chunks if chunk.link == link]
        everybody = [chunk for chunk in self._trace.history.chunks if chunk.link == link]
        waits = [(chunk.submitted_at, chunk.started_at) for chunk in own]
        shown = own + Overlaps((each for each in everybody if not self._trace.is_own(each)), _stay).with_any(waits)
        for lane in lanes(shown, _stay):
            lane_track = self._file.track("chunks", track)
            for chunk in lane:
                self._chunk(chunk, lane_track)
        self._levels("waiting", track, [(*wait, 1) for wait in waits], is_bytes=False)
        inside = [(chunk.started_at, chunk.ended_at, chunk.length) for chunk in everybody]
        self._levels("bytes inside", track, inside, is_bytes=True)
        counter = self._file.counter("window", track, is_bytes=True)
        for window in self._trace.history.windows:
            if window.link == link:
                self._file.level(counter, max(window.at, self._trace.started), window.window_bytes)

    def _chunk(self, chunk: ChunkRecord, track: int) -> None:
        own = self._trace.is_own(chunk)
        who = self._trace.label(chunk.operator) if own else f"plan {chunk.plan_id}"
        details: dict[str, str | int | float] = {
            "offset": chunk.offset,
            "bytes": chunk.length,
            "path": str(chunk.path),
            "queued, ms": (chunk.started_at - chunk.submitted_at) * 1e3,
            "outcome": "failed" if chunk.failed else "moved",
        }
        transfer = chunk.transfer_id
        arrives = transfer in self._with_record and self._first_chunk.get(transfer) is chunk
        leaves = transfer in self._used and self._last_chunk.get(transfer) is chunk
        self._file.begin(
            track,
            chunk.started_at,
            f"{chunk.priority.name.lower()}: {who}",
            details=details,
            arrows_to=[_arrow_to_link(transfer)] if arrives else (),
            arrows_from=[_arrow_from_link(transfer)] if leaves else (),
        )
        self._file.end(track, chunk.ended_at)

    def _levels(self, name: str, parent: int, spans: Sequence[tuple[float, float, int]], *, is_bytes: bool) -> None:
        """How much of the spans there is, at each change."""
        counter = self._file.counter(name, parent, is_bytes=is_bytes)
        long = [(started, ended, amount) for started, ended, amount in spans if ended > started]
        begins = np.asarray([(started, amount) for started, _, amount in long], dtype=float).reshape(-1, 2)
        ends = np.asarray([(ended, -amount) for _, ended, amount in long], dtype=float).reshape(-1, 2)
        # Stable, ends first: what takes a place at the moment when it becomes free is not counted beside it.
        changes = np.concatenate((ends, begins))
        changes = changes[np.argsort(changes[:, 0], kind="stable")]
        levels = np.cumsum(changes[:, 1])
        last_of_its_time = np.append(np.diff(changes[:, 0]) > 0, True)[: len(changes)]
        times, levels = changes[last_of_its_time, 0], levels[last_of_its_time]
        for at, level in zip(times.tolist(), levels.tolist(), strict=True):
            if self._trace.started <= at <= self._trace.ended:
                self._file.level(counter, at, int(level))

    def _memory(self) -> None:
        parent = self._file.track("Memory", self._plan)
        records = sorted(self._trace.tracing.memory, key=lambda record: record.at)
        for tier in sorted({record.tier for record in records}):
            everybody = self._file.counter(f"{tier}, all plans", parent, is_bytes=True)
            counter = self._file.counter(f"{tier}, this plan", parent, is_bytes=True)
            held: dict[str, int] = {}
            for record in records:
                if record.tier != tier or record.at < self._trace.started:
                    continue
                self._file.level(everybody, record.at, record.tier_used)
                if record.plan_id == self._trace.plan_id:
                    held[record.operator] = record.held
                    self._file.level(counter, record.at, sum(held.values()))


def _arrow_to_link(transfer_id: int) -> int:
    return 2 * transfer_id + 2


def _arrow_from_link(transfer_id: int) -> int:
    return 2 * transfer_id + 3


def _span(record: JobRecord | WaitRecord) -> tuple[float, float]:
    return record.started, record.ended


def _stay(chunk: ChunkRecord) -> tuple[float, float]:
    return chunk.started_at, chunk.ended_at


def _wait_name(wait: WaitRecord) -> str:
    name = _WAITS[wait.reason]
    match wait.reason:
        case WaitReason.MEMORY:
            return f"{name} ({bytes_text(wait.nbytes)} of {wait.what})"
        case WaitReason.IO:
            return f"{name} of {PurePath(wait.what).name}" if wait.what else name
        case WaitReason.INPUT | WaitReason.CONSUMER | WaitReason.CLIENT:
            return f"{name} ({wait.what})"
        case WaitReason.STREAM:
            return name
