"""How many bytes a device should hold: enough to keep it busy, and no more, for what is inside ignores priority.

The window is W = 1.5 (B L0 + chunk). B is the best rate at which the device has delivered lately, L0 what one chunk
takes beyond its bytes on an empty device, so B L0 is the bandwidth-delay product. Both are measured as in BBR (Cardwell
et al.: "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016): the rate as a maximum over the last seconds,
disregarding times without enough work; the latency on a device that is emptied for the purpose every two seconds. Time
and rate of a lone chunk give B L0 + chunk at once: it is what the device delivers meanwhile.

A window that holds the device back measures a rate that is too low, but half as much again is always let in, so it
grows until the rate does not. At first, and when the device is suddenly much slower, which may be its rate or its
latency, it doubles instead and does not shrink before the rate has stopped growing.
"""

from __future__ import annotations

from collections import deque

from pystachio.io_scheduler.core.request import LinkLimits

GAIN = 1.5
LARGEST_WINDOW_BYTES = 256 << 20
MEASUREMENT_SECONDS = 2.0
MEASUREMENT_SHARE = 0.02
"""Of the time may be spent on emptying the device and on the chunk that is alone in it."""
LONGEST_PAUSE_SECONDS = 10.0
SOON_SECONDS = 0.2
SOON_SHARE = 0.1
"""The same while little is known: the first request on a device opens a file and fills caches, so the second chunk is
measured after `SOON_SECONDS`.
"""
RATE_SECONDS = 2.0
"""The best rate is that of this period or the one before."""
EPOCH_WINDOWS = 4
"""Windows of bytes over which the rate is measured: ends that are noticed late come together, a window at a time."""
FIRST_EPOCH_WINDOWS = 2
FIRST_CHUNKS = 2
"""Of the first window, which then doubles."""
EPOCH_SECONDS = 0.001
LATENCIES = 4
MUCH_SLOWER = 0.5
SLOW_EPOCHS = 2
"""A device that delivers so much less than it did, twice in a row, is calibrated anew."""
STILL_GROWS = 1.25
"""The first window doubles as long as the rate grows by so much."""


