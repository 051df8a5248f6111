"""From whatever a task raised to the one typed error of its plan."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator

import torch

from pystachio.errors import Cancelled, InternalError, PystachioError, ResourceExhausted
from pystachio.runtime.memory import SETTING_BY_TIER, Tier

CPU_ALLOCATION_FAILURE = "can't allocate memory"
"""How torch words a failed allocation on a CPU: a plain RuntimeError."""


def root_cause(error: BaseException) -> BaseException:
    """The one exception that tells the most: groups are flattened, and a failure beats the cancellations it caused."""
    leaves = tuple(_leaves(error))
    for leaf in leaves:
        if not isinstance(leaf, asyncio.CancelledError | Cancelled):
            return leaf
    return leaves[0] if leaves else error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for child in error.exceptions:
            yield from _leaves(child)
    else:
        yield error


def typed_error(error: BaseException, *, plan_id: str, operator: str | None, memory: int | None) -> PystachioError:
    """`error` as a member of the tree, with the plan's identity. `memory` is the host budget in bytes.

    Foreign exceptions are mapped at the edge where they enter; one that comes this far is a defect, except that memory
    may run out anywhere.
    """
    cause = root_cause(error)
    typed = cause if isinstance(cause, PystachioError) else _map_foreign(cause, memory)
    typed.plan_id = typed.plan_id or plan_id
    typed.operator = typed.operator or operator
    return typed


def _map_foreign(cause: BaseException, memory: int | None) -> PystachioError:
    typed: PystachioError
    if isinstance(cause, torch.OutOfMemoryError):
        typed = ResourceExhausted(
            f"the device ran out of memory: {cause}",
            setting=SETTING_BY_TIER[Tier.DEVICE],
            hint="set 'batch_rows' lower, run fewer plans at once, or set 'device' to cpu",
        )
    elif is_out_of_memory(cause):
        typed = ResourceExhausted(
            f"the machine ran out of memory: {cause}",
            setting=SETTING_BY_TIER[Tier.HOST],
            value=memory,
            hint="set 'memory' lower than what the machine can give, or run fewer plans at once",
        )
    elif isinstance(cause, asyncio.CancelledError):
        typed = Cancelled("the plan was cancelled")
    else:
        typed = InternalError(f"an exception that nobody mapped: {type(cause).__name__}: {cause}")
    typed.__cause__ = cause
    return typed


def is_out_of_memory(error: BaseException) -> bool:
    """Whether host memory could not be allocated."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and CPU_ALLOCATION_FAILURE in str(error)


def forget_frames(error: BaseException) -> None:
    """Turn the tracebacks of `error` and its causes into text: frames would keep the plan's buffers alive.

    Foreign exceptions keep theirs as a note; ours say what there is to say. For an error whose tasks have ended.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            if each.__traceback__ is not None and not isinstance(each, PystachioError):
                each.add_note("raised here:\n" + "".join(traceback.format_tb(each.__traceback__)).rstrip())
            each.__traceback__ = None
            pending += (each.__cause__, each.__context__)
