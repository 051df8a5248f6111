"""A node's part of a plan of several nodes.

All nodes have the same plan. Its operators run on every node, each over that node's rows, but for those that stand on
nothing except gathered or constant rows: they run on the coordinator alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Final

from pystachio.operators.exchanges.exchange import Exchange, ExchangeKind
from pystachio.operators.exchanges.filter_exchange import SharedFilter
from pystachio.operators.joins.join import Join
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.scans.statistics import StatisticsFold
from pystachio.operators.spool import Spool
from pystachio.operators.table import Table
from pystachio.operators.union_all import UnionAll
from pystachio.operators.values import Values

_RUNS_PER_NODE: Final = 8
"""Row groups are dealt out in so many runs for each node: what a predicate leaves is seldom that of one node alone."""

Reachable = dict[str, tuple[int, ...]]
"""By path the numbers of the nodes that can read the file; a file that is not in it is read by any."""


def is_single(operator: Operator) -> bool:
    """Whether the operator's rows are on the coordinator alone."""
    match operator:
        case Exchange(kind=kind):
            return kind is ExchangeKind.GATHER
        case Values() | StatisticsFold():
            return True
        case Scan() | ScanTopN():
            return False
    return all(is_single(child) for child in operator.inputs)


def with_inputs(operator: Operator, change: Callable[[Operator], Operator]) -> Operator:
    """The operator over changed inputs; the same object where nothing changed."""
    changed: dict[str, Any] = {}
    for field in fields(operator):  # type: ignore[arg-type]
        if not field.init:
            continue
        value = getattr(operator, field.name)
        if any(value is child for child in operator.inputs):
            new = change(value)
            if new is not value:
                changed[field.name] = new
        elif isinstance(value, tuple) and value and value is operator.inputs:
            new_inputs = tuple(change(child) for child in value)
            if any(new is not old for new, old in zip(new_inputs, value, strict=True)):
                changed[field.name] = new_inputs
    return replace(operator, **changed) if changed else operator  # type: ignore[type-var]


def part_of(plan: PhysicalPlan, here: int, nodes: int, reachable: Reachable) -> PhysicalPlan:
    """What node number `here` of `nodes` runs; the rows of its root are the answer on the coordinator, else none.

    Raises nothing for files that nobody reaches: whoever starts the plan has looked.
    """
    localised = _Localised(here, nodes, reachable)
    scalars = tuple(localised.operator(scalar) for scalar in plan.scalars)
    if here == 0:
        root = localised.operator(plan.root)
    else:
        gathers = [each for each in plan.operators if isinstance(each, Exchange) and each.kind is ExchangeKind.GATHER]
        root = UnionAll(tuple(localised.operator(gather) for gather in gathers), ())
    part = PhysicalPlan(root, scalars, plan.names if here == 0 else (), shared_filters=tuple(_shared_filters(plan)))
    return _counted(part, localised.names_in(plan))


def _shared_filters(plan: PhysicalPlan) -> Iterator[SharedFilter]:
    """Alike on all nodes: also those whose join runs on the coordinator alone."""
    for operator in plan.operators:
        if isinstance(operator, Join) and operator.shares_filters:
            keys = operator.right_keys if operator.build == "right" else operator.left_keys
            schema = operator.inputs[1].schema
            for slot, key in zip(operator.runtime_filters, keys, strict=True):
                if slot is not None:
                    name = plan.operator_names[id(operator)]
                    yield SharedFilter(slot, schema[key].type, name, not is_single(operator))


def shares(table: Table, nodes: int, reachable: Reachable) -> list[list[set[int]]]:
    """For each node, for each file, the row groups that it reads: each row group is one node's, alike on all nodes.

    Row groups are dealt out in runs, in turns among the nodes that reach them, to whom has the fewest rows so far.
    """
    found: list[list[set[int]]] = [[set() for _ in table.files] for _ in range(nodes)]
    loads = [0] * nodes
    run_rows = max(1, table.rows // (nodes * _RUNS_PER_NODE))
    for number, file in enumerate(table.files):
        able = reachable.get(file.path) or tuple(range(nodes))
        owner, left = -1, 0
        for group, rows in enumerate(file.row_group_rows):
            if left <= 0:
                owner, left = min(able, key=lambda node: (loads[node], node)), run_rows
            found[owner][number].add(group)
            loads[owner] += rows
            left -= rows
    return found


class _Localised:
    """Rebuilds operators for one node; what was one object stays one."""

    def __init__(self, here: int, nodes: int, reachable: Reachable) -> None:
        self._here = here
        self._nodes = nodes
        self._reachable = reachable
        self._done: dict[int, tuple[Operator, Operator]] = {}
        self._answered: dict[int, tuple[Table, tuple[tuple[int, ...], ...]]] = {}

    def operator(self, operator: Operator) -> Operator:
        known = self._done.get(id(operator))
        if known is None:
            known = operator, self._localise(operator)
            self._done[id(operator)] = known
        return known[1]

    def names_in(self, plan: PhysicalPlan) -> dict[int, str]:
        """What the operators that were made of the plan's are called, by `id`: alike on all nodes."""
        return {id(new): plan.operator_names[id(old)] for old, new in self._done.values()}

    def _localise(self, operator: Operator) -> Operator:
        match operator:
            case Scan():
                return self._scan(operator)
            case ScanTopN(scan=scan):
                return replace(operator, scan=self._scan(scan))
        return with_inputs(operator, self._input)

    def _input(self, child: Operator) -> Operator:
        return Values((), child.schema) if self._here != 0 and is_single(child) else self.operator(child)

    def _scan(self, scan: Scan) -> Scan:
        answered = self._others(scan.table)
        if scan.answered is not None:
            answered = tuple(tuple(sorted({*a, *b})) for a, b in zip(answered, scan.answered, strict=True))
        return replace(scan, answered=answered)

    def _others(self, table: Table) -> tuple[tuple[int, ...], ...]:
        """The row groups of all other nodes."""
        known = self._answered.get(id(table))
        if known is None:
            mine = shares(table, self._nodes, self._reachable)[self._here]
            groups = [range(len(file.row_group_rows)) for file in table.files]
            others = tuple(tuple(g for g in all_ if g not in own) for all_, own in zip(groups, mine, strict=True))
            known = self._answered[id(table)] = table, others
        return known[1]


def _counted(plan: PhysicalPlan, names: dict[int, str]) -> PhysicalPlan:
    """Spools know how many consumers are left on this node; operators keep their `names`, those without get one."""
    consumers = Counter(id(child) for operator in plan.operators for child in operator.inputs)
    consumers.update(id(top) for top in (plan.root, *plan.scalars))
    rebuilt: dict[int, Operator] = {}
    kept: dict[int, str] = {}

    def change(operator: Operator) -> Operator:
        if id(operator) not in rebuilt:
            changed = with_inputs(operator, change)
            if isinstance(changed, Spool) and changed.consumers != consumers[id(operator)]:
                changed = replace(changed, consumers=consumers[id(operator)])
            rebuilt[id(operator)] = changed
            kept[id(changed)] = names.get(id(operator)) or f"{type(changed).__name__} without rows {len(rebuilt)}"
        return rebuilt[id(operator)]

    root, scalars = change(plan.root), tuple(change(scalar) for scalar in plan.scalars)
    return PhysicalPlan(root, scalars, plan.names, given_names=kept, shared_filters=plan.shared_filters)
