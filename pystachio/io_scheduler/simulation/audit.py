"""Books kept beside the core's own, from its events and orders only: a second opinion on what must always hold.

No byte is lost, moved twice or delivered twice, and what is under way or not yet released never exceeds a pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pystachio.io_scheduler.core.events import (
    Action,
    ChunkFailed,
    ChunksCompleted,
    CompleteTransfer,
    CreditReleased,
    DeliverChunk,
    Event,
    FailTransfer,
    StartChunk,
    TransfersSubmitted,
    WriteOffChunks,
)
from pystachio.io_scheduler.core.request import CreditPool, Extent, Transfer


class InvariantViolated(AssertionError):
    """What must always hold does not. `node` and `when` (virtual seconds) say where."""

    def __init__(self, what: str, node: int, when: float) -> None:
        super().__init__(f"{what} (node {node}, at {when:.6f} s)")


@dataclass(slots=True, eq=False)
class _Account:
    """One transfer. The maps are from offsets to lengths."""

    transfer: Transfer
    inside: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    delivered: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    """Chunks that wait to be tried again."""

    def held(self) -> int:
        """Bytes of memory that the transfer itself, not yet its consumer, occupies."""
        if self.transfer.by_chunk:
            # A chunk that waits to be tried again needs no memory meanwhile.
            return sum(self.inside.values()) + sum(self.arrived.values()) - sum(self.delivered.values())
        return self.transfer.extent.length if self.inside or self.arrived or self.failed else 0


class Audit:
    """The second books of one node."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._now = 0.0
        self._accounts: dict[int, _Account] = {}
        self._written_off: dict[tuple[int, int], tuple[CreditPool | None, int]] = {}
        self._sizes: dict[CreditPool, int] = {}
        self._consumers: dict[CreditPool, int] = {}
        """Bytes that were handed to consumers, who have not released them."""

    def open_pool(self, pool: CreditPool, nbytes: int) -> None:
        self._sizes[pool] = nbytes
        self._consumers.setdefault(pool, 0)

    def note(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """Take into account what happened and what was ordered. Raises InvariantViolated."""
        self._now = now
        self._note_event(event)
        for action in actions:
            self._note_action(action)
        if isinstance(event, TransfersSubmitted | ChunksCompleted | CreditReleased | ChunkFailed) or actions:
            self._check_pools()

    def check_end(self) -> None:
        """At the end of everything nothing is left."""
        if self._accounts:
            ids = ", ".join(str(transfer_id) for transfer_id in list(self._accounts)[:5])
            self._fail(f"{len(self._accounts)} transfers never ended: {ids}")
        for pool, nbytes in self._consumers.items():
            self._require(nbytes == 0, f"{nbytes} bytes of {pool} were never released")

    def written_off_bytes(self) -> Counter[CreditPool]:
        """Memory that must not be used again, because a device has not ended what it was told to do."""
        lost: Counter[CreditPool] = Counter()
        for pool, length in self._written_off.values():
            if pool is not None:
                lost[pool] += length
        return lost

    def _note_event(self, event: Event) -> None:
        match event:
            case TransfersSubmitted(transfers):
                for transfer in transfers:
                    self._accounts[transfer.transfer_id] = _Account(transfer)
            case ChunksCompleted(chunks):
                for transfer_id, offset in chunks:
                    self._end_chunk(transfer_id, offset, arrived=True)
            case ChunkFailed(transfer_id, offset):
                self._end_chunk(transfer_id, offset, arrived=False)
            case CreditReleased(pool, nbytes):
                self._consumers[pool] -= nbytes
                self._require(self._consumers[pool] >= 0, f"more of {pool} was released than handed out")
            case _:
                pass

    def _end_chunk(self, transfer_id: int, offset: int, *, arrived: bool) -> None:
        if self._written_off.pop((transfer_id, offset), None) is not None:
            return
        account = self._accounts[transfer_id]
        length = account.inside.pop(offset)
        (account.arrived if arrived else account.failed)[offset] = length

    def _note_action(self, action: Action) -> None:
        match action:
            case StartChunk(transfer_id, chunk):
                self._start(self._account(transfer_id), chunk)
            case DeliverChunk(transfer_id, chunk):
                self._deliver(self._account(transfer_id), chunk)
            case CompleteTransfer(transfer_id):
                self._complete(self._account(transfer_id))
            case FailTransfer(transfer_id):
                account = self._account(transfer_id)
                self._require(not account.inside, f"transfer {transfer_id} failed while a device works on it")
                del self._accounts[transfer_id]
            case WriteOffChunks(transfer_id, offsets):
                account = self._account(transfer_id)
                for offset in offsets:
                    length = account.inside.pop(offset)
                    self._written_off[transfer_id, offset] = (account.transfer.credit, length)
            case _:
                pass

    def _start(self, account: _Account, chunk: Extent) -> None:
        transfer, extent = account.transfer, account.transfer.extent
        where = f"chunk {chunk} of transfer {transfer.transfer_id}"
        self._require(chunk.length > 0 and extent.offset <= chunk.offset, f"{where} is outside of it")
        self._require(chunk.end <= extent.end, f"{where} is outside of it")
        account.failed.pop(chunk.offset, None)
        for chunks in (account.inside, account.arrived, account.failed):
            self._require(
                not any(offset < chunk.end and chunk.offset < offset + length for offset, length in chunks.items()),
                f"{where} is moved twice",
            )
        account.inside[chunk.offset] = chunk.length

    def _deliver(self, account: _Account, chunk: Extent) -> None:
        transfer = account.transfer
        where = f"chunk {chunk} of transfer {transfer.transfer_id}"
        self._require(account.arrived.get(chunk.offset) == chunk.length, f"{where} is delivered and has not arrived")
        self._require(chunk.offset not in account.delivered, f"{where} is delivered twice")
        account.delivered[chunk.offset] = chunk.length
        if transfer.credit is not None:
            self._consumers[transfer.credit] += chunk.length

    def _complete(self, account: _Account) -> None:
        transfer = account.transfer
        position = transfer.extent.offset
        for offset, length in sorted(account.arrived.items()):
            self._require(offset == position, f"bytes of transfer {transfer.transfer_id} are missing or doubled")
            position += length
        self._require(position == transfer.extent.end, f"transfer {transfer.transfer_id} is complete without its end")
        if transfer.by_chunk:
            self._require(account.delivered == account.arrived, f"transfer {transfer.transfer_id} kept chunks back")
        elif transfer.credit is not None:
            self._consumers[transfer.credit] += transfer.extent.length
        del self._accounts[transfer.transfer_id]

    def _check_pools(self) -> None:
        if not self._sizes:
            return
        held = dict(self._consumers)
        for account in self._accounts.values():
            pool = account.transfer.credit
            if pool is not None:
                held[pool] += account.held()
        for pool, length in self.written_off_bytes().items():
            held[pool] += length
        for pool, nbytes in held.items():
            self._require(nbytes <= self._sizes[pool], f"{nbytes} bytes are in use of {pool}")

    def _account(self, transfer_id: int) -> _Account:
        account = self._accounts.get(transfer_id)
        if account is None:
            self._fail(f"an order about transfer {transfer_id}, which has ended")
        assert account is not None
        return account

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._fail(otherwise)

    def _fail(self, what: str) -> None:
        raise InvariantViolated(what, self._node, self._now)
