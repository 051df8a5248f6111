"""Planners over small tables, and what it means that a plan comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import pystachio
from pystachio.cli import tpch
from pystachio.operators.batch import Field
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.classes import CLASSES, OPERATORS
from pystachio.operators.plan_codec.codec import TableReference, decode_plan, encode_plan, tables_of
from pystachio.operators.plan_codec.fields import forms_of
from pystachio.operators.table import Table
from pystachio.operators.values import Values
from pystachio.planner.explain import render
from tests.queries.tables import register, write_tables

Tables = Mapping[TableReference, Table]


@dataclass(frozen=True)
class Planning:
    """Plans without running."""

    session: pystachio.Session

    def plan(self, sql: str) -> PhysicalPlan:
        return self.session._plan(sql, ())

    @property
    def tables(self) -> Tables:
        return {TableReference.of(table): table for table in self.session._catalog.tables().values()}


@contextmanager
def over_business(folder: Path) -> Iterator[Planning]:
    """Over TPC-H's tables."""
    tpch.generate(0.01, folder)
    with pystachio.connect(threads=1) as session:
        for file in tpch.table_files(folder):
            session.register(file.stem, str(file))
        yield Planning(session)


@contextmanager
def over_traps(folder: Path) -> Iterator[Planning]:
    """Over `tests.queries.tables`."""
    write_tables(folder)
    with pystachio.connect(threads=1) as session:
        register(session, folder)
        yield Planning(session)


def require_same(plan: PhysicalPlan, tables: Tables) -> PhysicalPlan:
    """That the plan comes back as it was."""
    payload = encode_plan(plan)
    back = decode_plan(payload, {reference: tables[reference] for reference in tables_of(payload)})
    assert render(back) == render(plan)
    assert back.names == plan.names
    assert list(map(shape, back.operators)) == list(map(shape, plan.operators))
    assert [places(back, each) for each in back.operators] == [places(plan, each) for each in plan.operators]
    assert [field for each in back.operators for field in each.schema] == [
        field for each in plan.operators for field in each.schema
    ]
    assert encode_plan(back) == payload
    return back


def shape(part: Any) -> Any:
    """An object by its class and fields: unlike `==` it tells 1 from 1.0 and 0.0 from -0.0, and equals itself."""
    if isinstance(part, Table):
        return TableReference.of(part)
    if isinstance(part, tuple):
        return tuple(map(shape, part))
    if type(part) in CLASSES.values():
        return type(part), [
            shape(getattr(part, form.name))
            for form in forms_of(type(part))
            if type(getattr(part, form.name)) not in OPERATORS
        ]
    return type(part), repr(part)


def places(plan: PhysicalPlan, operator: Any) -> list[int]:
    """Of the operator's inputs among the plan's operators: who shares what."""
    numbers = {id(each): number for number, each in enumerate(plan.operators)}
    return [numbers[id(child)] for child in operator.inputs]


def rows_of(type_: pa.DataType, value: Any) -> Values:
    return Values(((value,),), (Field("a", type_),))
