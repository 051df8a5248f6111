"""PartialAggregate: batches are folded where they are made, if that makes them smaller."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Final, Protocol

import torch

from pystachio.operators.aggregation.fold import (
    SAMPLE_ROWS,
    expected_groups,
    in_sets,
    partial_batches,
    without_keys_apart,
)
from pystachio.operators.aggregation.parts import can_split
from pystachio.operators.aggregation.plan import AggregatePlan, partial_schema
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import BytesColumn, ViewColumn
from pystachio.operators.operator import Operator
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context

_SMALLEST_GROUPED_BATCH: Final = 4096
"""Grouping a batch costs as much as merging this many rows with others."""

_SAMPLED_BATCH: Final = 4 * SAMPLE_ROWS
"""So large a batch is not grouped before a sample says that it pays."""

_WORTH: Final = 3
_WORTH_OF_TEXTS: Final = 6
_WORTH_OF_MOVED_TEXTS: Final = 2
"""A sample must promise so many rows for each group: a table that is made in vain costs more than moving the rows.
Texts of keys are dear to look up; others, and those that cannot stay where they lie, are dearer to move."""

_BATCHES_PASSED_THROUGH: Final = 7
"""After a batch that did not shrink so many are not even tried, after the next one twice as many, and so on."""


_MOST_STATE_BYTES: Final = 32 << 20
"""What a thread's states of programs may take together, where they are many,"""
_STATE_SHARE: Final = 16
"""and all threads' together: one of so many parts of the budget."""


@dataclass(slots=True, eq=False)
class FoldHistory:
    """What runs of a plan have learnt of its rows, for those to come. Threads may race; the worst is that something is
    learnt twice.

    `samples`: whether a sample has said that grouping pays, by the numbers of `PartialFold.gains`. `rows`: so many came
    that were folded by themselves, or into states that stay; in the last run, or in this one if it has seen more.
    `unordered`: of so many units a part of the rows has nearly as many groups as all of them.
    """

    samples: dict[int, bool] = field(default_factory=dict)
    rows: int = 0
    unordered: int = 0


@dataclass(slots=True, eq=False)
class _Seen:
    """Rows of one run."""

    rows: int = 0


