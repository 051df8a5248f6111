"""The process's interpreter, which the engine's threads share with the program that embeds them."""

from __future__ import annotations

import gc
import sys

SWITCH_SECONDS = 0.0002
YOUNG_OBJECTS = 10_000
"""A query makes and drops some thousand objects; behind so many that were not dropped, garbage is looked for."""


def switch_threads_often() -> None:
    """Let threads that want the interpreter have it within a fraction of a millisecond; it stays so for the process.

    By default a thread that computes in Python keeps it for 5 ms each time that another one asks, and our threads ask
    hundreds of times per query. Measured on two cores: 34 ms for a query alone, 1860 ms beside a thread that counts in
    a loop, 81 ms with 0.2 ms; TPC-H takes the same time as before.
    """
    if sys.getswitchinterval() > SWITCH_SECONDS:
        sys.setswitchinterval(SWITCH_SECONDS)


def collect_after_many_objects() -> None:
    """Look for cyclic garbage when YOUNG_OBJECTS are there; it stays so for the process.

    What a query makes is freed by its last reference, nearly all of it before its end. Python 3.11 looks behind each
    700, ten times in a query, and sooner or later through all that the process holds: 0.1 s with torch loaded.
    Measured: TPC-H takes 0.97 of the time. Who has chosen more, or no collections, keeps that.
    """
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *older)
