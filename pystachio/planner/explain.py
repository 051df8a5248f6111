"""A physical plan as a tree of text, and what each operator did once it ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pystachio.operators.aggregation.aggregate import Aggregate
from pystachio.operators.batch import Schema
from pystachio.operators.expressions import SortKey
from pystachio.operators.filter import Filter
from pystachio.operators.joins.join import Join
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan, operator_names
from pystachio.operators.project import Project
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.sort import Sort
from pystachio.operators.spool import Spool
from pystachio.operators.top_n import TopN
from pystachio.planner.expression_text import expression_text, operand_text
from pystachio.runtime.metrics import OperatorSnapshot

_BRANCH, _LAST, _LINE, _SPACE = "├─ ", "└─ ", "│  ", "   "
_SHORTEST_WAIT = 0.0005
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render(plan: PhysicalPlan, metrics: Mapping[str, OperatorSnapshot] | None = None) -> str:
    """One line per operator; of a join's two inputs the streamed one comes first, the build side second.

    `metrics` by operator name (`pipeline.operator_names`) adds rows, bytes, busy time and waits. A shared sub-plan is
    printed where it occurs first.
    """
    rendering = _Rendering(plan, metrics)
    lines = list(rendering.tree(plan.root, "", ""))
    for index, scalar in enumerate(plan.scalars):
        lines.append(f"scalar {index}:")
        lines += rendering.tree(scalar, _SPACE, _SPACE)
    return "\n".join(lines)


def describe(operator: Operator) -> str:
    """The operator in one line, without its inputs."""
    match operator:
        case Scan():
            return _describe_scan(operator)
        case Join():
            return _describe_join(operator)
        case Filter():
            return f"Filter {expression_text(operator.predicate, _names(operator.input.schema))}"
        case Aggregate():
            return _describe_aggregate(operator)
        case Project():
            return f"Project {_projected(operator)}"
        case Sort():
            first = "" if operator.wanted is None else f" first {operator.wanted:,}"
            return f"Sort{first} by {_sorted(operator.keys, operator.input.schema)}"
        case TopN():
            skipped = f" after {operator.offset:,}" if operator.offset else ""
            return f"TopN {operator.count:,}{skipped} by {_sorted(operator.keys, operator.input.schema)}"
        case ScanTopN():
            skipped = f" after {operator.offset:,}" if operator.offset else ""
            keys = _sorted(operator.keys, operator.schema)
            return f"TopN {operator.count:,}{skipped} by {keys} of {_describe_scan(operator.scan)}"
        case _:
            return operator.label()


class _Rendering:
    def __init__(self, plan: PhysicalPlan, metrics: Mapping[str, OperatorSnapshot] | None) -> None:
        self._names = operator_names(plan)
        self._metrics = metrics
        self._spools: dict[int, int] = {}

    def tree(self, operator: Operator, first: str, rest: str) -> Iterator[str]:
        """The sub-plan's lines: the first begins with `first`, the others with `rest`."""
        if isinstance(operator, Spool):
            number = self._spools.get(id(operator))
            if number is not None:
                yield f"{first}Spool {number} (as above)"
                return
            self._spools[id(operator)] = number = len(self._spools) + 1
            yield f"{first}Spool {number} for {operator.consumers} consumers{self._measured(operator)}"
        else:
            yield f"{first}{describe(operator)}{self._measured(operator)}"
        for position, child in enumerate(operator.inputs, start=1):
            last = position == len(operator.inputs)
            yield from self.tree(child, rest + (_LAST if last else _BRANCH), rest + (_SPACE if last else _LINE))

    def _measured(self, operator: Operator) -> str:
        if self._metrics is None:
            return ""
        measured = self._metrics.get(self._names[id(operator)])
        return "" if measured is None else f"  ({measured_text(measured)})"


def measured_text(measured: OperatorSnapshot) -> str:
    """rows, bytes, busy time, and every wait worth mentioning."""
    parts = [f"{measured.rows_out:,} rows", bytes_text(measured.bytes), f"busy {_seconds_text(measured.busy_seconds)}"]
    waits = ((str(reason), seconds) for reason, seconds in measured.wait_seconds.items())
    parts += [f"waited for {reason} {_seconds_text(s)}" for reason, s in waits if s >= _SHORTEST_WAIT]
    if measured.peak_memory:
        parts.append(f"held {bytes_text(measured.peak_memory)}")
    parts += [f"{count:,} {what}" for what, count in measured.counts.items() if count]
    return ", ".join(parts)


def bytes_text(count: float) -> str:
    """A number of bytes with a binary unit."""
    for unit in _BYTE_UNITS:
        if count < 1024 or unit == _BYTE_UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _names(schema: Schema) -> list[str]:
    return [field.name for field in schema]


def _describe_scan(scan: Scan) -> str:
    names = [scan.table.schema[column].name for column in scan.columns]
    parts = [f"Scan {scan.table.name} [{', '.join(names[position] for position in scan.output)}]"]
    if scan.predicate is not None:
        parts.append(f"where {expression_text(scan.predicate, names)}")
    if scan.filters:
        parts.append("keeping " + ", ".join(f"{names[used.column]} in filter {used.slot}" for used in scan.filters))
    return " ".join(parts)


def _describe_join(join: Join) -> str:
    left, right = _names(join.left.schema), _names(join.right.schema)
    conditions = []
    for a, b, null_equal in zip(join.left_keys, join.right_keys, join.null_equal, strict=True):
        conditions.append(f"{left[a]} {'is not distinct from' if null_equal else '='} {right[b]}")
    if join.residual is not None:
        conditions.append(operand_text(join.residual, left + right))
    parts = ["Join", "not in" if join.null_aware else join.kind.value]
    if conditions:
        parts.append("on " + " and ".join(conditions))
    parts.append(f"build {join.build}")
    keys = left if join.build == "left" else right
    positions = join.left_keys if join.build == "left" else join.right_keys
    made = [
        f"{slot} from {keys[position]}"
        for slot, position in zip(join.runtime_filters, positions, strict=True)
        if slot is not None
    ]
    if made:
        parts.append("making filter " + ", ".join(made) + (" for all nodes" if join.shares_filters else ""))
    parts.append(f"[{', '.join(_names(join.schema))}]")
    return " ".join(parts)


def _describe_aggregate(aggregate: Aggregate) -> str:
    names = _names(aggregate.schema)
    keys = len(aggregate.plan.keys)
    grouped = f" by {', '.join(names[:keys])}" if keys else ""
    sets = f" in {len(aggregate.plan.sets)} grouping sets" if aggregate.plan.sets else ""
    computed = names[keys : keys + len(aggregate.plan.outcomes)]
    return f"Aggregate{grouped}{sets}" + (f" computing {', '.join(computed)}" if computed else "")


def _projected(project: Project) -> str:
    names = _names(project.input.schema)
    parts = []
    for expression, field in zip(project.expressions, project.schema, strict=True):
        text = expression_text(expression, names)
        parts.append(text if text == field.name else f"{text} as {field.name}")
    return ", ".join(parts)


def _sorted(keys: Sequence[SortKey], schema: Schema) -> str:
    def one(key: SortKey) -> str:
        usual = key.nulls_first == key.descending
        order = (" desc" if key.descending else "") + (
            "" if usual or not schema[key.index].nullable else " nulls first" if key.nulls_first else " nulls last"
        )
        return schema[key.index].name + order

    return ", ".join(one(key) for key in keys)
