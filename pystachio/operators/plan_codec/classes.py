"""The closed list of what an encoded plan may consist of. A new operator or expression needs one line here.

They are frozen dataclasses whose fields are given by position; `fields` says which annotations these may have.
What of an operator could not run is for `check` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pystachio.operators.aggregation.aggregate import Aggregate
from pystachio.operators.aggregation.partial import PartialAggregate
from pystachio.operators.aggregation.plan import AggregatePlan, DistinctList, DistinctState, Outcome
from pystachio.operators.aggregation.states import State
from pystachio.operators.batch import Field
from pystachio.operators.chunks.warm import WarmUp
from pystachio.operators.exchanges.exchange import Exchange
from pystachio.operators.expressions import (
    AggregateCall,
    Call,
    Cast,
    FieldReference,
    IfThen,
    InList,
    Literal,
    ScalarSubquery,
    SortKey,
)
from pystachio.operators.filter import Filter
from pystachio.operators.joins.join import Join
from pystachio.operators.limit import Limit
from pystachio.operators.project import Project
from pystachio.operators.scans.scan import Scan, ScanFilter
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.scans.statistics import StatisticsFold
from pystachio.operators.sort import Sort
from pystachio.operators.spool import Spool
from pystachio.operators.top_n import TopN
from pystachio.operators.union_all import UnionAll
from pystachio.operators.values import Values

OPERATORS: Final[tuple[type, ...]] = (
    Aggregate,
    Exchange,
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    Scan,
    ScanTopN,
    Sort,
    Spool,
    StatisticsFold,
    TopN,
    UnionAll,
    Values,
    WarmUp,
)
PARTS: Final[tuple[type, ...]] = (
    AggregateCall,
    AggregatePlan,
    Call,
    Cast,
    DistinctList,
    DistinctState,
    Field,
    FieldReference,
    IfThen,
    InList,
    Literal,
    Outcome,
    ScalarSubquery,
    ScanFilter,
    SortKey,
    State,
)
CLASSES: Final[Mapping[str, type]] = {each.__name__: each for each in (*OPERATORS, *PARTS)}
