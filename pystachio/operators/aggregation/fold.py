"""Aggregation of batches: rows to partial batches, partial batches to one, and that to the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import torch

from pystachio.operators.aggregation.different_groups import has_no_group_twice
from pystachio.operators.aggregation.plan import AggregatePlan, DistinctList
from pystachio.operators.aggregation.results import result
from pystachio.operators.aggregation.states import StateKind, lift, merge, passing_rows
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import BytesColumn, Column, FixedColumn, ViewColumn
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.grouping import group_rows, one_group
from pystachio.operators.kernels.selection import (
    all_null,
    concat_batches,
    device_of,
    settled_batch,
    slice_batch,
    slice_column,
    take,
    take_batch,
    with_validity,
)

SAMPLE_ROWS: Final = 1 << 14
_SAMPLE_BLOCKS: Final = 16
_FEW_NULLS: Final = 8
"""Less than one row of so many without a key is not worth moving the others."""


def partial_batches(
    plan: AggregatePlan, batch: Batch, device: torch.device, *, reduce: Sequence[bool], allow_direct: bool
) -> Iterator[Batch]:
    """The rows of an input batch as partial batches; grouped when `reduce`, else every row as its own state.

    `reduce` has one entry, or one for each list of distinct values where there are several.
    """
    if len(plan.sets) > 1 and not plan.lists and reduce[0]:
        yield from _of_sets(plan, batch, device, allow_direct)
        return
    for number, chosen in enumerate(plan.sets or (tuple(range(len(plan.keys))),)):
        keys = _keys(plan, batch, chosen)
        if plan.sets:
            keys.append(_constant(number, batch.length, device))
        if plan.tagged:
            yield from _tagged(plan, batch, keys, device, reduce, allow_direct)
            continue
        for listed in plan.lists:
            keys += _masked(listed, batch)
        states = _lifted(plan, batch, None, device)
        if reduce[0]:
            yield _grouped(plan, keys, states, batch, device, allow_direct)
        else:
            yield Batch((*keys, *states), batch.length, batch.ready)


def without_keys_apart(plan: AggregatePlan, batch: Batch, device: torch.device) -> tuple[Batch | None, Batch]:
    """The rows whose only key is NULL as a partial batch of one group, if they are many, and the others: nobody looks
    that group up, and it does not make the others seem to be of few. Not on a GPU, where each step would be waited for,
    and not of texts, which would be copied."""
    if plan.sets or plan.lists or len(plan.keys) != 1 or device.type != "cpu":
        return None, batch
    position = plan.keys[0]
    validity = batch.columns[position].validity
    if validity is None or any(isinstance(column, BytesColumn | ViewColumn) for column in batch.columns):
        return None, batch
    count = batch.length - int(np.count_nonzero(validity.numpy()))
    if count * _FEW_NULLS < batch.length:
        return None, batch
    keyless = batch
    if count < batch.length:
        keyless = take_batch(batch, primitives(device).indices_of_true(~validity))
        batch = take_batch(batch, primitives(device).indices_of_true(validity))
        # Only now: what is known of a column's values is not so of what lies under its NULLs.
        others = list(batch.columns)
        others[position] = with_validity(others[position], None)
        batch = Batch(tuple(others), batch.length, batch.ready)
    else:
        batch = slice_batch(batch, 0, 0)
    grouping = one_group(count, device)
    columns = [slice_column(keyless.columns[position], 0, 1)]
    for state, parts in zip(plan.states, _state_columns(plan, _lifted(plan, keyless, None, device)), strict=True):
        columns += merge(state, parts, grouping)
    return Batch(tuple(columns), 1, keyless.ready), batch


def _of_sets(plan: AggregatePlan, batch: Batch, device: torch.device, allow_direct: bool) -> Iterator[Batch]:
    """The groups of each grouping set."""
    keys = [batch.columns[key] for key in plan.keys]
    finest = _grouped(plan, keys, _lifted(plan, batch, None, device), batch, device, allow_direct)
    return in_sets(plan, finest, device, allow_direct=allow_direct)


def in_sets(plan: AggregatePlan, finest: Batch, device: torch.device, *, allow_direct: bool) -> Iterator[Batch]:
    """The groups of each grouping set, made of those of the least other set that has all of its keys: a rollup's rows
    are grouped once, and after that groups (Gray et al., "Data cube", 1997). `finest` has those of all keys."""
    width, everything = len(plan.keys), frozenset(range(len(plan.keys)))
    made = [(everything, finest)]
    for number, chosen in sorted(enumerate(plan.sets), key=lambda each: len(set(each[1])), reverse=True):
        wanted = frozenset(chosen)
        held, source = min((each for each in made if each[0] >= wanted), key=lambda each: each[1].length)
        columns, states = list(source.columns[:width]), list(source.columns[width:])
        if held != wanted:
            columns = [columns[at] if at in wanted else _without_values(columns[at]) for at in range(width)]
            source = _grouped(plan, columns, states, source, device, allow_direct)
            made.append((wanted, source))
        index = _constant(number, source.length, device)
        yield Batch((*source.columns[:width], index, *source.columns[width:]), source.length, source.ready)


def _without_values(column: Column) -> Column:
    """NULL in every row."""
    return with_validity(column, torch.zeros(len(column), dtype=torch.bool, device=device_of(column)))


def expected_groups(plan: AggregatePlan, batch: Batch, number: int, device: torch.device, *, allow_direct: bool) -> int:
    """About how many groups the batch (of more than SAMPLE_ROWS) has; with the values of the list `number`, if it has
    lists.

    Of a sample's second half some rows bring a group that the first half does not have. Behind n rows of G groups, all
    as frequent, exp(-n / G) of them do; where groups are very unequal, their number grows like a power of n (Heaps'
    law). The geometric mean of what both say stands for what lies between.
    """
    listed = plan.lists[number].arguments if plan.lists else ()
    keys = [batch.columns[position] for position in (*plan.keys, *listed)]
    starts = torch.arange(_SAMPLE_BLOCKS, device=device) * (batch.length // _SAMPLE_BLOCKS)
    rows = (starts.unsqueeze(1) + torch.arange(SAMPLE_ROWS // _SAMPLE_BLOCKS, device=device)).view(-1)
    half = SAMPLE_ROWS // 2
    grouping = group_rows([take(key, rows) for key in keys], SAMPLE_ROWS, device, allow_direct=allow_direct)
    assert grouping.ids is not None, "there are keys"
    seen = torch.zeros(grouping.slots, dtype=torch.bool, device=device)
    seen[grouping.ids[:half]] = True
    fewer, more = int(seen.sum()), grouping.groups
    if more == fewer:
        return more
    if more - fewer >= half:
        return batch.length
    groups = 1.5 * half / -math.log((more - fewer) / half)
    equal = max(more, groups * -math.expm1(-batch.length / groups))
    unequal = more * (more / fewer) ** math.log2(batch.length / SAMPLE_ROWS)
    return int(math.sqrt(equal * unequal))


def merged(
    plan: AggregatePlan,
    batches: Sequence[Batch],
    device: torch.device,
    *,
    allow_direct: bool,
    runs: np.ndarray | None = None,
    tag: int | None = None,
) -> Batch:
    """One partial batch with each group once. `runs` of the rows, one batch after the other: see `group_rows`. `tag` is
    that of all rows, if that is known: they do not differ in the values of other lists then."""
    width = plan.group_width
    if len(batches) == 1 and has_no_group_twice(batches[0].columns[:width], batches[0].length):
        return settled_batch(batches[0])
    whole = concat_batches(batches)
    states = list(whole.columns[width:])
    groups = _grouped(plan, list(whole.columns[:width]), states, whole, device, allow_direct, runs, tag)
    return settled_batch(groups)


def finished(plan: AggregatePlan, partial: Batch, device: torch.device, *, allow_direct: bool) -> Batch:
    """The aggregate's output from a partial batch that has each group once."""
    if plan.lists:
        partial = without_values(plan, partial, device, allow_direct=allow_direct)
    return _results(plan, partial)


