"""Kernels in Triton, as they run on the device; `triton_launch` gives them their memory and their grids.

Rows are numbered in 64 bits; masks are bytes. Imported only where Triton is installed.
"""

import triton
import triton.language as tl


@triton.jit
def sum_by_code(values, codes, kept, partial, rows, BLOCK: tl.constexpr, SLOTS: tl.constexpr, MASKED: tl.constexpr):
    """Wrapping sums of integers by code, where `kept`: each program adds its own rows in registers, into its own row of
    `partial` (int64 [programs, SLOTS]). No atomics: with few codes all rows would meet at the same addresses.
    """
    slots = tl.arange(0, SLOTS)
    total = tl.zeros((SLOTS,), tl.int64)
    program = tl.program_id(0)
    for start in range(program * BLOCK, rows, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < rows
        if MASKED:
            inside = inside & (tl.load(kept + at, mask=inside, other=0) != 0)
        code = tl.load(codes + at, mask=inside, other=0).to(tl.int32)
        value = tl.load(values + at, mask=inside, other=0).to(tl.int64)
        hit = inside[:, None] & (code[:, None] == slots[None, :])
        total += tl.sum(tl.where(hit, value[:, None], 0), axis=0)
    tl.store(partial + program * SLOTS + slots, total)


@triton.jit
def count_by_code(codes, counts, last, rows, BLOCK: tl.constexpr, SLOTS: tl.constexpr):
    """How many rows have each code, and 1 + the position of the last one: int64 [programs, SLOTS], twice."""
    slots = tl.arange(0, SLOTS)
    total = tl.zeros((SLOTS,), tl.int64)
    latest = tl.zeros((SLOTS,), tl.int64)
    program = tl.program_id(0)
    for start in range(program * BLOCK, rows, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < rows
        code = tl.load(codes + at, mask=inside, other=0).to(tl.int32)
        hit = inside[:, None] & (code[:, None] == slots[None, :])
        total += tl.sum(hit.to(tl.int64), axis=0)
        latest = tl.maximum(latest, tl.max(tl.where(hit, (at + 1).to(tl.int64)[:, None], 0), axis=0))
    tl.store(counts + program * SLOTS + slots, total)
    tl.store(last + program * SLOTS + slots, latest)


@triton.jit
def count_kept(kept, counts, rows, BLOCK: tl.constexpr):
    """int32 [programs]: how many of each program's BLOCK rows are kept."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    flags = tl.load(kept + at, mask=at < rows, other=0).to(tl.int32)
    tl.store(counts + program, tl.sum(flags, axis=0))


@triton.jit
def write_positions(kept, ends, positions, rows, BLOCK: tl.constexpr):
    """The kept rows' numbers in order; `ends` (int64 [programs]) says how many there are up to each program's end."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    flags = tl.load(kept + at, mask=at < rows, other=0).to(tl.int32)
    before = tl.load(ends + program) - tl.sum(flags, axis=0)
    tl.store(positions + before + tl.cumsum(flags, axis=0) - flags, at, mask=flags != 0)


@triton.jit
def write_values(kept, ends, values, chosen, rows, BLOCK: tl.constexpr):
    """Like `write_positions`, with the rows' `values`, of any dtype: read in order, once, and only where they stay."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    flags = tl.load(kept + at, mask=at < rows, other=0).to(tl.int32)
    before = tl.load(ends + program) - tl.sum(flags, axis=0)
    value = tl.load(values + at, mask=flags != 0)
    tl.store(chosen + before + tl.cumsum(flags, axis=0) - flags, value, mask=flags != 0)


@triton.jit(do_not_specialize=["low", "high"])
def lookup_between(table, values, kept, found, low, high, rows, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """`table[value - low]` where `low <= value <= high` and it is kept, else `table[high - low + 1]`."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    value = tl.load(values + at, mask=inside, other=0).to(tl.int64)
    hit = inside & (value >= low) & (value <= high)
    if MASKED:
        hit = hit & (tl.load(kept + at, mask=inside, other=0) != 0)
    # Outside the range the difference may overflow: it is not used there.
    place = tl.where(hit, value - low, high - low + 1)
    tl.store(found + at, tl.load(table + place, mask=inside), mask=inside)


@triton.jit
def _home(key, FIRST: tl.constexpr, SECOND: tl.constexpr, SHIFT: tl.constexpr):
    """`hash_rounds.first_slots`."""
    mixed = (key ^ (key >> 33)) * FIRST
    mixed = (mixed ^ (mixed >> 32)) * SECOND
    return (mixed >> SHIFT) & ((1 << (64 - SHIFT)) - 1)


@triton.jit
def insert_keys(
    keys,
    occupants,
    winners,
    rows,
    BLOCK: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Each row finds its key's slot by linear probing, or takes a free one: `winners` is 1 + the row in the slot.

    `occupants` (int32, zeros) has one entry more than slots. Nothing is locked and nobody waits: a slot that is taken
    stays so, and the rows of one key all pass the same slots.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    pending = at < rows
    key = tl.load(keys + at, mask=pending, other=0)
    number = (at + 1).to(tl.int32)
    slot = _home(key, FIRST, SECOND, SHIFT)
    last_slot = (1 << (64 - SHIFT)) - 1
    winner = tl.zeros((BLOCK,), tl.int32)
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        seen = tl.load(occupants + slot, mask=pending, other=1)
        is_free = pending & (seen == 0)
        # Swapping has no mask: who has nothing to take tries the entry behind the slots, which never holds -1.
        before = tl.atomic_cas(
            occupants + tl.where(is_free, slot, last_slot + 1), tl.where(is_free, 0, -1), tl.where(is_free, number, 0)
        )
        holder = tl.where(is_free, tl.where(before == 0, number, before), seen)
        ended = pending & (tl.load(keys + holder.to(tl.int64) - 1, mask=pending, other=0) == key)
        winner = tl.where(ended, holder, winner)
        slot = tl.where(pending & (ended == 0), (slot + 1) & last_slot, slot)
        pending = pending & (ended == 0)
    tl.store(winners + at, winner, mask=at < rows)


@triton.jit(do_not_specialize=["empty"])
def find_keys(
    table_keys,
    table_values,
    keys,
    found,
    empty,
    rows,
    BLOCK: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The value beside each key, or beside the first empty slot of its search, in one pass."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    pending = inside
    key = tl.load(keys + at, mask=inside, other=0)
    slot = _home(key, FIRST, SECOND, SHIFT)
    last_slot = (1 << (64 - SHIFT)) - 1
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        stored = tl.load(table_keys + slot, mask=pending, other=0)
        ended = pending & ((stored == key) | (stored == empty))
        slot = tl.where(pending & (ended == 0), (slot + 1) & last_slot, slot)
        pending = pending & (ended == 0)
    tl.store(found + at, tl.load(table_values + slot, mask=inside), mask=inside)
