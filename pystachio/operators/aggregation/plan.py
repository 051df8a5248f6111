"""How an aggregate is computed: which states, in which columns of a partial batch, and what becomes of them.

The columns of a partial batch are: the keys; the index of the grouping set, where there are several; with DISTINCT
calls the values to be distinct; then the states. Everything before the states groups them. Without DISTINCT one merge
by these columns is all there is. With DISTINCT the merge leaves every distinct value once per group, and a second one,
by keys only, folds the values and merges the other states.

Distinct values of one argument list share rows with the other states. Several argument lists take turns: a *tag*
column says to which list (from 1) a row belongs, 0 being the rows that carry the other states; a row is NULL in the
columns of the others ("expand", as in Spark's planning of several distinct aggregates).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pystachio.operators.aggregation.results import states_of
from pystachio.operators.aggregation.states import State, StateKind, state_types
from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import AggregateCall

_NO_DUPLICATES_MATTER = frozenset({"min", "max", "bool_and", "bool_or", "first_value", "any_value"})


@dataclass(frozen=True, slots=True)
class DistinctList:
    """Input fields whose distinct combinations some calls want, of the rows where `filter` is true."""

    arguments: tuple[int, ...]
    filter: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call's value comes from the final states `states`."""

    function: str
    type: pa.DataType
    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DistinctState:
    """A state folded over distinct values: its arguments and tag are columns of the partial batch."""

    state: State
    tag: int


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """`states` are in partial batches; `distinct_states` are made from `lists` by the second merge and numbered behind
    them. `sets` is empty, or the grouping sets as positions in `keys`."""

    keys: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...]
    lists: tuple[DistinctList, ...]
    states: tuple[State, ...]
    distinct_states: tuple[DistinctState, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def tagged(self) -> bool:
        return len(self.lists) > 1

    @property
    def key_width(self) -> int:
        """The leading columns of a partial batch that make the final groups."""
        return len(self.keys) + bool(self.sets)

    @property
    def group_width(self) -> int:
        """The leading columns of a partial batch that group its states."""
        return self.key_width + self.tagged + sum(len(listed.arguments) for listed in self.lists)

    def group_positions(self, tag: int) -> tuple[int, ...]:
        """Those of them in which rows of the tag differ, where there are tags."""
        starts = [self.key_width + 1]
        for listed in self.lists:
            starts.append(starts[-1] + len(listed.arguments))
        own = range(starts[tag - 1], starts[tag]) if tag else ()
        return (*range(self.key_width), *own)


def plan_aggregate(
    input_schema: Schema,
    keys: tuple[int, ...],
    calls: tuple[AggregateCall, ...],
    grouping_sets: tuple[tuple[int, ...], ...],
) -> AggregatePlan:
    """Raises Unsupported for a function that is not implemented."""
    lists = tuple(dict.fromkeys(DistinctList(call.arguments, call.filter) for call in calls if _is_distinct(call)))
    width = len(keys) + bool(grouping_sets) + (len(lists) > 1)
    starts = [width + sum(len(listed.arguments) for listed in lists[:i]) for i in range(len(lists))]
    states: dict[State, int] = {}
    distinct_states: dict[DistinctState, int] = {}
    wanted: list[tuple[AggregateCall, list[State | DistinctState]]] = []
    for call in calls:
        types = [input_schema[argument].type for argument in call.arguments]
        parts: list[State | DistinctState] = []
        for kind in states_of(_base(call.function), types[0] if types else None):
            columns = state_types(kind, types[0] if types else None)
            if _is_distinct(call):
                index = lists.index(DistinctList(call.arguments, call.filter))
                places = tuple(range(starts[index], starts[index] + len(call.arguments)))
                part = DistinctState(State(kind, places, None, columns), index + 1)
                distinct_states.setdefault(part, len(distinct_states))
                parts.append(part)
            else:
                state = State(kind, _read_by(kind, call, input_schema), call.filter, columns)
                states.setdefault(state, len(states))
                parts.append(state)
        wanted.append((call, parts))
    outcomes = tuple(
        Outcome(
            _base(call.function),
            call.type,
            tuple(states[p] if isinstance(p, State) else len(states) + distinct_states[p] for p in parts),
        )
        for call, parts in wanted
    )
    return AggregatePlan(keys, grouping_sets, lists, tuple(states), tuple(distinct_states), outcomes)


def partial_schema(plan: AggregatePlan, input_schema: Schema) -> Schema:
    """The columns of a partial batch."""
    fields = [Field(input_schema[key].name, input_schema[key].type) for key in plan.keys]
    if plan.sets:
        fields.append(Field("grouping set", pa.int32(), False))
    if plan.tagged:
        fields.append(Field("tag", pa.int32(), False))
    for listed in plan.lists:
        fields += [Field(input_schema[argument].name, input_schema[argument].type) for argument in listed.arguments]
    for state in plan.states:
        fields += [Field(state.kind.value, type_) for type_ in state.types]
    return tuple(fields)


def _read_by(kind: StateKind, call: AggregateCall, input_schema: Schema) -> tuple[int, ...]:
    """Counting values that are never NULL is counting rows: one state for all of them."""
    if kind is StateKind.COUNT and not any(input_schema[argument].nullable for argument in call.arguments):
        return ()
    return call.arguments


def _is_distinct(call: AggregateCall) -> bool:
    distinct = call.distinct or call.function == "approx_distinct"
    return distinct and bool(call.arguments) and call.function not in _NO_DUPLICATES_MATTER


def _base(function: str) -> str:
    """Counting exactly is a good approximation."""
    return "count" if function == "approx_distinct" else function
