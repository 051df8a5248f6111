"""Ranges of an order, one for each node: agreed upon from samples of all nodes' rows.

The coordinator cuts the samples, weighted by how many rows they stand for, into parts of equal weight. Rows that tie go
to one node, all of them, so that the nodes' rows are in order one node after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import Cancelled, DataError
from pystachio.operators.batch import Batch, Field, Schema
from pystachio.operators.column import FixedColumn
from pystachio.operators.exchanges.reader import BlockReader
from pystachio.operators.exchanges.writer import BlockWriter
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels.selection import all_null, concat_batches, settled_batch, take_batch
from pystachio.operators.placement import batch_on_host
from pystachio.operators.sort import order_of
from pystachio.runtime.context import Context
from pystachio.runtime.peers import PlanPeers

_SAMPLED_ROWS: Final = 1024
"""Of each node: the ranges of a hundred nodes then differ by a few percent."""
_MOST_SAMPLED_BYTES: Final = 1 << 20
_MOST_BLOCK_BYTES: Final = 16 << 20
_WEIGHT: Final = Field("rows", pa.int64(), False)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """`bounds` has the keys of the first row of each range but the first, in order, as columns; perhaps none at all."""

    bounds: Batch
    order: tuple[SortKey, ...]

    def rows(self, batch: Batch, nodes: int) -> list[torch.Tensor]:
        """Which rows of the batch, on the host, go to each node."""
        both = concat_batches([self.bounds, _keys_of(batch, self.order)]) if self.bounds.length else None
        if both is None:
            return [torch.arange(batch.length if node == 0 else 0) for node in range(nodes)]
        order = order_of(both, _of_columns(self.order))
        # The bounds come first, and so before the rows that tie with them.
        numbers = torch.cumsum(order < self.bounds.length, 0)
        ranges = torch.empty_like(numbers).index_copy_(0, order, numbers)[self.bounds.length :]
        return [(ranges == node).nonzero().flatten() for node in range(nodes)]


async def agree(
    ctx: Context, peers: PlanPeers, name: str, batches: Sequence[Batch], order: tuple[SortKey, ...], schema: Schema
) -> Ranges:
    """The ranges of all nodes' rows: every node calls this with its own. Nobody waits but for the coordinator, and that
    for samples which take no memory that others would have to free."""
    keys = tuple(Field(f"key {number}", schema[key.index].type, True) for number, key in enumerate(order))
    weighted = (*keys, _WEIGHT)
    sample = await ctx.stream.run(_sample, list(batches), order, weighted)
    if peers.here:
        block = await ctx.stream.run(BlockWriter().write, sample)
        await peers.send(0, f"{name} sample", 0, block)
        return Ranges(await _receive(ctx, peers, 0, f"{name} bounds", keys), order)
    samples = [sample, *[await _receive(ctx, peers, node, f"{name} sample", weighted) for node in peers.others]]
    bounds = await ctx.stream.run(_cut, samples, order, len(peers.nodes))
    block = await ctx.stream.run(BlockWriter().write, bounds)
    async with asyncio.TaskGroup() as tasks:
        for node in peers.others:
            tasks.create_task(_send(peers, node, f"{name} bounds", block))
    return Ranges(bounds, order)


async def _send(peers: PlanPeers, node: int, name: str, block: memoryview) -> None:
    try:
        await peers.send(node, name, 0, block)
    except Cancelled:
        return  # its part of the plan has ended: whoever knows why tells the plan


async def _receive(ctx: Context, peers: PlanPeers, node: int, name: str, schema: Schema) -> Batch:
    nbytes = await peers.offered(node, name, 0)
    if nbytes > _MOST_BLOCK_BYTES:
        raise DataError(f"a node sends a sample of {nbytes:,} bytes", hint="do all nodes run one version?")
    block = await peers.receive(node, name, 0)
    assert isinstance(block, memoryview), "memory of the scheduler's pool"
    return await ctx.stream.run(BlockReader().read, block, schema)


def _sample(batches: Sequence[Batch], order: Sequence[SortKey], schema: Schema) -> Batch:
    """Rows of all batches, evenly, with how many rows each stands for."""
    total = sum(batch.length for batch in batches)
    if not total:
        return Batch(tuple(all_null(field.type, 0, torch.device("cpu")) for field in schema), 0, None)
    wanted = min(total, _SAMPLED_ROWS)
    positions = (torch.arange(wanted) * 2 + 1) * total // (2 * wanted)
    parts, start = [], 0
    for batch in batches:
        inside = positions[(positions >= start) & (positions < start + batch.length)] - start
        start += batch.length
        if len(inside):
            parts.append(settled_batch(take_batch(_keys_of(batch_on_host(batch), order), inside)))
    sample = concat_batches(parts)
    while sample.nbytes > _MOST_SAMPLED_BYTES and sample.length > 1:
        sample = settled_batch(take_batch(sample, torch.arange(0, sample.length, 2)))
    weights = torch.full((sample.length,), max(1, total // sample.length), dtype=torch.int64)
    return Batch((*sample.columns, FixedColumn(_WEIGHT.type, weights)), sample.length, None)


def _cut(samples: Sequence[Batch], order: Sequence[SortKey], nodes: int) -> Batch:
    """The first rows of all ranges but the first."""
    whole = concat_batches([sample for sample in samples if sample.length] or samples[:1])
    keys = Batch(whole.columns[:-1], whole.length, None)
    if not whole.length:
        return keys
    weights = whole.columns[-1]
    assert isinstance(weights, FixedColumn)
    places = order_of(keys, _of_columns(order))
    before = torch.cumsum(weights.values.to(torch.int64).index_select(0, places), 0)
    shares = torch.arange(1, nodes) * int(before[-1]) // nodes
    firsts = torch.searchsorted(before, shares, right=True).clamp_(max=whole.length - 1)
    return settled_batch(take_batch(keys, places.index_select(0, firsts)))


def _keys_of(batch: Batch, order: Sequence[SortKey]) -> Batch:
    return Batch(tuple(batch.columns[key.index] for key in order), batch.length, batch.ready)


def _of_columns(order: Sequence[SortKey]) -> list[SortKey]:
    """The same order of a batch of the keys alone."""
    return [replace(key, index=number) for number, key in enumerate(order)]
