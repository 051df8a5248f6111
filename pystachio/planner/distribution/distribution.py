"""A physical plan for several nodes: where rows must meet, an exchange brings them there.

Every operator's rows are spread over the nodes, perhaps by the hash of some fields, or are on the coordinator alone.
Aggregates are folded where their rows are and merged by key; a join sends its build side to every node, or both sides
by key, whichever moves fewer bytes, and nothing where equal keys have met already; limits are cut down on every node
first, and large orders are sorted in ranges.

The choice between broadcast and shuffle by bytes moved follows Graefe, "Query evaluation techniques for large
databases" (1993), section 10.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import pyarrow as pa

from pystachio.operators.aggregation.aggregate import Aggregate
from pystachio.operators.aggregation.partial import PartialAggregate
from pystachio.operators.batch import Schema
from pystachio.operators.exchanges.exchange import Exchange, ExchangeKind, HeavyRows
from pystachio.operators.exchanges.fragment import with_inputs
from pystachio.operators.expressions import FieldReference, JoinKind
from pystachio.operators.filter import Filter
from pystachio.operators.joins.join import Join
from pystachio.operators.kernels.key_set_unions import MOST_SET_BYTES
from pystachio.operators.limit import Limit
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.project import Project
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.scans.statistics import StatisticsFold
from pystachio.operators.sort import Sort
from pystachio.operators.spool import Spool
from pystachio.operators.top_n import TopN
from pystachio.operators.union_all import UnionAll
from pystachio.operators.values import Values
from pystachio.planner.distribution.skew import heavy_hashes
from pystachio.planner.distribution.spread import (
    ANYWHERE,
    SINGLE,
    Place,
    Single,
    Spread,
    after_join,
    among,
    hashed_by,
    moved,
    order_among,
)

_MOST_ROWS: Final = (1 << 63) - 1
_FEW_GROUPS: Final = 20_000
"""So many groups are merged by the coordinator: a shuffle would cost more messages than it saves work."""
_MOST_SHARED_KEYS: Final = 8 * MOST_SET_BYTES
"""A filter of more keys would not be sent but for its bounds: a bit for each is too much."""
_KEY_BYTES: Final = 8
"""Of a key in a filter that is sent, unless that is of bits and smaller."""
_TEXT_BYTES: Final = 24
_UNKNOWN_ROWS: Final = 1e6
_FEWEST_SKEWED_ROWS: Final = 50_000
"""What fewer rows cost the node that has most of them is not worth looking for."""
_FEWEST_RANGED_ROWS: Final = 250_000
"""So many rows are sorted by all nodes: fewer are soon sorted by the coordinator, which must have them all anyway."""
_LEAST_DEALT_WORK: Final = 1e7
"""Pairs of rows, of which a join on the coordinator must have so many before its rows are dealt out..."""
_DEALT_WORK_PER_ROW: Final = 64
"""... and so many for each row that is then sent."""

_WITHOUT_BUILD_ROWS = {
    "right": (JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK),
    "left": (JoinKind.INNER, JoinKind.RIGHT),
}
"""By build side the joins that put out no build row of their own: every node may have the whole build side."""


@dataclass(frozen=True, slots=True)
class _Placed:
    operator: Operator
    place: Place
    rows: float


class Preference(StrEnum):
    """Which exchanges to choose where there is a choice."""

    BYTES = "bytes"
    """Those that move fewer bytes by the planner's estimates."""
    SHUFFLE = "shuffle"
    """For tests: shuffles wherever they are right."""
    BROADCAST = "broadcast"
    """For tests: no shuffle that can be avoided."""


def distribute(plan: PhysicalPlan, nodes: int, preference: Preference = Preference.BYTES) -> PhysicalPlan:
    """The same answer on `nodes` nodes: the rows of the root and of scalars end on the coordinator, whose scalars go to
    all nodes."""
    if nodes == 1:
        return plan
    distribution = _Distribution(plan, nodes, preference)
    scalars = tuple(distribution.everywhere(scalar) for scalar in plan.scalars)
    root = distribution.single(distribution.place(plan.root)).operator
    kept = distribution.kept_filters
    return _without_filters(PhysicalPlan(root, scalars, plan.names), kept)