class Window:
    """Calibrates one link. `nbytes` may be inside the device, cut into chunks of `chunk_bytes`."""

    __slots__ = (
        "_alone",
        "_best",
        "_best_before",
        "_epoch_bytes",
        "_epoch_is_whole",
        "_epoch_started",
        "_is_first",
        "_limits",
        "_lone_chunks",
        "_measure_at",
        "_period_ends",
        "_period_is_full",
        "_slow_epochs",
        "chunk_bytes",
        "is_calibrated",
        "is_limited",
        "is_measuring",
        "nbytes",
        "rate",
        "short_nbytes",
    )

    def __init__(self, limits: LinkLimits, fixed_bytes: int | None = None) -> None:
        """A window of `fixed_bytes` is not calibrated, nor is that of a device whose limits say so."""
        self._limits = limits
        self.chunk_bytes = limits.chunk_bytes
        self.is_calibrated = limits.calibrated and fixed_bytes is None
        self.nbytes = limits.window_bytes if fixed_bytes is None else fixed_bytes
        if self.is_calibrated:
            # Too little is soon noticed; too much would hold up the first urgent transfers.
            self.nbytes = min(self.nbytes, FIRST_CHUNKS * limits.chunk_bytes)
            # A chunk that filled the window would always be alone, and say nothing of what more of them do.
            first = self.nbytes // FIRST_CHUNKS // limits.alignment * limits.alignment
            self.chunk_bytes = min(limits.chunk_bytes, max(limits.smallest_chunk_bytes, first))
        self.short_nbytes = self.nbytes
        """As `nbytes`, while chunks are of the smallest length."""
        self.rate: float | None = None
        """Bytes per second that the device is known to deliver."""
        self.is_measuring = False
        """Nothing may be started unless the device is empty, and then one chunk alone."""
        self._best = 0.0
        self._best_before = 0.0
        self._period_ends = 0.0
        self._period_is_full = False
        self._slow_epochs = 0
        self._is_first = True
        """The window has not been calibrated yet; it only grows."""
        self._lone_chunks: deque[tuple[float, int]] = deque(maxlen=LATENCIES)
        """Seconds and bytes of chunks that were alone in the device."""
        self._measure_at = 0.0
        self._alone = False
        self._epoch_started = 0.0
        self._epoch_bytes = 0
        self._epoch_is_whole = False
        """It began with an empty device, so that its bytes took all of its time."""
        self.is_limited = False
        """There was room and nothing to start: the rate says how much was asked for, not what the device can do."""

    @property
    def latency(self) -> float | None:
        """Seconds that one chunk takes on the empty device beyond its bytes at the best rate."""
        if not self._lone_chunks or self.rate is None:
            return None
        return max(0.0, self._lone_seconds(self.chunk_bytes, self.rate) - self.chunk_bytes / self.rate)

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
        self._begin_epoch(now)
        self._epoch_is_whole = True
        if self.is_calibrated and now >= self._measure_at:
            self.is_measuring = True

    def note_end(self, now: float, length: int, started_at: float, outstanding: int) -> None:
        """A chunk came out of the device and `outstanding` bytes are left in there."""
        self._epoch_bytes += length
        is_lone = self._alone and not outstanding
        if is_lone and self.is_calibrated:
            self._note_lone_chunk(now, now - started_at, length)
        seconds = now - self._epoch_started
        windows = FIRST_EPOCH_WINDOWS if self._is_first else EPOCH_WINDOWS
        is_long = seconds >= EPOCH_SECONDS and self._epoch_bytes >= windows * self.nbytes
        # The rest of an emptied device may end all at once: that is no rate.
        if is_long or (not outstanding and self._epoch_is_whole and seconds > 0.0):
            self._note_rate(now, self._epoch_bytes / seconds, is_full=is_long and not self.is_limited, is_lone=is_lone)
            self._begin_epoch(now)

    def _begin_epoch(self, now: float) -> None:
        self._epoch_started = now
        self._epoch_bytes = 0
        self._epoch_is_whole = False
        self.is_limited = False

    def note_dropped(self, now: float) -> None:
        """A chunk came out that has failed or that nobody wanted any more: its time says nothing of the device's."""
        self.give_up_measuring(now)
        self._begin_epoch(now)

    def give_up_measuring(self, now: float) -> None:
        """The chunk that was to tell the latency is stuck."""
        self._alone = False
        if self.is_measuring:
            self.is_measuring = False
            self._measure_at = now + MEASUREMENT_SECONDS

    def _note_lone_chunk(self, now: float, seconds: float, length: int) -> None:
        self.is_measuring = False
        chunks = self._lone_chunks
        lost = seconds + (self.nbytes / self.rate if self.rate else 0.0)
        if 2 * length < self.chunk_bytes and any(self._is_near(other) for _, other in chunks):
            # What a small request takes says little about a chunk on a device that serves several side by side.
            self._measure_at = now + max(SOON_SECONDS, lost / MEASUREMENT_SHARE)
            return
        chunks.append((seconds, length))
        if len(chunks) == 1:
            self._measure_at = now + SOON_SECONDS
        elif len(chunks) < LATENCIES:
            self._measure_at = now + min(MEASUREMENT_SECONDS, max(SOON_SECONDS, lost / SOON_SHARE))
        else:
            self._measure_at = now + min(LONGEST_PAUSE_SECONDS, max(MEASUREMENT_SECONDS, lost / MEASUREMENT_SHARE))

    def _note_rate(self, now: float, rate: float, *, is_full: bool, is_lone: bool) -> None:
        """With `is_full` the device had as much as it was let have, with `is_lone` one chunk at a time."""
        if now >= self._period_ends and (self._period_is_full or not self._best):
            self._best_before, self._best = self._best, 0.0
            self._period_ends = now + RATE_SECONDS
            self._period_is_full = False
        grows = self.rate is None or rate > STILL_GROWS * self.rate
        if is_full:
            is_slow = self.rate is not None and rate < MUCH_SLOWER * self.rate
            self._slow_epochs = self._slow_epochs + 1 if is_slow else 0
            if self._slow_epochs == SLOW_EPOCHS:
                self._start_over(now, rate)
                return
        self._best = max(self._best, rate)
        self._period_is_full |= is_full
        self.rate = max(self._best, self._best_before)
        if not self.is_calibrated:
            return
        if not self._is_first:
            self._fit(now, self.rate)
        # What a few small reads deliver, a footer's say, is no rate of the device.
        elif not grows and not is_lone and self._lone_chunks and self._epoch_bytes >= self._limits.smallest_chunk_bytes:
            self._is_first = False
            self._fit(now, self.rate)
        elif is_full:
            self.nbytes = self.short_nbytes = max(self.nbytes, min(2 * self.nbytes, LARGEST_WINDOW_BYTES))

    def _start_over(self, now: float, rate: float) -> None:
        """The device is not what it was, in its rate or in its latency."""
        self._best, self._best_before, self.rate = rate, 0.0, rate
        self._is_first = True
        self._slow_epochs = 0
        self._lone_chunks.clear()
        self._measure_at = now

    def _fit(self, now: float, rate: float) -> None:
        limits = self._limits
        chunk = limits.chunk_bytes
        while chunk > limits.smallest_chunk_bytes and chunk > rate * limits.device_seconds * 1.5:
            chunk = -(-chunk // 2)
        chunk = -(-chunk // limits.alignment) * limits.alignment
        if chunk != self.chunk_bytes:
            self.chunk_bytes = chunk
            if not any(self._is_near(length) for _, length in self._lone_chunks):
                self._measure_at = min(self._measure_at, now + SOON_SECONDS)
        self.nbytes = self._nbytes_for(chunk, rate)
        self.short_nbytes = min(self.nbytes, self._nbytes_for(limits.smallest_chunk_bytes, rate))

    def _nbytes_for(self, chunk: int, rate: float) -> int:
        # B L0 + chunk is what the device delivers while one chunk passes through it alone.
        window = GAIN * rate * self._lone_seconds(chunk, rate)
        # In whole chunks, rounded up: half a chunk cannot be started.
        chunks = max(2, -(-int(window) // chunk))
        return min(chunks * chunk, max(LARGEST_WINDOW_BYTES, 2 * chunk))

    def _lone_seconds(self, length: int, rate: float) -> float:
        """How long a chunk of the length takes on the empty device, from those of other lengths.

        The time is a latency plus something for each byte, so it shrinks at most in proportion to the length, and by
        at most what the bytes take at the best rate.
        """
        near = [chunk for chunk in self._lone_chunks if self._is_near(chunk[1])]
        return min(
            seconds + (length - other) / rate
            if other <= length
            else max(seconds * length / other, seconds - (other - length) / rate)
            for seconds, other in near or self._lone_chunks
        )

    def _is_near(self, length: int) -> bool:
        """Whether what a chunk of the length takes says something about those of the present length."""
        return self.chunk_bytes <= 2 * length <= 4 * self.chunk_bytes
