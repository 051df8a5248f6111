"""How many bytes a device should hold: enough to keep it busy, and no more, for what is inside ignores priority.

The window is W = 1.5 (B L0 + chunk). B is the best rate at which the device has delivered lately, L0 what one chunk
takes beyond its bytes on an empty device, so B L0 is the bandwidth-delay product. Both are measured as in BBR (Cardwell
et al.: "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016): the rate as a maximum over the last seconds,
disregarding times without enough work; the latency on a device that is emptied for the purpose every two seconds. A
window that holds the device back measures a rate that is too low, but half as much again is always let in, so it grows
until the rate does not.
"""

from __future__ import annotations

from collections import deque

from pystachio.io_scheduler.request import LinkLimits

GAIN = 1.5
LARGEST_WINDOW_BYTES = 64 << 20
CHUNK_SECONDS = 0.0003
"""Of device time in one chunk: what an urgent transfer waits for, against the cost of a request."""

MEASUREMENT_SECONDS = 2.0
FIRST_MEASUREMENT_SECONDS = 0.2
"""The first requests on a device open files and fill caches: their latency is soon measured again."""
RATE_SECONDS = 2.0
"""The best rate is that of this period or the one before."""
FIRST_EPOCH_CHUNKS = 8
EPOCH_WINDOWS = 4
"""Windows of bytes over which the rate is measured: ends that are noticed late come together, a window at a time."""
EPOCH_SECONDS = 0.001
LATENCIES = 4


class Window:
    """Calibrates one link. `nbytes` may be inside the device, cut into chunks of `chunk_bytes`."""

    __slots__ = (
        "_alone",
        "_best",
        "_best_before",
        "_epoch_bytes",
        "_epoch_chunks",
        "_epoch_started",
        "_latencies",
        "_limits",
        "_measure_at",
        "_period_ends",
        "_period_is_full",
        "chunk_bytes",
        "is_calibrated",
        "is_limited",
        "is_measuring",
        "nbytes",
        "rate",
    )

    def __init__(self, limits: LinkLimits, fixed_bytes: int | None = None) -> None:
        """A window of `fixed_bytes` is not calibrated, nor is that of a device whose limits say so."""
        self._limits = limits
        self.is_calibrated = limits.calibrated and fixed_bytes is None
        self.nbytes = limits.window_bytes if fixed_bytes is None else fixed_bytes
        self.chunk_bytes = limits.chunk_bytes
        self.rate: float | None = None
        """Bytes per second that the device is known to deliver."""
        self.is_measuring = False
        """Nothing may be started unless the device is empty, and then one chunk alone."""
        self._best = 0.0
        self._best_before = 0.0
        self._period_ends = 0.0
        self._period_is_full = False
        self._latencies: deque[tuple[float, int]] = deque(maxlen=LATENCIES)
        self._measure_at = 0.0
        self._alone = False
        self._epoch_started = 0.0
        self._epoch_bytes = 0
        self._epoch_chunks = 0
        self.is_limited = False
        """There was room and nothing to start: the rate says how much was asked for, not what the device can do."""

    @property
    def latency(self) -> float | None:
        """Seconds that one chunk takes on the empty device beyond its bytes at the best rate."""
        if not self._latencies:
            return None
        rate = self.rate
        if rate is None:
            return min(seconds for seconds, _ in self._latencies)
        return max(0.0, min(seconds - length / rate for seconds, length in self._latencies))

    def has_room(self, outstanding: int, length: int, extra: int) -> bool:
        """Whether a chunk may join `outstanding` bytes; one chunk always fits."""
        return not outstanding or (not self.is_measuring and outstanding + length <= self.nbytes + extra)

    def note_start(self, now: float, outstanding: int) -> None:
        """A chunk goes in where `outstanding` bytes are already."""
        if outstanding:
            self._alone = False
            if self.is_calibrated and now >= self._measure_at:
                self.is_measuring = True
            return
        self._alone = True
        self._epoch_started = now
        self._epoch_bytes = self._epoch_chunks = 0
        self.is_limited = False
        if self.is_calibrated and now >= self._measure_at:
            self.is_measuring = True

    def note_end(self, now: float, length: int, started_at: float, outstanding: int) -> None:
        """A chunk came out of the device and `outstanding` bytes are left in there."""
        if not self.is_calibrated:
            return
        self._epoch_bytes += length
        self._epoch_chunks += 1
        if self._alone and not outstanding:
            self._note_latency(now, now - started_at, length)
        seconds = now - self._epoch_started
        if seconds > 0.0 and (not outstanding or (seconds >= EPOCH_SECONDS and self._epoch_is_long)):
            self._note_rate(now, self._epoch_bytes / seconds)
            self._epoch_started = now
            self._epoch_bytes = self._epoch_chunks = 0
            self.is_limited = False

    def give_up_measuring(self, now: float) -> None:
        """The chunk that was to tell the latency is stuck."""
        self._alone = False
        if self.is_measuring:
            self.is_measuring = False
            self._measure_at = now + MEASUREMENT_SECONDS

    @property
    def _epoch_is_long(self) -> bool:
        if self.rate is None:
            return self._epoch_chunks >= FIRST_EPOCH_CHUNKS
        return self._epoch_bytes >= EPOCH_WINDOWS * self.nbytes

    def _note_latency(self, now: float, seconds: float, length: int) -> None:
        self._latencies.append((seconds, length))
        self.is_measuring = False
        are_few = len(self._latencies) < LATENCIES
        self._measure_at = now + (FIRST_MEASUREMENT_SECONDS if are_few else MEASUREMENT_SECONDS)

    def _note_rate(self, now: float, rate: float) -> None:
        if now >= self._period_ends and (self._period_is_full or not self._best):
            self._best_before, self._best = self._best, 0.0
            self._period_ends = now + RATE_SECONDS
            self._period_is_full = False
        self._best = max(self._best, rate)
        self._period_is_full |= not self.is_limited
        best = max(self._best, self._best_before)
        if best != self.rate:
            self.rate = best
            self._fit()

    def _fit(self) -> None:
        rate, latency = self.rate, self.latency
        if rate is None or latency is None:
            return
        limits = self._limits
        chunk = limits.chunk_bytes
        while chunk > limits.smallest_chunk_bytes and chunk > rate * CHUNK_SECONDS * 1.5:
            chunk = -(-chunk // 2)
        self.chunk_bytes = -(-chunk // limits.alignment) * limits.alignment
        window = GAIN * (rate * latency + self.chunk_bytes)
        # In whole chunks, rounded up: half a chunk cannot be started.
        chunks = max(2, -(-int(window) // self.chunk_bytes))
        self.nbytes = min(chunks * self.chunk_bytes, max(LARGEST_WINDOW_BYTES, 2 * self.chunk_bytes))