def finished_together(
    plan: AggregatePlan, parts: Sequence[Batch], device: torch.device, *, allow_direct: bool
) -> Batch:
    """The output from batches `without_values`, in several of which a group may be."""
    whole = concat_batches(parts)
    keys = list(whole.columns[: plan.key_width])
    grouping = group_rows(keys, whole.length, device, allow_direct=allow_direct)
    columns = [take(key, grouping.representatives) for key in keys]
    start = plan.key_width
    for state in (*plan.states, *(distinct.state for distinct in plan.distinct_states)):
        columns += merge(state, list(whole.columns[start : start + len(state.types)]), grouping)
        start += len(state.types)
    return _results(plan, Batch(tuple(columns), grouping.groups, whole.ready))


def without_values(plan: AggregatePlan, partial: Batch, device: torch.device, *, allow_direct: bool) -> Batch:
    """The keys and states of a partial batch whose distinct values (each there once) are folded into states."""
    states = _state_columns(plan, partial.columns[plan.group_width :])
    keys = list(partial.columns[: plan.key_width])
    grouping = group_rows(keys, partial.length, device, allow_direct=allow_direct)
    columns = [take(key, grouping.representatives) for key in keys]
    for state, lifted in zip(plan.states, states, strict=True):
        columns += merge(state, lifted, grouping)
    for distinct in plan.distinct_states:
        arguments = [partial.columns[position] for position in distinct.state.arguments]
        passing = _of_tag(plan, partial, distinct.tag)
        lifted = lift(distinct.state.kind, arguments, passing, partial.length, device)
        columns += merge(distinct.state, lifted, grouping)
    return Batch(tuple(columns), grouping.groups, partial.ready)


