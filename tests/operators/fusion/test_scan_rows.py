"""Rows of a scan, tested and gathered by a program: predicates, runtime filters, pieces, survivors."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import FixedColumn
from pystachio.operators.expressions import Expression
from pystachio.operators.filter import Filter
from pystachio.operators.fusion import flow, fold, groups, segment
from pystachio.operators.hot_columns import HotUnit
from pystachio.operators.runtime_filter import RuntimeFilter, filter_of_keys
from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.pace import Pace
from pystachio.operators.scans.rows import FilterUse, Piece, RowReader, ScanRows
from pystachio.runtime.metrics import OperatorMetrics
from tests.operators.fusion.chains import WORDS, Given, agree, call, codes, dictionary_of, integers, lit, ref, schema_of
from tests.operators.fusion.test_aggregates import summed
from tests.operators.fusion.trees import INT, SCHEMA, TEXT, TYPES, Trees, table


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)


def a_filter(r: random.Random, position: int) -> RuntimeFilter:
    if r.random() < 0.1:
        return RuntimeFilter(TYPES[position], empty=True)
    if position == 9:
        made = filter_of_keys([codes(r, 3, dictionary_of(r.sample(WORDS, 5)), 0.2)])
    else:
        low = r.choice([-3, 0, 5, 9100, -200])
        made = filter_of_keys([integers(r, TYPES[position], r.choice([1, 3, 40]), low, low + r.choice([1, 9, 300]))])
    assert made is not None
    return made


def rows_of(r: random.Random, reader: RowReader, columns: Any, rows: int) -> list[ScanRows]:
    """A unit before its rows are tested, or pieces of it with their survivors."""
    whole = dict(enumerate(columns))
    if r.random() < 0.6:
        return [ScanRows(reader, whole, Piece(0, rows, None), is_tested=False)]
    pieces = [reader.select(whole, start, stop) for start, stop in reader.pieces(rows)]
    return [ScanRows(reader, whole, piece, is_tested=True) for piece in pieces]


@pytest.mark.parametrize("seed", range(100))
def test_random_scans(harness: Any, seed: int) -> None:
    r = random.Random(seed)
    trees, words = Trees(r), dictionary_of(WORDS)
    predicate: Expression | None = r.choice([None, trees.flag(1), trees.flag(2)])
    positions = r.sample([0, 2, 3, 6, 9, 13], r.choice([0, 1, 2]))
    filters = [(position, a_filter(r, position)) for position in positions]
    output = tuple(r.sample(range(len(SCHEMA)), r.choice([1, 5, len(SCHEMA)])))
    units = [
        table(r, rows, words, nulls=r.choice([0.0, 0.3]), shift=r.choice([0, 0, 50]))
        for rows in (r.choice([1, 500, 3000]) for _ in range(3))
    ]
    schema = tuple(SCHEMA[position] for position in output)
    then = r.random() < 0.5
    keep = call("is_not_null", ref(schema, 0))
    choices = r.getrandbits(32)

    def chain() -> Any:
        uses = tuple(FilterUse(position, one) for position, one in filters)
        reader = RowReader(predicate, uses, output, {}, (None,) * len(SCHEMA), 700)
        same = random.Random(choices)
        pushed = [part for unit in units for part in rows_of(same, reader, unit.columns, unit.length)]
        given = Given(tuple(pushed), schema)
        return Filter(given, keep) if then else given

    agree(harness, chain, ordered=True)


@pytest.mark.parametrize("seed", [*range(24), 59])
def test_random_scans_of_memory(harness: Any, seed: int) -> None:
    """Several units at once, and again with what the first run has worked out for their columns."""
    r = random.Random(seed)
    trees, words = Trees(r), dictionary_of(WORDS)
    output = tuple(r.sample(range(len(SCHEMA)), r.choice([1, 5, len(SCHEMA)])))
    schema = tuple(SCHEMA[position] for position in output)
    units = [
        HotUnit(None, dict(enumerate(table(r, rows, words, nulls=r.choice([0.0, 0.3]), shift=shift).columns)))  # type: ignore[arg-type]
        for rows, shift in ((r.choice([1, 500, 3000]), r.choice([0, 0, 0, 50])) for _ in range(6))
    ]
    for predicate in (None, trees.flag(1), trees.flag(2)):

        def chain(predicate: Expression | None = predicate) -> Any:
            reader = RowReader(predicate, (), output, {}, (None,) * len(SCHEMA), 700)
            rows = HotRows(1, Pace())
            for hot in units:
                whole = Piece(0, len(hot.columns[0]), None)
                rows.add(ScanRows(reader, hot.columns, whole, is_tested=False, hot=hot))
            return Given((rows,), schema)

        agree(harness, chain, ordered=True)


def test_units_that_programs_cannot_address(harness: Any) -> None:
    """One among others that look the same."""
    schema = schema_of(INT)
    apart = torch.arange(3000).repeat_interleave(2)[::2]
    units = [FixedColumn(INT, values) for values in (torch.arange(3000), apart, torch.arange(3000))]
    few = call("lt", ref(schema, 0), integer(1000))

    def chain() -> Any:
        rows = HotRows(1, Pace())
        for part in scanned(units, few):
            rows.add(part)
        return summed(Given((rows,), schema), (), 0)

    agree(harness, chain)


@pytest.mark.parametrize("with_another", [False, True])
def test_sums_that_have_no_room_for_a_long_turn_are_made_in_shorter_ones(
    harness: Any, monkeypatch: pytest.MonkeyPatch, with_another: bool
) -> None:
    """By programs, and each row is counted once; perhaps behind a unit that they cannot address."""
    for module in (flow, fold):
        monkeypatch.setattr(module, "MOST_ROWS", 1700)
    for module in (groups, fold):
        monkeypatch.setattr(module, "LARGEST_SUM", 7_000 * 2999)
    folded: list[int] = []
    run = segment.Segment.run
    monkeypatch.setattr(
        segment.Segment, "run", lambda own, rows: folded.append(sum(each.length for each in rows)) or run(own, rows)
    )
    counted: Counter[OperatorMetrics] = Counter()
    add = OperatorMetrics.add_batch

    def recorded(own: OperatorMetrics, **given: Any) -> None:
        counted[own] += given.get("rows_in", 0)
        add(own, **given)

    monkeypatch.setattr(OperatorMetrics, "add_batch", recorded)
    units = [FixedColumn(INT, torch.arange(3000), None, (0, 2999)) for _ in range(5)]
    if with_another:
        units.insert(0, FixedColumn(INT, torch.arange(3000).repeat_interleave(2)[::2], None, (0, 2999)))

    def chain() -> Any:
        rows = HotRows(1, Pace())
        for part in scanned(units, None):
            rows.add(part)
        return summed(Given((rows,), schema_of(INT)), (), 0)

    agree(harness, chain)
    assert sum(length for length in folded if length > 1) >= 15_000
    assert max(counted.values()) == 3000 * len(units), "each row is counted once"
    assert max(folded) <= 7_000


@pytest.mark.parametrize("predicate", [False, True])
@pytest.mark.parametrize("kind", ["in order", "shuffled", "too far apart"])
def test_groups_of_a_unit_are_folded_in_parts_where_all_at_once_are_too_many(
    harness: Any, monkeypatch: pytest.MonkeyPatch, kind: str, predicate: bool
) -> None:
    """In parts of the rows that help: which is so where they are in order. Elsewhere programs do what is before."""
    monkeypatch.setattr(groups, "FEWEST_SLOTS", 16)
    monkeypatch.setattr(groups, "_MOST_STATE_BYTES", 8 * 2 * 500)
    monkeypatch.setattr(groups, "_PART_STATE_BYTES", 8 * 2 * 300)
    monkeypatch.setattr("pystachio.operators.aggregation.partial._MOST_STATE_BYTES", 8 * 2 * 500)
    schema = schema_of(INT)
    keys = torch.arange(3000) // 3 + 7
    if kind == "shuffled":
        keys = keys[torch.randperm(3000, generator=torch.Generator().manual_seed(3))]
    elif kind == "too far apart":
        keys = keys * 100
    runs: list[bool] = []
    run = segment.Segment.run

    def seen(self: segment.Segment, rows: Any) -> Any:
        runs.append(self.folded is not None)
        return run(self, rows)

    monkeypatch.setattr(segment.Segment, "run", seen)
    few = call("lt", ref(schema, 0), integer(10**6)) if predicate else None
    units = [FixedColumn(INT, keys)] * 7
    found = agree(harness, lambda: summed(Given(scanned(units, few), schema), (0,), 0))
    if kind == "in order":
        assert len(runs) > 2 * len(units)
        assert all(runs)
    elif predicate:
        # A few units are tried in vain; without a predicate there is nothing before the fold that would pay.
        assert len(runs) >= len(units) - 3
        assert not any(runs)
    else:
        assert not runs
    assert bool(found.programs) == (kind == "in order" or predicate)


def scanned(columns: list[FixedColumn], predicate: Expression | None = None) -> tuple[ScanRows, ...]:
    """Units of one column whose range no footer knows."""
    reader = RowReader(predicate, (), (0,), {}, (None,), 1 << 20)
    return tuple(ScanRows(reader, {0: one}, Piece(0, len(one), None), is_tested=False) for one in columns)


def test_units_whose_ranges_nobody_knows(harness: Any) -> None:
    """What a program was written for by the first one must not be assumed of the next."""
    schema = schema_of(INT)
    units = [
        FixedColumn(INT, torch.arange(0, 3000)),
        FixedColumn(INT, torch.arange(2**40, 2**40 + 3000)),
        FixedColumn(INT, torch.arange(-50_000, -47_000)),
        FixedColumn(INT, torch.full((3000,), 2**62)),
    ]
    few = call("lt", ref(schema, 0), integer(1000))
    agree(harness, lambda: Filter(Given(scanned(units), schema), few))
    for keys in ((), (0,)):
        agree(harness, lambda keys=keys: summed(Given(scanned(units), schema), keys, 0))
    agree(harness, lambda: summed(Filter(Given(scanned(units, few), schema), few), (0,), 0))


def integer(number: int) -> Expression:
    return lit(number, INT)


def test_text_filters_of_units_with_other_dictionaries(harness: Any) -> None:
    r = random.Random(5)
    wanted = filter_of_keys([codes(r, 3, dictionary_of(["a", "zz"]), 0.0)])
    assert wanted is not None
    units = [codes(r, 2000, dictionary_of(words), 0.1) for words in (WORDS, ["b"], ["q", "zz"], WORDS[::-1])]

    def chain() -> Any:
        reader = RowReader(None, (FilterUse(0, wanted),), (0,), {}, (None,), 1 << 20)
        pushed = [ScanRows(reader, {0: one}, Piece(0, len(one), None), is_tested=False) for one in units]
        return Filter(Given(tuple(pushed), schema_of(TEXT)), call("is_not_null", ref(schema_of(TEXT), 0)))

    assert agree(harness, chain, ordered=True).programs


def test_a_filter_of_texts_that_are_no_codes(harness: Any) -> None:
    """Programs cannot tell which pass: they are tested before, and not left to the join."""
    wanted = filter_of_keys([column_from_arrow(pa.array(["a", "zz"]))])
    assert wanted is not None
    column = column_from_arrow(pa.array(["a", "b", None, "zz", "c"] * 500))

    def chain() -> Any:
        reader = RowReader(None, (FilterUse(0, wanted),), (0,), {}, (None,), 1 << 20)
        rows = ScanRows(reader, {0: column}, Piece(0, len(column), None), is_tested=False)
        return Filter(Given((rows,), schema_of(TEXT)), call("is_not_null", ref(schema_of(TEXT), 0)))

    assert list(agree(harness, chain, ordered=True).rows) == ["('a',)", "('zz',)"] * 500


def test_counts_of_a_filter(harness: Any) -> None:
    """It counts the same rows whoever asks it."""
    column = FixedColumn(INT, torch.arange(5000) % 10)
    counts = []
    for fused in (False, True):
        use = FilterUse(0, RuntimeFilter(INT, (2, 4)))
        reader = RowReader(call("gt", ref(schema_of(INT), 0), integer(2)), (use,), (0,), {}, (None,), 1 << 20)
        rows = ScanRows(reader, {0: column}, Piece(0, 5000, None), is_tested=False)
        ctx = harness.context()
        (made,) = flow.Flow([], fused).push([rows], ctx)
        assert made.length == 1000
        counts.append((use._seen, use._passed))
    assert counts == [(3500, 1000)] * 2
