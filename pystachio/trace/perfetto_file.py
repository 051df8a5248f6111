"""Writes the packets of a Perfetto trace: tracks with spans on them, counters, and arrows between spans.

The format is that of https://perfetto.dev/docs/reference/synthetic-track-event. Times are seconds of any clock; the
file has nanoseconds from `origin` on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

_SEQUENCE = 1
"""One writer, whose packets come in order."""
_BEGIN, _END = TrackEvent.Type.TYPE_SLICE_BEGIN, TrackEvent.Type.TYPE_SLICE_END
_COUNTER = TrackEvent.Type.TYPE_COUNTER
_PACKET_TAG = b"\x0a"
"""Of the file's only field: packets, each with its length before it."""


class PerfettoFile:
    """A trace in memory; `content` is the file. Spans of one track must not overlap, except that they may nest."""

    def __init__(self, origin: float) -> None:
        self._origin = origin
        self._buffer = BytesIO()
        self._tracks = 0
        self._children: dict[int, int] = {}

    @property
    def content(self) -> bytes:
        return self._buffer.getvalue()

    def track(self, name: str, parent: int | None = None) -> int:
        """A lane below `parent`, after its other children. Sibling lanes of one name are shown as one."""
        self._write(self._described(name, parent))
        return self._tracks

    def counter(self, name: str, parent: int, *, is_bytes: bool) -> int:
        """A line of numbers: bytes, or a count."""
        packet = self._described(name, parent)
        unit = CounterDescriptor.Unit.UNIT_SIZE_BYTES if is_bytes else CounterDescriptor.Unit.UNIT_COUNT
        packet.track_descriptor.counter.unit = unit
        self._write(packet)
        return self._tracks

    def begin(
        self,
        track: int,
        at: float,
        name: str,
        *,
        details: Mapping[str, str | int | float] | None = None,
        arrows_from: Sequence[int] = (),
        arrows_to: Sequence[int] = (),
    ) -> None:
        """A span begins. `arrows_from` it, and those that lead `to` it, are known by ids used once on either side."""
        packet = self._event(track, at, _BEGIN)
        event = packet.track_event
        event.name = name
        event.flow_ids.extend(arrows_from)
        event.terminating_flow_ids.extend(arrows_to)
        for key, value in (details or {}).items():
            annotation = event.debug_annotations.add()
            annotation.name = key
            if isinstance(value, str):
                annotation.string_value = value
            elif isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.double_value = value
        self._write(packet)

    def end(self, track: int, at: float) -> None:
        """The span that began last on the track, and has not ended, ends."""
        self._write(self._event(track, at, _END))

    def level(self, counter: int, at: float, value: int) -> None:
        """The counter's value from `at` on."""
        packet = self._event(counter, at, _COUNTER)
        packet.track_event.counter_value = value
        self._write(packet)

    def _described(self, name: str, parent: int | None) -> TracePacket:
        self._tracks += 1
        packet = TracePacket()
        descriptor = packet.track_descriptor
        descriptor.uuid = self._tracks
        descriptor.name = name
        descriptor.child_ordering = TrackDescriptor.ChildTracksOrdering.EXPLICIT
        if parent is not None:
            descriptor.parent_uuid = parent
            rank = self._children.get(parent, 0)
            self._children[parent] = rank + 1
            descriptor.sibling_order_rank = rank
        return packet

    def _event(self, track: int, at: float, kind: int) -> TracePacket:
        packet = TracePacket()
        packet.timestamp = max(0, round((at - self._origin) * 1e9))
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _write(self, packet: TracePacket) -> None:
        """What the package's own builder writes, in half the time: it copies each packet into another message first."""
        content = packet.SerializeToString()
        self._buffer.write(_PACKET_TAG + _varint(len(content)) + content)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