def _results(plan: AggregatePlan, groups: Batch) -> Batch:
    """The output from keys and states, each group once."""
    columns = groups.columns[plan.key_width :]
    states: list[Sequence[Column]] = []
    for state in (*plan.states, *(distinct.state for distinct in plan.distinct_states)):
        states.append(columns[: len(state.types)])
        columns = columns[len(state.types) :]
    values = [
        result(outcome.function, outcome.type, [column for state in outcome.states for column in states[state]])
        for outcome in plan.outcomes
    ]
    keys, set_index = groups.columns[: len(plan.keys)], groups.columns[len(plan.keys) : plan.key_width]
    return Batch((*keys, *values, *set_index), groups.length, groups.ready)


def without_rows(plan: AggregatePlan, schema: Schema, device: torch.device) -> list[Batch]:
    """What an empty input makes: a partial batch of one group for the empty set of keys, nothing for others.

    `schema` is the partial batches' schema.
    """
    batches = []
    for number, chosen in enumerate(plan.sets or (tuple(range(len(plan.keys))),)):
        if chosen:
            continue
        columns = [all_null(field.type, 1, device) for field in schema[: plan.group_width]]
        if plan.sets:
            columns[len(plan.keys)] = _constant(number, 1, device)
        if plan.tagged:
            columns[plan.key_width] = _constant(0, 1, device)
        for state in plan.states:
            empty = [all_null(type_, 0, device) for type_ in state.types]
            columns += merge(state, empty, one_group(0, device))
        batches.append(Batch(tuple(columns), 1, None))
    return batches


def _keys(plan: AggregatePlan, batch: Batch, chosen: tuple[int, ...]) -> list[Column]:
    columns = [batch.columns[key] for key in plan.keys]
    return [column if position in chosen else _without_values(column) for position, column in enumerate(columns)]


def _masked(listed: DistinctList, batch: Batch) -> list[Column]:
    """The values of a distinct list, NULL where its filter is not true."""
    columns = [batch.columns[argument] for argument in listed.arguments]
    if listed.filter is None:
        return columns
    passing = passing_rows(batch.columns[listed.filter])
    assert passing is not None
    return [with_validity(c, passing if c.validity is None else c.validity & passing) for c in columns]