class _Distribution:
    def __init__(self, plan: PhysicalPlan, nodes: int, preference: Preference) -> None:
        self._expected = plan.expected_rows
        self._sample = plan.sample
        self._preference = Preference(preference)
        self._nodes = nodes
        self._numbers = itertools.count()
        self._placed: dict[int, tuple[Operator, _Placed]] = {}
        self.kept_filters: set[int] = set()
        """Slots that every node can fill: whose join has the whole build side everywhere, or tells all nodes."""
        self._filtered_bytes: Counter[int] = Counter()
        """By slot what scans would put out without the filter."""
        for operator in plan.operators:
            scan = operator.scan if isinstance(operator, ScanTopN) else operator
            if isinstance(scan, Scan) and scan.filters:
                rows = _known(self._expected(operator), _UNKNOWN_ROWS)
                self._filtered_bytes.update({used.slot: round(rows * _row_bytes(scan.schema)) for used in scan.filters})

    def everywhere(self, scalar: Operator) -> Operator:
        """The rows of the scalar on every node."""
        return self._exchange(self.single(self.place(scalar)), ExchangeKind.BROADCAST, only_coordinator=True).operator

    def single(self, placed: _Placed) -> _Placed:
        """On the coordinator."""
        if isinstance(placed.place, Single):
            return placed
        return self._exchange(placed, ExchangeKind.GATHER)

    def place(self, operator: Operator) -> _Placed:
        known = self._placed.get(id(operator))
        if known is None:
            placed = self._place(operator)
            known = operator, replace(placed, rows=_known(self._expected(operator), placed.rows))
            self._placed[id(operator)] = known
        return known[1]

    def _place(self, operator: Operator) -> _Placed:
        match operator:
            case Scan():
                return _Placed(operator, ANYWHERE, _UNKNOWN_ROWS)
            case ScanTopN():
                wanted = min(operator.count + operator.offset, _MOST_ROWS)
                return self._best_of(_Placed(replace(operator, count=wanted, offset=0), ANYWHERE, wanted), operator)
            case StatisticsFold() | Values():
                return _Placed(operator, SINGLE, 1.0)
            case UnionAll():
                parts = [self.place(child) for child in operator.inputs]
                rows = sum(part.rows for part in parts)
                alone = all(isinstance(part.place, Single) for part in parts)
                union = replace(operator, inputs=tuple(part.operator for part in parts))
                return _Placed(union, SINGLE if alone else ANYWHERE, rows)
            case Join():
                return self._join(operator)
            case Aggregate():
                return self._aggregate(operator)
            case TopN():
                source = self.place(operator.input)
                if isinstance(source.place, Single):
                    return replace(source, operator=replace(operator, input=source.operator))
                wanted = min(operator.count + operator.offset, _MOST_ROWS)
                first = replace(operator, input=source.operator, count=wanted, offset=0)
                return self._best_of(_Placed(first, source.place, wanted), operator)
            case Sort():
                return self._sort(operator)
            case Limit():
                return self._limit(operator)
            case Filter() | Spool():
                source = self.place(operator.input)
                return replace(source, operator=with_inputs(operator, lambda _: source.operator))
            case Project():
                source = self.place(operator.input)
                fields = [
                    (expression.index, position)
                    for position, expression in enumerate(operator.expressions)
                    if isinstance(expression, FieldReference)
                ]
                place = moved(source.place, fields)
                return _Placed(replace(operator, input=source.operator), place, source.rows)
            case PartialAggregate():
                source = self.place(operator.input)
                fields = [(key, position) for position, key in enumerate(operator.plan.keys)]
                place = ANYWHERE if operator.plan.sets else moved(source.place, fields)
                return _Placed(replace(operator, input=source.operator), place, source.rows)
            case _:
                # Whatever else there may be is right on one node.
                inputs = {id(child): self.single(self.place(child)) for child in operator.inputs}
                rows = sum(placed.rows for placed in inputs.values())
                return _Placed(with_inputs(operator, lambda child: inputs[id(child)].operator), SINGLE, rows)

    def _best_of(self, local: _Placed, operator: ScanTopN | TopN) -> _Placed:
        """The first rows of every node's first rows."""
        gathered = self.single(local)
        best = TopN(gathered.operator, operator.keys, operator.count, operator.offset)
        return _Placed(best, SINGLE, operator.count)

    def _limit(self, operator: Limit) -> _Placed:
        source = self.place(operator.input)
        if isinstance(source.place, Spread) and operator.count is not None:
            wanted = min(operator.offset + operator.count, _MOST_ROWS)
            source = replace(source, operator=Limit(source.operator, 0, wanted), rows=min(source.rows, wanted))
        source = self.single(source)
        return replace(source, operator=replace(operator, input=source.operator))

    def _sort(self, operator: Sort) -> _Placed:
        source = self.place(operator.input)
        is_small = _known(self._expected(operator), source.rows) < _FEWEST_RANGED_ROWS
        if isinstance(source.place, Single) or self._prefers_one_place(is_small):
            source = self.single(source)
            return replace(source, operator=replace(operator, input=source.operator))
        ranges = Exchange(source.operator, ExchangeKind.RANGE, next(self._numbers), order=operator.keys)
        ordered = replace(operator, input=ranges)
        gathered = Exchange(ordered, ExchangeKind.GATHER, next(self._numbers), order=operator.keys)
        return _Placed(gathered, SINGLE, source.rows)

    def _aggregate(self, operator: Aggregate) -> _Placed:
        partial = self.place(operator.input)
        plan = operator.plan
        keys = range(len(plan.keys))
        groups = _known(self._expected(operator), partial.rows)
        if isinstance(partial.place, Spread):
            met = not plan.sets and among(partial.place, keys)
            # No rows at all make one row of an empty set of keys: somebody must know that there are none.
            alone = not keys or () in plan.sets or self._prefers_one_place(groups <= _FEW_GROUPS)
            if alone and not met:
                partial = self.single(replace(partial, rows=min(partial.rows, groups * self._nodes)))
            elif not met:
                partial = self._exchange(partial, ExchangeKind.SHUFFLE, keys=tuple(range(plan.key_width)))
        place = moved(partial.place, [(key, key) for key in keys])
        return _Placed(replace(operator, input=partial.operator), place, groups)

    def _join(self, join: Join) -> _Placed:
        left, right = self.place(join.left), self.place(join.right)
        streamed, build = (left, right) if join.build == "right" else (right, left)
        if isinstance(left.place, Single) and isinstance(right.place, Single):
            if self._deals(join, streamed, build):
                return self._with_whole_build(join, self._exchange(streamed, ExchangeKind.DEAL), build)
            return self._joined(join, left, right, SINGLE)
        # A row that equals nothing but could: every node must know all values, and whether there are any.
        may_shuffle = bool(join.left_keys) and not join.null_aware
        orders = [order_among(left.place, join.left_keys), order_among(right.place, join.right_keys)]
        if may_shuffle and orders[0] is not None and orders[0] == orders[1]:
            return self._met(join, left, right)
        moving = sum(_bytes(side) for side, order in zip((left, right), orders, strict=True) if order is None)
        # To every node, or to the one that has the other side; against a node's part of what must move.
        moves_build = not may_shuffle or self._prefers_one_place(_bytes(build) <= moving / self._nodes)
        if isinstance(streamed.place, Single):
            if moves_build:
                return self._joined(join, self.single(left), self.single(right), SINGLE)
        elif moves_build and join.kind in _WITHOUT_BUILD_ROWS[join.build]:
            return self._with_whole_build(join, streamed, build)
        if not may_shuffle:
            return self._joined(join, self.single(left), self.single(right), SINGLE)
        return self._shuffled(join, left, right, orders)

    def _deals(self, join: Join, streamed: _Placed, build: _Placed) -> bool:
        """Whether a join whose rows are on the coordinator alone is so much work that all nodes should share it."""
        if join.kind not in _WITHOUT_BUILD_ROWS[join.build]:
            return False
        pairs = _known(self._expected(join), 0.0) if join.left_keys else streamed.rows * build.rows
        sent = streamed.rows + build.rows * self._nodes
        return not self._prefers_one_place(pairs < max(_LEAST_DEALT_WORK, _DEALT_WORK_PER_ROW * sent))

    def _with_whole_build(self, join: Join, streamed: _Placed, build: _Placed) -> _Placed:
        """The build side goes to every node, whatever node a streamed row is on."""
        build = self._exchange(build, ExchangeKind.BROADCAST)
        left, right = (streamed, build) if join.build == "right" else (build, streamed)
        return self._joined(join, left, right, after_join(join, left.place, right.place), shares_filters=False)

    def _shuffled(self, join: Join, left: _Placed, right: _Placed, orders: Sequence[tuple[int, ...] | None]) -> _Placed:
        """Both sides by their keys; a side that is spread by some of these stays, and the other one follows it."""
        every = tuple(range(len(join.left_keys)))
        stays_left = orders[0] is not None and (orders[1] is None or _bytes(left) >= _bytes(right))
        order = (orders[0] if stays_left else orders[1]) or every
        left_keys, right_keys = (tuple(keys[number] for number in order) for keys in (join.left_keys, join.right_keys))
        streams_left = join.build == "right"
        heavy: tuple[int, ...] = ()
        if (orders[0] if streams_left else orders[1]) != order and join.kind in _WITHOUT_BUILD_ROWS[join.build]:
            streamed = (join.left, left_keys) if streams_left else (join.right, right_keys)
            heavy = self._heavy(*streamed, (left if streams_left else right).rows)
        if heavy or orders[0] != order:
            left = self._exchange(left, ExchangeKind.SHUFFLE, keys=left_keys, heavy=heavy, stays=streams_left)
        if heavy or orders[1] != order:
            right = self._exchange(right, ExchangeKind.SHUFFLE, keys=right_keys, heavy=heavy, stays=not streams_left)
        return self._met(join, left, right, is_heavy=bool(heavy))

    def _heavy(self, operator: Operator, keys: tuple[int, ...], rows: float) -> tuple[int, ...]:
        if self._sample is None or self._prefers_one_place(rows < _FEWEST_SKEWED_ROWS):
            return ()
        return heavy_hashes(operator, keys, self._nodes, self._sample)

    def _met(self, join: Join, left: _Placed, right: _Placed, *, is_heavy: bool = False) -> _Placed:
        """Where they are: equal keys are on one node, or a streamed row has all its partners with it."""
        place = ANYWHERE if is_heavy else after_join(join, left.place, right.place)
        return self._joined(join, left, right, place)

    def _prefers_one_place(self, is_cheaper: bool) -> bool:
        """To bring rows to one node, or all of them to every node, rather than each to the node of its keys."""
        if self._preference is Preference.BYTES:
            return is_cheaper
        return self._preference is Preference.BROADCAST

    def _joined(
        self, join: Join, left: _Placed, right: _Placed, place: Place, *, shares_filters: bool = True
    ) -> _Placed:
        """`shares_filters`: no node but perhaps the coordinator has the whole build side."""
        slots = [slot for slot in join.runtime_filters if slot is not None]
        build = right if join.build == "right" else left
        shares_filters = shares_filters and bool(slots)
        self.kept_filters.update(slot for slot in slots if not shares_filters or self._pays(slot, build.rows))
        made = replace(join, left=left.operator, right=right.operator, shares_filters=shares_filters)
        return _Placed(made, place, max(left.rows, right.rows))

    def _pays(self, slot: int, keys: float) -> bool:
        """Whether a filter is worth its way to a node and from there to all others, and that scans wait for it."""
        sent = 2 * (self._nodes - 1) * min(_KEY_BYTES * keys, MOST_SET_BYTES)
        is_dear = self._preference is Preference.BYTES and sent > self._filtered_bytes[slot]
        return keys <= _MOST_SHARED_KEYS and not is_dear

    def _exchange(
        self,
        placed: _Placed,
        kind: ExchangeKind,
        *,
        keys: tuple[int, ...] = (),
        heavy: tuple[int, ...] = (),
        stays: bool = False,
        only_coordinator: bool = False,
    ) -> _Placed:
        """`stays`: rows of `heavy` keys, not those that they are joined with."""
        only = only_coordinator or isinstance(placed.place, Single)
        heavy_rows = HeavyRows.STAY if stays else HeavyRows.EVERYWHERE
        operator = Exchange(placed.operator, kind, next(self._numbers), keys, only, heavy=heavy, heavy_rows=heavy_rows)
        place: Place = SINGLE if kind is ExchangeKind.GATHER else ANYWHERE
        if kind is ExchangeKind.SHUFFLE and not heavy:
            place = hashed_by(keys)
        return _Placed(operator, place, placed.rows)


