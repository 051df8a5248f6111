"""Keys that so many rows have that one node would have all the work: found in samples of tables.

After Xu, Kostamaa, Zhou and Chen, "Handling data skew in parallel joins in shared-nothing systems" (SIGMOD 2008): rows
with such keys stay where they are, and what they are joined with goes to every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import PystachioError
from pystachio.operators.batch import Batch
from pystachio.operators.evaluate import select
from pystachio.operators.expressions import Cast, FieldReference, ScalarSubquery, fields_of, walk
from pystachio.operators.filter import Filter
from pystachio.operators.joins.join import Join
from pystachio.operators.kernels.partition import hash_rows
from pystachio.operators.kernels.selection import take_batch
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import Sample
from pystachio.operators.project import Project
from pystachio.operators.scans.scan import Scan
from pystachio.operators.spool import Spool
from pystachio.planner.pushdown import moved

_FEWEST_SAMPLED: Final = 16
"""Rows of a sample that must have a key before it is believed to be heavy."""


def heavy_hashes(operator: Operator, keys: Sequence[int], nodes: int, sample: Sample) -> tuple[int, ...]:
    """The hashes (`kernels.partition`, of `keys` in this order) that more rows of the operator have than half of a
    node's share, ascending; none where the keys are not columns of one table, or its sample cannot be read. Blocking.

    It is the hash that is heavy: what else has it goes the same way.
    """
    origins = [_origin(operator, key) for key in keys]
    scans = [scan for scan, _ in origins if scan is not None]
    if not keys or len(scans) < len(keys) or any(scan is not scans[0] for scan in scans):
        return ()
    try:
        rows = _sampled(scans[0], [column for _, column in origins], sample)
    except PystachioError:  # the query will tell, if it ever gets to those rows
        return ()
    if not rows.length:
        return ()
    hashes, counts = torch.unique(hash_rows(rows.columns, rows.length), return_counts=True)
    least = max(_FEWEST_SAMPLED, rows.length / (2 * nodes))
    return tuple(hashes[counts > least].tolist())


def _origin(operator: Operator, field: int) -> tuple[Scan | None, int]:
    """The scan that reads the field, and its position among the scan's columns."""
    match operator:
        case Scan():
            return operator, operator.output[field]
        case Filter() | Spool():
            return _origin(operator.input, field)
        case Project():
            expression = operator.expressions[field]
            while isinstance(expression, Cast) and _keeps_hashes(expression):
                expression = expression.operand
            return _origin(operator.input, expression.index) if isinstance(expression, FieldReference) else (None, 0)
        case Join():
            position, width = operator.output[field], len(operator.left.schema)
            if position < width:
                return _origin(operator.left, position)
            is_mark = position == width + len(operator.right.schema)
            return (None, 0) if is_mark else _origin(operator.right, position - width)
    return None, 0


def _keeps_hashes(cast: Cast) -> bool:
    """Integers are hashed alike in all widths."""
    return bool(pa.types.is_integer(cast.type) and pa.types.is_integer(cast.operand.type))


def _sampled(scan: Scan, columns: Sequence[int], sample: Sample) -> Batch:
    """The columns (positions among the scan's) of those sampled rows that pass the scan's predicate, if it can be
    tried."""
    predicate = scan.predicate
    if predicate is not None and any(isinstance(node, ScalarSubquery) for node in walk(predicate)):
        predicate = None
    tested = [] if predicate is None else sorted(fields_of(predicate))
    wanted = [*columns, *tested]
    rows = sample(scan.table, [scan.columns[position] for position in wanted])
    chosen = None
    if predicate is not None and rows.length:
        try:
            chosen = select(moved(predicate, {old: len(columns) + new for new, old in enumerate(tested)}), rows)
        except PystachioError:  # a division by zero, an overflow: the query will tell
            chosen = None
    kept = Batch(rows.columns[: len(columns)], rows.length, None)
    return kept if chosen is None else take_batch(kept, chosen)
