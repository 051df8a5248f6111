"""Messages from one peer: what it offers waits until somebody asks for it, then comes in through the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import NamedTuple

from pystachio.errors import (
    Cancelled,
    DataError,
    InternalError,
    InvalidRequest,
    NodeLost,
    PystachioError,
    ResourceExhausted,
)
from pystachio.io_scheduler.core.request import CreditPool, Extent
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.backlog import Backlog
from pystachio.io_scheduler.network.data_path import DataPath
from pystachio.io_scheduler.network.frames import Frame, Offer, Received, Refuse, Withdraw
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import NetworkLink, Timers, TransferService
from pystachio.io_scheduler.network.messages import IncomingMessage, MessageKey, Offered
from pystachio.io_scheduler.network.refusals import code_of, copy_of, error_of
from pystachio.io_scheduler.network.unwanted import Unwanted
from pystachio.io_scheduler.submission import Request, Submission

_GIVEN_UP_REASON = "the receiver gave the message up"


class _Awaited(NamedTuple):
    """A message that is not offered yet: who waits for it, since when, and for how long."""

    future: asyncio.Future[None]
    since: float
    patience: float


class Inbox:
    """The receiver's half of a peer. A frame that breaks the rules raises NodeLost: it ends the peer."""

    def __init__(
        self,
        *,
        peer: str,
        prefix: str,
        service: TransferService,
        ingress: NetworkLink,
        data_path: DataPath,
        backlog: Backlog,
        unwanted: Unwanted,
        limits: NetworkLimits,
        timers: Timers,
        rank: Callable[[], int],
        send_frame: Callable[[Frame], None],
    ) -> None:
        self._peer = peer
        self._prefix = prefix
        self._service = service
        self._ingress = ingress
        self._data_path = data_path
        self._backlog = backlog
        self._unwanted = unwanted
        self._limits = limits
        self._timers = timers
        self._rank = rank
        self._send_frame = send_frame
        self._grants = count(1)
        self._last_offer = 0
        self._offers: dict[MessageKey, Offered] = {}
        self._keys: dict[int, MessageKey] = {}
        self._awaited: dict[MessageKey, _Awaited] = {}
        self._messages: dict[int, IncomingMessage] = {}
        self._error: PystachioError | None = None

    @property
    def offered_messages(self) -> int:
        """Those that nobody has asked for, and that their sender has not given up."""
        return sum(held.error is None for held in self._offers.values())

    def __len__(self) -> int:
        return len(self._messages)

    async def offered(self, key: MessageKey, patience: float | None = None) -> int:
        """The length of the message, once it is offered; it is still to be received."""
        return (await self._await_offer(key, patience)).length

    async def receive(
        self,
        key: MessageKey,
        into: Buffer | None,
        criticality: int,
        credit: CreditPool | None,
        patience: float | None = None,
    ) -> Buffer:
        """The message, in `into` or in memory of the service's pool, taken when its bytes are about to move."""
        try:
            offer = await self._await_offer(key, patience)
        except asyncio.CancelledError:
            self.decline(key)
            raise
        del self._offers[key], self._keys[offer.message]
        length = offer.length
        if into is not None and len(into) != length:
            error = DataError(f"a message has another length than its receiver expects: {length:,}, not {len(into):,}")
            self._send_frame(Refuse(offer.message, code_of(error), error.message))
            raise error
        if length:
            request = Request(
                Extent(0, length), into, length, length, credit=credit, peer=self._peer, rank=self._rank()
            )
            submission = await self._move(key, offer.message, request, criticality)
            into = submission.buffers[0] if into is None else into
        else:
            self._send_frame(Received(offer.message))
        return memoryview(bytearray()) if into is None else into

    def take_offer(self, offer: Offer) -> None:
        if offer.message <= self._last_offer or len(self._offers) >= self._limits.offers:
            raise NodeLost("a node offers messages twice, or too many", node=self._peer)
        self._last_offer = offer.message
        key = MessageKey(offer.plan_id, offer.operator, offer.sequence)
        refusal = self._refusal(key, offer)
        if refusal is not None:
            self._send_frame(Refuse(offer.message, code_of(refusal), refusal.message))
            return
        withdrawn = self._offers.get(key)
        if withdrawn is not None:
            del self._keys[withdrawn.offer.message]
        self._offers[key] = Offered(offer)
        self._keys[offer.message] = key
        awaited = self._awaited.get(key)
        if awaited is not None and not awaited.future.done():
            awaited.future.set_result(None)

    def take_withdraw(self, withdraw: Withdraw) -> None:
        error = error_of(withdraw.code, withdraw.reason, self._peer)
        message = self._messages.get(withdraw.message)
        if message is not None:
            self._give_up(message, error)
            return
        key = self._keys.get(withdraw.message)
        if key is not None:
            held = self._offers[key]
            held.error, held.withdrawn_at = error, self._timers.time()

    def check(self, now: float) -> None:
        """Messages that the sender does not offer are not awaited for ever, and what it has given up is not kept: its
        plan may never have come here."""
        for key, held in tuple(self._offers.items()):
            if held.error is not None and now - held.withdrawn_at > self._limits.wait_seconds:
                del self._offers[key], self._keys[held.offer.message]
        for future, since, patience in tuple(self._awaited.values()):
            if now - since > patience and not future.done():
                future.set_exception(
                    ResourceExhausted(
                        f"a message was not offered within {patience:g} seconds by {self._peer}",
                        setting="memory",
                        hint="the node that sends it has no memory to make it, or does not come to it",
                    )
                )

    def decline(self, key: MessageKey) -> None:
        """Nobody awaits the message any more, nor will. Its sender need not wait, nor its offer be kept."""
        held = self._offers.get(key)
        if held is not None:
            self._refuse_offer(key, held, Cancelled(_GIVEN_UP_REASON))
        else:
            self._unwanted.give_up(self._peer, key)

    def close_plan(self, plan_id: str) -> None:
        """Refuse what the peer has offered of the plan, of which nothing is wanted any more."""
        for key, held in tuple(self._offers.items()):
            if key.plan_id == plan_id and key not in self._awaited:
                self._refuse_offer(key, held, Cancelled("the plan is closed"))
        for key, awaited in tuple(self._awaited.items()):
            if key.plan_id == plan_id and not awaited.future.done():
                awaited.future.set_exception(Cancelled("the plan is closed", plan_id=plan_id))

    def fail(self, error: PystachioError) -> None:
        """The peer is lost."""
        self._error = error
        self._offers.clear()
        self._keys.clear()
        for awaited in tuple(self._awaited.values()):
            if not awaited.future.done():
                awaited.future.set_exception(copy_of(error))
        for message in tuple(self._messages.values()):
            self._give_up(message, copy_of(error))

    async def _await_offer(self, key: MessageKey, patience: float | None) -> Offer:
        self._unwanted.forget(self._peer, key)
        if key not in self._offers:
            if self._error is not None:
                raise copy_of(self._error)
            if self._unwanted.is_closed(key.plan_id):
                raise Cancelled("the plan is closed", plan_id=key.plan_id)
            if key in self._awaited:
                raise InternalError(f"a message is awaited twice: {key}")
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            seconds = self._limits.wait_seconds if patience is None else patience
            self._awaited[key] = _Awaited(future, self._timers.time(), seconds)
            try:
                await future
            finally:
                del self._awaited[key]
        held = self._offers.get(key)
        if held is None:
            raise copy_of(self._error or Cancelled("the plan is closed", plan_id=key.plan_id))
        if held.error is not None:
            del self._offers[key], self._keys[held.offer.message]
            raise held.error
        return held.offer

    def _refuse_offer(self, key: MessageKey, held: Offered, refusal: PystachioError) -> None:
        """Nobody will ask for what is offered."""
        del self._offers[key], self._keys[held.offer.message]
        if held.error is None:
            self._send_frame(Refuse(held.offer.message, code_of(refusal), refusal.message))

    def _refusal(self, key: MessageKey, offer: Offer) -> PystachioError | None:
        if self._unwanted.is_closed(key.plan_id):
            return Cancelled("the plan is closed")
        if self._unwanted.forget(self._peer, key):
            return Cancelled(_GIVEN_UP_REASON)
        held = self._offers.get(key)
        if held is not None and held.error is None:
            return InvalidRequest(f"a message of this name is offered already: {key}")
        if offer.length > self._limits.message_bytes:
            return InvalidRequest(f"a message is too long: {offer.length:,} of {self._limits.message_bytes:,} bytes")
        return None

    async def _move(self, key: MessageKey, number: int, request: Request, criticality: int) -> Submission:
        message = IncomingMessage(
            f"{self._prefix}/{number}",
            number,
            request.extent.length,
            data_path=self._data_path,
            next_grant=self._grants.__next__,
            count_grant=partial(self._backlog.grant, key.plan_id),
            send_frame=self._send_frame,
            refuse=self._refuse,
        )
        link, device = self._ingress
        device.announce(message)
        submission = self._service.submit(key.plan_id, message.path, link, (request,), criticality, key.operator)
        device.forget(message.path)
        message.submission = submission
        self._messages[number] = message
        self._backlog.add(key.plan_id, request.extent.length)
        try:
            await self._finish(message, submission)
        finally:
            del self._messages[number]
            self._backlog.drop(key.plan_id, request.extent.length - message.granted)
        return submission

    async def _finish(self, message: IncomingMessage, submission: Submission) -> None:
        try:
            # Cancelling the task cancels this future, and nothing else.
            await submission.ended
        except asyncio.CancelledError:
            await self._await_devices(message, submission)
            raise
        except PystachioError as error:
            self._refuse(message, error)
            if message.error is not None:
                raise message.error from None
            raise
        except Exception as error:
            typed = InternalError(f"a message did not come: {error!r}")
            self._refuse(message, typed)
            raise message.error or typed from error
        if self._service.history.enabled:
            now = self._service.now()
            for transfer_id in submission.transfer_ids:
                self._service.history.consumed(transfer_id, now)

    async def _await_devices(self, message: IncomingMessage, submission: Submission) -> None:
        """Nobody wants the message any more, but its buffer is in use until the data path has let go of it."""
        self._refuse(message, Cancelled(_GIVEN_UP_REASON))
        ended = submission.ended
        if ended.cancelled():
            if submission.remaining == 0:
                return
            ended = submission.ended = asyncio.get_running_loop().create_future()
            self._service.abandon(submission)
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((ended,))
        # Whoever asked has left; the outcome counts as seen.
        ended.exception()

    def _give_up(self, message: IncomingMessage, error: PystachioError) -> None:
        """Nothing more of it comes, for a reason that the peer knows."""
        if message.error is None:
            message.error = error
        if message.submission is not None:
            self._service.abandon(message.submission)

    def _refuse(self, message: IncomingMessage, error: PystachioError) -> None:
        """Tell the sender, once, if he does not know."""
        if message.error is None and not message.is_refused:
            message.is_refused = True
            self._send_frame(Refuse(message.number, code_of(error), error.message))