def _tagged(
    plan: AggregatePlan,
    batch: Batch,
    keys: list[Column],
    device: torch.device,
    reduce: Sequence[bool],
    allow_direct: bool,
) -> Iterator[Batch]:
    """The batch once for the states and once for each list of distinct values."""
    nothing = [batch.columns[argument] for listed in plan.lists for argument in listed.arguments]
    grouping = group_rows(keys, batch.length, device, allow_direct=allow_direct)
    states = _lifted(plan, batch, None, device)
    columns = [take(key, grouping.representatives) for key in keys] if keys else []
    columns.append(_constant(0, grouping.groups, device))
    columns += [all_null(column.type, grouping.groups, device, like=column) for column in nothing]
    for state, lifted in zip(plan.states, _state_columns(plan, states), strict=True):
        columns += merge(state, lifted, grouping)
    yield Batch(tuple(columns), grouping.groups, batch.ready)
    whole = Batch((*keys, *batch.columns), batch.length, batch.ready)
    for number, listed in enumerate(plan.lists):
        yield _of_list(plan, whole, len(keys), number, listed, device, reduce[number], allow_direct)


def _of_list(
    plan: AggregatePlan,
    whole: Batch,
    key_count: int,
    number: int,
    listed: DistinctList,
    device: torch.device,
    reduce: bool,
    allow_direct: bool,
) -> Batch:
    """The distinct values of one list, with `reduce` once each; `whole` has the keys before the batch's columns."""
    passing = passing_rows(None if listed.filter is None else whole.columns[key_count + listed.filter])
    if passing is not None:
        whole = take_batch(whole, primitives(device).indices_of_true(passing))
    if reduce:
        values = [whole.columns[key_count + argument] for argument in listed.arguments]
        grouping = group_rows([*whole.columns[:key_count], *values], whole.length, device, allow_direct=allow_direct)
        whole = take_batch(whole, grouping.representatives)
    representatives, rows = Batch(whole.columns[key_count:], whole.length, whole.ready), whole.length
    columns = list(whole.columns[:key_count])
    columns.append(_constant(number + 1, rows, device))
    for other, its in enumerate(plan.lists):
        own = [representatives.columns[argument] for argument in its.arguments]
        columns += own if other == number else [all_null(c.type, rows, device, like=c) for c in own]
    columns += _lifted(plan, representatives, torch.zeros(rows, dtype=torch.bool, device=device), device)
    return Batch(tuple(columns), rows, whole.ready)


def _grouped(
    plan: AggregatePlan,
    keys: list[Column],
    states: list[Column],
    rows: Batch,
    device: torch.device,
    allow_direct: bool,
    runs: np.ndarray | None = None,
    tag: int | None = None,
) -> Batch:
    counted = any(state.kind is StateKind.COUNT for state in plan.states)
    differing = keys
    if tag is not None:
        # The tag itself where there is nothing else: a group of no keys would be one without rows, too.
        differing = [keys[position] for position in plan.group_positions(tag) or (plan.key_width,)]
    grouping = group_rows(differing, rows.length, device, allow_direct=allow_direct, runs=runs, counted=counted)
    columns = keys if grouping.is_trivial else [take(key, grouping.representatives) for key in keys]
    for state, parts in zip(plan.states, _state_columns(plan, states), strict=True):
        columns = columns + merge(state, parts, grouping)
    return Batch(tuple(columns), grouping.groups, rows.ready)


def _lifted(plan: AggregatePlan, batch: Batch, passing: torch.Tensor | None, device: torch.device) -> list[Column]:
    """The state columns of single rows; `passing` overrides the calls' own filters."""
    columns: list[Column] = []
    for state in plan.states:
        arguments = [batch.columns[argument] for argument in state.arguments]
        mask = passing
        if mask is None:
            mask = passing_rows(None if state.filter is None else batch.columns[state.filter])
        columns += lift(state.kind, arguments, mask, batch.length, device)
    return columns


def _state_columns(plan: AggregatePlan, columns: Sequence[Column]) -> list[list[Column]]:
    """The columns of each state."""
    parts, start = [], 0
    for state in plan.states:
        parts.append(list(columns[start : start + len(state.types)]))
        start += len(state.types)
    return parts


def _of_tag(plan: AggregatePlan, partial: Batch, tag: int) -> torch.Tensor | None:
    if not plan.tagged:
        return None
    column = partial.columns[plan.key_width]
    assert isinstance(column, FixedColumn)
    return column.values == tag


def _constant(value: int, rows: int, device: torch.device) -> FixedColumn:
    values = torch.full((rows,), value, dtype=torch.int32, device=device)
    return FixedColumn(pa.int32(), values, None, (value, value))
