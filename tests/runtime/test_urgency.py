from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from pystachio.errors import InvalidRequest, shown
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.urgency import MOST_SECONDS, USUAL, Urgency, priority_class, urgency

INTERACTIVE, NORMAL, BATCH = PriorityClass


@pytest.mark.parametrize("value", ["interactive", "INTERACTIVE", INTERACTIVE])
def test_classes_by_name(value: object) -> None:
    assert priority_class(value) is INTERACTIVE


@pytest.mark.parametrize("value", ["urgent", "", 0, 7, None, True, b"batch", ["batch"], "normal ", 10**5000], ids=shown)
def test_a_class_that_does_not_exist(value: object) -> None:
    with pytest.raises(InvalidRequest, match="no such priority") as caught:
        priority_class(value)
    assert caught.value.hint == "one of interactive, normal, batch"


@pytest.mark.parametrize(
    ("priority", "deadline", "default", "expected"),
    [
        (None, None, USUAL, Urgency(NORMAL)),
        (None, None, Urgency(INTERACTIVE, 3.0), Urgency(INTERACTIVE, 3.0)),
        (None, 2, USUAL, Urgency(INTERACTIVE, 2.0)),
        (None, 2, Urgency(BATCH), Urgency(INTERACTIVE, 2.0)),
        (None, Fraction(1, 2), USUAL, Urgency(INTERACTIVE, 0.5)),
        (None, np.int64(2), USUAL, Urgency(INTERACTIVE, 2.0)),
        (None, np.float32(0.5), USUAL, Urgency(INTERACTIVE, 0.5)),
        (None, timedelta(milliseconds=250), USUAL, Urgency(INTERACTIVE, 0.25)),
        ("interactive", 2.5, USUAL, Urgency(INTERACTIVE, 2.5)),
        ("interactive", None, Urgency(INTERACTIVE, 3.0), Urgency(INTERACTIVE, 3.0)),
        ("batch", None, Urgency(INTERACTIVE, 3.0), Urgency(BATCH)),
        ("interactive", MOST_SECONDS, USUAL, Urgency(INTERACTIVE, MOST_SECONDS)),
    ],
)
def test_what_was_asked_for(priority: object, deadline: object, default: Urgency, expected: Urgency) -> None:
    assert urgency(priority, deadline, default) == expected


@pytest.mark.parametrize(
    "deadline",
    [
        *(0, -1, -0.0, math.nan, math.inf, -math.inf, 1e300, 10**400, 10**5000, -(10**5000)),
        *(Fraction(10**5000), np.float64("nan"), timedelta(0), timedelta(days=400), timedelta(-1)),
    ],
    ids=shown,
)
def test_times_that_are_no_deadline(deadline: object) -> None:
    with pytest.raises(InvalidRequest, match="between now and a year"):
        urgency(None, deadline, USUAL)


@pytest.mark.parametrize("deadline", ["2", "2s", True, b"2", [2], object(), 2j, np.bool_(True), Decimal(1)])
def test_what_is_no_time(deadline: object) -> None:
    with pytest.raises(InvalidRequest, match="seconds from now or a timedelta"):
        urgency(None, deadline, USUAL)


@pytest.mark.parametrize("priority", ["normal", "batch"])
def test_a_deadline_where_it_would_do_nothing(priority: str) -> None:
    with pytest.raises(InvalidRequest, match="orders interactive plans only"):
        urgency(priority, 2.0, USUAL)
