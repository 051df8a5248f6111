"""A request of every kind, enumerated from the protocol: a new kind has no sample, and its tests fail until it has."""

from __future__ import annotations

from typing import Any, get_args

from pystachio.remote import messages

FIELDS: dict[type[Any], dict[str, Any]] = {
    messages.Hello: {},
    messages.Register: {"name": "t", "source": ("/nowhere/t.parquet",)},
    messages.RegisterFolder: {"folder": "/nowhere"},
    messages.Tables: {},
    messages.Explain: {"sql": "select 1 as one"},
    messages.Submit: {"sql": "select 1 as one"},
    messages.Fetch: {"plan_id": "abc"},
    messages.Measure: {"plan_id": "abc"},
    messages.Profile: {"plan_id": "abc"},
    messages.Operators: {"plan_id": "abc"},
    messages.FindPlans: {"beginning": "abc"},
    messages.CancelPlan: {"plan_id": "abc"},
    messages.SetPriority: {"plan_id": "abc", "priority": "batch"},
    messages.Look: {},
    messages.Status: {},
    messages.Statistics: {},
    messages.Drain: {"draining": False},
}
KINDS: tuple[type[Any], ...] = get_args(messages.Request)


def sample(kind: type[Any], number: int = 1) -> messages.Request:
    request: messages.Request = kind(number, **FIELDS[kind])
    return request