def _bytes(placed: _Placed) -> float:
    return placed.rows * _row_bytes(placed.operator.schema)


def _row_bytes(schema: Schema) -> int:
    return sum(_value_bytes(field.type) for field in schema) + 1


def _value_bytes(type_: pa.DataType) -> int:
    try:
        return max(1, int(type_.bit_width) // 8)
    except ValueError:
        return _TEXT_BYTES


def _without_filters(plan: PhysicalPlan, kept: set[int]) -> PhysicalPlan:
    """No scan waits for a filter that is not worth its way between the nodes."""
    rebuilt: dict[int, Operator] = {}

    def change(operator: Operator) -> Operator:
        if id(operator) not in rebuilt:
            rebuilt[id(operator)] = changed(with_inputs(operator, change))
        return rebuilt[id(operator)]

    def changed(operator: Operator) -> Operator:
        match operator:
            case Join():
                left = tuple(slot if slot in kept else None for slot in operator.runtime_filters)
                shares = operator.shares_filters and any(slot is not None for slot in left)
                return replace(operator, runtime_filters=left, shares_filters=shares)
            case Scan():
                return _scan_without(operator, kept)
            case ScanTopN():
                return replace(operator, scan=_scan_without(operator.scan, kept))
        return operator

    return PhysicalPlan(change(plan.root), tuple(change(scalar) for scalar in plan.scalars), plan.names)


def _scan_without(scan: Scan, kept: set[int]) -> Scan:
    return replace(scan, filters=tuple(used for used in scan.filters if used.slot in kept))


def _known(estimate: float | None, otherwise: float) -> float:
    return otherwise if estimate is None else estimate