@dataclass(frozen=True, slots=True)
class PartialAggregate:
    """Streaming: each batch by itself as partial states, in the layout of `aggregation.plan`."""

    input: Operator
    plan: AggregatePlan
    _history: FoldHistory = field(default_factory=FoldHistory, init=False, compare=False, repr=False)

    prefers_large_batches: ClassVar[bool] = True

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return partial_schema(self.plan, self.input.schema)

    def label(self) -> str:
        return f"PartialAggregate {described(self.plan, self.schema)}"

    async def open(self, ctx: Context, builds: tuple[Receiver[Batch], ...]) -> PartialFold:
        gains = tuple(_Gain() for _ in range(len(self.plan.lists) if self.plan.tagged else 1))
        # What goes to other nodes moves with its texts.
        in_place = ctx.peers is None and can_split(self.plan, ctx.stream.device)
        return PartialFold(
            self.plan,
            ctx.stream.device,
            ctx.settings.direct_addressing,
            gains,
            history=self._history,
            texts_stay=in_place,
            most_state_bytes=min(_MOST_STATE_BYTES, ctx.memory.budget() // (_STATE_SHARE * ctx.settings.workers)),
        )


@dataclass(slots=True)
class _Gain:
    """Whether grouping batches pays. Threads may race but for a sample; the worst is a batch grouped in vain."""

    to_pass_through: int = 0
    next_to_pass_through: int = _BATCHES_PASSED_THROUGH
    shrank: bool = False
    """The last batch that was tried."""
    sampling: threading.Lock = field(default_factory=threading.Lock)
    """Who waits for it may find that another thread's sample has said all."""

    def should_reduce(self) -> bool:
        if self.to_pass_through > 0:
            self.to_pass_through -= 1
            return False
        return True

    def record(self, rows: int, groups: int) -> None:
        self.shrank = 2 * groups <= rows
        if self.shrank:
            self.next_to_pass_through = _BATCHES_PASSED_THROUGH
        else:
            self.to_pass_through = self.next_to_pass_through
            self.next_to_pass_through *= 2


class KeptStates(Protocol):
    """States that stay between batches until the end: of groups by all keys, where there are grouping sets."""

    @property
    def nbytes(self) -> int: ...

    @property
    def rows_in_states(self) -> int: ...

    def finish(self) -> Iterator[Batch]: ...


@dataclass(frozen=True, slots=True, eq=False)
class PartialFold:
    """An opened PartialAggregate. `gains`: of all rows, or of each list of distinct values where there are several.
    `kept`: what programs folded in its place (`operators.fusion`), of which a thread's states take no more than
    `most_state_bytes`. `texts_stay`: those of keys stay where they lie until partial batches are merged."""

    plan: AggregatePlan
    device: torch.device
    allow_direct: bool
    gains: tuple[_Gain, ...]
    kept: list[KeptStates] = field(default_factory=list)
    history: FoldHistory = field(default_factory=FoldHistory)
    texts_stay: bool = False
    most_state_bytes: int = 0
    _seen: _Seen = field(default_factory=_Seen, init=False)

    @property
    def expected_rows(self) -> int:
        """About so many rows come to be folded by themselves, or into states that stay."""
        return self.history.rows

    def has_room(self, nbytes: int) -> bool:
        """For states of so many bytes in each thread, beside those that programs have."""
        return nbytes + sum(each.nbytes for each in self.kept) <= self.most_state_bytes

    def process(self, batch: Batch) -> Iterator[Batch]:
        self._seen.rows += batch.length
        self.history.rows = max(self.history.rows, self._seen.rows)
        large = batch.length >= _SMALLEST_GROUPED_BATCH
        if large:
            keyless, batch = without_keys_apart(self.plan, batch, self.device)
            if keyless is not None:
                yield keyless
                if not batch.length:
                    return
        tried = [large and self._pays(number, batch) for number in range(len(self.gains))]
        reduce = tried if self.plan.group_width else [True]
        groups = []
        for part in partial_batches(self.plan, batch, self.device, reduce=reduce, allow_direct=self.allow_direct):
            groups.append(part.length)
            yield part
        if len(self.plan.sets) <= 1:
            # Before those of lists of distinct values come the other states.
            for gain, was_tried, count in zip(self.gains, tried, groups[self.plan.tagged :], strict=True):
                if was_tried:
                    gain.record(batch.length, count)

    def _pays(self, number: int, batch: Batch) -> bool:
        """Whether to group the batch, as far as earlier ones and a sample say."""
        gain = self.gains[number]
        if gain.shrank or self.plan.sets or not self.plan.group_width or batch.length < _SAMPLED_BATCH:
            return gain.should_reduce()
        with gain.sampling:
            if not gain.should_reduce():
                return False
            pays = self.history.samples.get(number)
            if pays is None:
                expected = expected_groups(self.plan, batch, number, self.device, allow_direct=self.allow_direct)
                pays = self._worth(batch) * expected <= batch.length
                self.history.samples[number] = pays
            if not pays:
                gain.record(batch.length, batch.length)
            return pays

    def _worth(self, batch: Batch) -> int:
        """How many rows a group must have."""
        texts = [at for at, column in enumerate(batch.columns) if isinstance(column, BytesColumn | ViewColumn)]
        if not texts:
            return _WORTH
        keys = {*self.plan.keys, *chain.from_iterable(listed.arguments for listed in self.plan.lists)}
        stay = keys.issuperset(texts) and all(isinstance(batch.columns[at], BytesColumn) for at in texts)
        return _WORTH_OF_TEXTS if stay and self.texts_stay else _WORTH_OF_MOVED_TEXTS

    def finish(self) -> Iterator[Batch] | None:
        self.history.rows = self._seen.rows + sum(each.rows_in_states for each in self.kept)
        return self._finished() if self.kept else None

    def _finished(self) -> Iterator[Batch]:
        groups = chain.from_iterable(kept.finish() for kept in self.kept)
        yield from self._in_sets(groups) if self.plan.sets else groups
        # Whose keys may be columns of a join that has given its memory back.
        self.kept.clear()

    def _in_sets(self, groups: Iterable[Batch]) -> Iterator[Batch]:
        """Those of all keys in each grouping set."""
        for batch in groups:
            yield from in_sets(self.plan, batch, self.device, allow_direct=self.allow_direct)

    def close(self) -> None:
        pass


def described(plan: AggregatePlan, schema: Schema) -> str:
    """The aggregation in SQL's words; `schema` begins with the keys."""
    keys = ", ".join(field.name for field in schema[: len(plan.keys)])
    functions = ", ".join(outcome.function for outcome in plan.outcomes)
    sets = f" sets={len(plan.sets)}" if plan.sets else ""
    return f"by [{keys}] of [{functions}]{sets}"
