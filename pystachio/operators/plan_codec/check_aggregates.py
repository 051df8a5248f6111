"""Aggregations of a plan that came as bytes: the layout of `aggregation.plan` and what refers to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from pystachio.errors import Unsupported, shown
from pystachio.operators.aggregation.plan import AggregatePlan, DistinctState, partial_schema
from pystachio.operators.aggregation.results import states_of
from pystachio.operators.aggregation.states import State, StateKind, state_types
from pystachio.operators.batch import Schema
from pystachio.operators.plan_codec.check_expressions import Inconsistent, require, require_positions, require_types


def require_partial(plan: AggregatePlan, read: Schema) -> None:
    """That `plan` can be carried out on rows of `read`."""
    require_positions(plan.keys, len(read), "keys")
    _require_layout(plan)
    for listed in plan.lists:
        require_positions(listed.arguments, len(read), "lists")
        _require_filter(listed.filter, read)
    for state in plan.states:
        require_positions(state.arguments, len(read), "states")
        _require_filter(state.filter, read)
        _require_state(state, [read[argument].type for argument in state.arguments])
    made = partial_schema(plan, read)
    for distinct in plan.distinct_states:
        _require_distinct_state(plan, distinct, [field.type for field in made[: plan.group_width]])


def require_final(plan: AggregatePlan, states: Schema, schema: Schema) -> None:
    """That partial batches of `states` can be merged into rows of `schema`."""
    types = [field.type for field in states]
    _require_layout(plan)
    require_states(plan, len(states), types)
    for distinct in plan.distinct_states:
        _require_distinct_state(plan, distinct, types[: plan.group_width])
    keys = len(plan.keys)
    sets = [pa.int32()] if plan.sets else []
    require_types(
        [field.type for field in schema],
        [*types[:keys], *(outcome.type for outcome in plan.outcomes), *sets],
        "the result",
    )


def require_states(plan: AggregatePlan, width: int, types: Sequence[pa.DataType]) -> None:
    """That columns of these types are partial batches of the plan, as far as their states go."""
    states = [type_ for state in plan.states for type_ in state.types]
    require(width == plan.group_width + len(states), f"{width} columns for a plan of {plan.group_width + len(states)}")
    require_types(types[plan.group_width :], states, "the states")


def _require_layout(plan: AggregatePlan) -> None:
    for grouping_set in plan.sets:
        require_positions(grouping_set, len(plan.keys), "sets")
    require(all(listed.arguments for listed in plan.lists), "distinct values of nothing")
    states = [*plan.states, *(distinct.state for distinct in plan.distinct_states)]
    for outcome in plan.outcomes:
        require_positions(outcome.states, len(states), "outcomes")
        found = [states[place] for place in outcome.states]
        argument = _argument_of(found[0]) if found else None
        try:
            kinds: Iterable[StateKind] = states_of(outcome.function, argument)
        except Unsupported as error:
            raise Inconsistent(str(error)) from error
        if [state.kind for state in found] != list(kinds):
            raise Inconsistent(f"{shown(outcome.function)} of the states {[str(state.kind) for state in found]}")


def _argument_of(state: State) -> pa.DataType | None:
    """A type with the states of the argument's: sums of floats differ from all others."""
    if state.kind is StateKind.COUNT:
        return None
    return pa.float64() if state.kind is StateKind.FLOAT_SUM else pa.int64()


def _require_state(state: State, arguments: Sequence[pa.DataType]) -> None:
    if state.kind is not StateKind.COUNT:
        require(bool(arguments), f"{state.kind} of nothing")
    require_types(state.types, state_types(state.kind, arguments[0] if arguments else None), f"the state {state.kind}")


def _require_distinct_state(plan: AggregatePlan, distinct: DistinctState, types: Sequence[pa.DataType]) -> None:
    require(1 <= distinct.tag <= len(plan.lists), f"a tag of {len(plan.lists)}: {distinct.tag}")
    require(distinct.state.filter is None, "a filter of distinct values")
    require_positions(distinct.state.arguments, plan.group_width, "distinct_states")
    _require_state(distinct.state, [types[argument] for argument in distinct.state.arguments])


def _require_filter(place: int | None, read: Schema) -> None:
    if place is not None:
        require_positions([place], len(read), "filter")
        require(pa.types.is_boolean(read[place].type), f"a filter of the type {read[place].type}")
