"""The streaming half of a join: batches of one side against the index of the other."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

import pyarrow as pa
import torch

from pystachio.errors import InternalError
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import Column, FixedColumn
from pystachio.operators.evaluate import select
from pystachio.operators.joins.build import BuildSide
from pystachio.operators.joins.inequalities import OrderedIndex
from pystachio.operators.joins.layout import Emission, JoinLayout, Remainder
from pystachio.operators.joins.places import PairCondition, Place, Source
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.keys import KeyEncoding
from pystachio.operators.kernels.pairs import Pairs, all_pairs
from pystachio.operators.kernels.row_index import Members, RangeIndex, UniqueIndex, contained, find_rows
from pystachio.operators.kernels.selection import all_null, take, take_batch, take_late, take_or_null
from pystachio.operators.small import are_short, is_light

_PAUSE: Final = Batch((), 0, None)
"""Between slices of candidate pairs that put nothing out."""


@dataclass(slots=True)
class _Seen:
    """What the streamed side of a NOT IN has shown so far; every thread only ever writes True."""

    rows: bool = False
    null_key: bool = False


@dataclass(slots=True, eq=False)
class JoinProbe:
    """An opened join. Here at most about `slice_rows` candidate pairs exist at a time; programs (`fusion.probe`) have a
    bound of their own."""

    layout: JoinLayout
    _side: BuildSide | None
    probe_schema: Schema
    slice_rows: int
    device: torch.device
    seen: _Seen = field(default_factory=_Seen)

    def process(self, batch: Batch) -> Iterator[Batch]:
        match self.layout.emission:
            case Emission.PAIRS:
                yield from self._pairs(batch)
            case Emission.PAIRS_AND_UNMATCHED:
                yield from self._pairs_and_unmatched(batch)
            case Emission.MATCHED:
                yield self._kept(batch, (yield from self._is_matched(batch)))
            case Emission.UNMATCHED:
                yield self._kept(batch, (yield from self._is_certainly_unmatched(batch)))
            case Emission.MARKED:
                mark = FixedColumn(pa.bool_(), (yield from self._is_matched(batch)))
                yield Batch(
                    tuple(self._own(place, batch, mark) for place in self.layout.output), batch.length, batch.ready
                )
            case Emission.NOTHING:
                yield from self._flag(batch)
            case _:
                assert_never(self.layout.emission)

    @property
    def puts_out_no_more(self) -> bool:
        """Whether it puts out at most one row for each that it is given, without long texts, and none at the end; and
        asks no more of any than a light condition."""
        side, residual = self.side, self.layout.residual
        if residual is not None and not is_light((residual.expression,)):
            return False
        is_unique = isinstance(side.index, UniqueIndex | Members)
        return is_unique and side.matched is None and are_short(side.rows.columns)

    def finish(self) -> Iterator[Batch] | None:
        """The rows of the build side that are due at the end; then the build side is gone."""
        if self.side.matched is not None:
            return self._last(self.side.matched)
        self.close()
        return None

    def close(self) -> None:
        side, self._side = self._side, None
        if side is not None:
            for reservation in side.reservations:
                reservation.release()

    @property
    def side(self) -> BuildSide:
        if self._side is None:
            raise InternalError("a join goes on after its end")
        return self._side

    def _last(self, matched: torch.Tensor) -> Iterator[Batch]:
        yield from self._remainder(matched.view(torch.bool))
        self.close()

    def _pairs(self, batch: Batch) -> Iterator[Batch]:
        for pairs in self._matches(batch):
            yield self._joined(batch, pairs.probe, pairs.build) if pairs.build.shape[0] else _PAUSE

    def _pairs_and_unmatched(self, batch: Batch) -> Iterator[Batch]:
        index, encoding = self.side.index, self.side.encoding
        if isinstance(index, UniqueIndex) and self.layout.residual is None and encoding is not None:
            found = find_rows(index, encoding, self._probe_keys(batch))
            if self.side.matched is not None:
                rows = _found(found)
                self.side.matched.index_fill_(0, found.index_select(0, rows).to(torch.int64) - 1, 1)
            yield self._joined(batch, None, found - 1, build_may_lack=True)
            return
        matched = torch.zeros(batch.length, dtype=torch.bool, device=self.device)
        for pairs in self._matches(batch):
            if pairs.probe is None:
                matched.fill_(True)
            else:
                matched.index_fill_(0, pairs.probe.to(torch.int64), True)
            yield self._joined(batch, pairs.probe, pairs.build) if pairs.build.shape[0] else _PAUSE
        unmatched = _positions(~matched)
        if unmatched.shape[0]:
            nothing = torch.full(unmatched.shape, -1, dtype=torch.int64, device=self.device)
            yield self._joined(batch, unmatched, nothing, build_may_lack=True)

    def _flag(self, batch: Batch) -> Iterator[Batch]:
        """Only find out which build rows match."""
        if self.layout.null_aware:
            self.seen.rows |= batch.length > 0
            key = batch.columns[self.layout.probe_keys[0]]
            if key.validity is not None and not primitives(self.device).all_true(key.validity):
                self.seen.null_key = True
        index, encoding = self.side.index, self.side.encoding
        if isinstance(index, RangeIndex) and self.layout.residual is None and encoding is not None:
            assert self.side.matched is not None
            fresh = index.find(encoding.encode(self._probe_keys(batch))).unflagged(self.side.matched)
            for pairs in fresh.pairs(self.slice_rows):
                self.side.matched.index_fill_(0, pairs.build.to(torch.int64), 1)
                yield _PAUSE
            return
        if isinstance(index, OrderedIndex) and index.conditions.rest is None:
            ranges = index.find(batch)
            if ranges is not None:
                assert self.side.matched is not None
                index.flag(ranges, self.side.matched)
                return
        for _ in self._matches(batch):
            yield _PAUSE

    def _matches(self, batch: Batch) -> Iterator[Pairs]:
        """Pairs that satisfy keys and residual; flags the build rows among them."""
        index = self.side.index
        ranges = index.find(batch) if isinstance(index, OrderedIndex) else None
        if ranges is None or not isinstance(index, OrderedIndex):
            return self._checked(batch, self._candidates(batch), self.layout.residual)
        candidates = (pairs for found in ranges for pairs in found.pairs(self.slice_rows))
        return self._checked(batch, candidates, index.conditions.rest)

    def _checked(self, batch: Batch, candidates: Iterator[Pairs], condition: PairCondition | None) -> Iterator[Pairs]:
        for pairs in candidates:
            passed = pairs if condition is None else self._passing(batch, pairs, condition)
            if self.side.matched is not None:
                self.side.matched.index_fill_(0, passed.build.to(torch.int64), 1)
            yield passed

    def _candidates(self, batch: Batch) -> Iterator[Pairs]:
        """Pairs with equal keys; in a NOT IN with a residual also those whose keys may be equal."""
        index, encoding = self.side.index, self.side.encoding
        if index is None or encoding is None or isinstance(index, OrderedIndex):
            yield from all_pairs(batch.length, self.side.rows.length, self.slice_rows, self.device)
            return
        keys = self._probe_keys(batch)
        yield from self._equal(index, encoding, keys)
        if self.layout.null_aware and self.layout.residual is not None:
            yield from self._perhaps_equal(keys[0], batch.length)

    def _equal(
        self, index: UniqueIndex | RangeIndex | Members, encoding: KeyEncoding, keys: Sequence[Column]
    ) -> Iterator[Pairs]:
        match index:
            case UniqueIndex():
                found = find_rows(index, encoding, keys)
                rows = _found(found)
                if rows.shape[0] == found.shape[0]:
                    yield Pairs(None, found - 1)
                elif rows.shape[0]:
                    yield Pairs(rows, found.index_select(0, rows) - 1)
            case RangeIndex():
                yield from index.find(encoding.encode(keys)).pairs(self.slice_rows)
            case Members():
                raise AssertionError("an index of members knows no rows")

    def _perhaps_equal(self, key: Column, length: int) -> Iterator[Pairs]:
        """Rows with a NULL key on either side, with all rows of the other."""
        if self.side.null_keys is not None:
            null_rows = _positions(self.side.null_keys)
            for pairs in all_pairs(length, null_rows.shape[0], self.slice_rows, self.device):
                yield Pairs(pairs.probe, null_rows.index_select(0, pairs.build))
        if key.validity is not None:
            null_rows = _positions(~key.validity)
            for pairs in all_pairs(null_rows.shape[0], self.side.rows.length, self.slice_rows, self.device):
                yield Pairs(null_rows if pairs.probe is None else null_rows.index_select(0, pairs.probe), pairs.build)

    def _passing(self, batch: Batch, pairs: Pairs, condition: PairCondition) -> Pairs:
        """The pairs for which the condition is true."""
        columns = tuple(self._paired(place, batch, pairs) for place in condition.places)
        rows = select(condition.expression, Batch(columns, pairs.build.shape[0], batch.ready))
        if rows is None:
            return pairs
        probe = rows if pairs.probe is None else pairs.probe.index_select(0, rows)
        return Pairs(probe, pairs.build.index_select(0, rows))

    def _is_matched(self, batch: Batch) -> Generator[Batch, None, torch.Tensor]:
        """bool [rows]: whether any build row matches."""
        index, encoding = self.side.index, self.side.encoding
        if self.layout.residual is None and (index is None or encoding is None):
            return torch.full((batch.length,), self.side.rows.length > 0, device=self.device)
        if self.layout.residual is None and isinstance(index, Members) and encoding is not None:
            return contained(index, encoding, self._probe_keys(batch))
        if isinstance(index, OrderedIndex) and index.conditions.tells_matches:
            ranges = index.find(batch)
            if ranges is not None:
                return torch.stack([found.counts != 0 for found in ranges]).any(0)
        matched = torch.zeros(batch.length, dtype=torch.bool, device=self.device)
        for pairs in self._matches(batch):
            if pairs.probe is None:
                return matched.fill_(True)
            matched.index_fill_(0, pairs.probe.to(torch.int64), True)
            yield _PAUSE
        return matched

    def _is_certainly_unmatched(self, batch: Batch) -> Generator[Batch, None, torch.Tensor]:
        """bool [rows]: no build row matches; in a NOT IN also none might."""
        unmatched = ~(yield from self._is_matched(batch))
        if not self.layout.null_aware or self.layout.residual is not None or self.side.rows.length == 0:
            return unmatched
        if self.side.null_keys is not None:
            return unmatched.fill_(False)
        validity = batch.columns[self.layout.probe_keys[0]].validity
        return unmatched if validity is None else unmatched & validity

    def _remainder(self, matched: torch.Tensor) -> Iterator[Batch]:
        match self.layout.remainder:
            case Remainder.NOTHING:
                return
            case Remainder.UNMATCHED_BESIDE_NULLS:
                yield from self._stored(_positions(~matched))
            case Remainder.MATCHED:
                yield from self._stored(_positions(matched))
            case Remainder.UNMATCHED:
                yield from self._stored(self._unmatched_rows(matched))
            case Remainder.MARKED:
                yield from self._stored(
                    torch.arange(matched.shape[0], device=self.device), FixedColumn(pa.bool_(), matched)
                )
            case _:
                assert_never(self.layout.remainder)

    def _unmatched_rows(self, matched: torch.Tensor) -> torch.Tensor:
        if self.layout.null_aware and self.layout.residual is None and self.seen.rows:
            if self.seen.null_key:
                return _positions(torch.zeros_like(matched))
            if self.side.null_keys is not None:
                return _positions(~(matched | self.side.null_keys))
        return _positions(~matched)

    def _stored(self, rows: torch.Tensor, mark: Column | None = None) -> Iterator[Batch]:
        """Rows of the build side, NULL in the columns of the streamed one."""
        for start in range(0, rows.shape[0], self.slice_rows):
            part = rows[start : start + self.slice_rows]
            yield Batch(
                tuple(self._left_over(place, part, mark) for place in self.layout.output),
                part.shape[0],
                self.side.rows.ready,
            )

    def _left_over(self, place: Place, rows: torch.Tensor, mark: Column | None) -> Column:
        match place.source:
            case Source.BUILD:
                return take_late(self.side.rows.columns[place.position], rows)
            case Source.PROBE:
                return all_null(self.probe_schema[place.position].type, rows.shape[0], self.device)
            case Source.MARK:
                assert mark is not None
                return take(mark, rows)
            case _:
                assert_never(place.source)

    def _joined(
        self, batch: Batch, probe: torch.Tensor | None, build: torch.Tensor, *, build_may_lack: bool = False
    ) -> Batch:
        """The output columns of pairs; `probe` None stands for all rows in order, a build row of -1 for NULLs."""
        gather = take_or_null if build_may_lack else take_late
        columns = tuple(
            _rows_of(batch.columns[place.position], probe)
            if place.source is Source.PROBE
            else gather(self.side.rows.columns[place.position], build)
            for place in self.layout.output
        )
        return Batch(columns, build.shape[0], batch.ready)

    def _paired(self, place: Place, batch: Batch, pairs: Pairs) -> Column:
        if place.source is Source.PROBE:
            column = batch.columns[place.position]
            return column if pairs.probe is None else take(column, pairs.probe)
        return take(self.side.rows.columns[place.position], pairs.build)

    def _kept(self, batch: Batch, mask: torch.Tensor) -> Batch:
        """The streamed rows where `mask` is true, output columns only."""
        columns = tuple(batch.columns[place.position] for place in self.layout.output)
        rows = _positions(mask)
        kept = Batch(columns, batch.length, batch.ready)
        return kept if rows.shape[0] == batch.length else take_batch(kept, rows)

    def _own(self, place: Place, batch: Batch, mark: Column) -> Column:
        return mark if place.source is Source.MARK else batch.columns[place.position]

    def _probe_keys(self, batch: Batch) -> list[Column]:
        return [batch.columns[key] for key in self.layout.probe_keys]


def _rows_of(column: Column, rows: torch.Tensor | None) -> Column:
    return column if rows is None else take_late(column, rows)


def _found(numbers: torch.Tensor) -> torch.Tensor:
    kernels = primitives(numbers.device)
    return kernels.indices_of_true(kernels.compare("not_equal", numbers, 0))


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return primitives(mask.device).indices_of_true(mask)
