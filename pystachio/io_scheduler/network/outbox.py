"""Messages to one peer: offered, sent grant by grant through the scheduler, until the receiver says how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count

from pystachio.errors import Cancelled, InternalError, InvalidRequest, NodeLost, PystachioError, ResourceExhausted
from pystachio.io_scheduler.core.policy import AGEING_SECONDS
from pystachio.io_scheduler.core.request import Extent
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.backlog import BACKLOGS, egress_criticality
from pystachio.io_scheduler.network.data_path import DataPath
from pystachio.io_scheduler.network.frames import Frame, Grant, Offer, Received, Refuse, Withdraw
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import NetworkLink, Timers, TransferService
from pystachio.io_scheduler.network.messages import GrantedPart, MessageKey, OutgoingMessage
from pystachio.io_scheduler.network.refusals import CANCELLED, code_of, copy_of, error_of
from pystachio.io_scheduler.submission import Request


class Outbox:
    """The sender's half of a peer. A frame that breaks the rules raises NodeLost: it ends the peer."""

    def __init__(
        self,
        *,
        peer: str,
        prefix: str,
        service: TransferService,
        egress: NetworkLink,
        data_path: DataPath,
        limits: NetworkLimits,
        timers: Timers,
        rank: Callable[[], int],
        send_frame: Callable[[Frame], None],
    ) -> None:
        self._peer = peer
        self._prefix = prefix
        self._service = service
        self._egress = egress
        self._data_path = data_path
        self._limits = limits
        self._timers = timers
        self._rank = rank
        self._send_frame = send_frame
        self._numbers = count(1)
        self._messages: dict[int, OutgoingMessage] = {}

    def __len__(self) -> int:
        return len(self._messages)

    async def send(self, key: MessageKey, buffer: Buffer, criticality: int, patience: float | None = None) -> None:
        """Returns when the peer's receiver has all of it, checked. The buffer is not used once this has ended."""
        if len(buffer) > self._limits.message_bytes:
            raise InvalidRequest(f"a message is too long: {len(buffer):,} of {self._limits.message_bytes:,} bytes")
        number = next(self._numbers)
        ended = asyncio.get_running_loop().create_future()
        seconds = self._limits.wait_seconds if patience is None else patience
        message = OutgoingMessage(number, key, buffer, criticality, ended, self._timers.time(), seconds)
        self._send_frame(Offer(number, len(buffer), key.sequence, key.plan_id, key.operator))
        self._messages[number] = message
        try:
            # Cancelling the task cancels this future, and nothing else.
            await ended
        except asyncio.CancelledError:
            if ended.cancelled():
                await self._await_end(message)
            raise
        finally:
            del self._messages[number]

    async def _await_end(self, message: OutgoingMessage) -> None:
        """Nobody waits for the message any more, but its buffer is in use until nothing of it moves."""
        ended = message.ended = asyncio.get_running_loop().create_future()
        self._give_up(message, Cancelled("the sender gave the message up"))
        # It may have ended between the cancellation and now.
        message.settle()
        while not ended.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((ended,))

    def take_grant(self, grant: Grant) -> None:
        message = self._messages.get(grant.message)
        if message is None or message.error is not None:
            code = CANCELLED if message is None or message.error is None else code_of(message.error)
            self._data_path.void(grant.grant, code)
            return
        length, end = grant.length, grant.offset + grant.length
        left = len(message.buffer) - message.granted
        if not 0 < length <= min(left, self._limits.grant_bytes) or end > len(message.buffer):
            raise NodeLost("a node asked for more than it was offered", node=self._peer)
        if grant.grant in message.moving:
            raise NodeLost("a node asked twice under one number", node=self._peer)
        if grant.backlog >= BACKLOGS:
            raise NodeLost(f"a node claims to wait for more than there can be: {grant.backlog:,}", node=self._peer)
        message.granted += length
        message.progress_at = self._timers.time()
        self._submit(message, grant, message.buffer[grant.offset : end])

    def take_received(self, received: Received) -> None:
        message = self._messages.get(received.message)
        if message is None:
            return
        if message.granted != len(message.buffer):
            raise NodeLost("a node has received more than it asked for", node=self._peer)
        message.is_received = True
        message.settle()

    def take_refuse(self, refuse: Refuse) -> None:
        message = self._messages.get(refuse.message)
        if message is not None:
            self._give_up(message, error_of(refuse.code, refuse.reason, self._peer), tell=False)

    def check(self, now: float) -> None:
        """Messages that the receiver does not ask for do not wait for ever, nor do grants behind longer backlogs."""
        for message in tuple(self._messages.values()):
            self._hasten(message, now)
            if not message.moving and now - message.progress_at > message.patience:
                error = ResourceExhausted(
                    f"a message was not asked for within {message.patience:g} seconds by {self._peer}",
                    setting="memory",
                    hint="the node that is to receive it has no memory for it, or does not come to it",
                )
                self._give_up(message, error)

    def close_plan(self, plan_id: str) -> None:
        for message in tuple(self._messages.values()):
            if message.key.plan_id == plan_id:
                self._give_up(message, Cancelled("the plan is closed", plan_id=plan_id))

    def fail(self, error: PystachioError) -> None:
        """The peer is lost."""
        for message in tuple(self._messages.values()):
            self._give_up(message, copy_of(error), tell=False)

    def _submit(self, message: OutgoingMessage, grant: Grant, buffer: Buffer) -> None:
        path = f"{self._prefix}.{grant.grant}"
        part = GrantedPart(path, grant.grant, self._data_path, self._timers.time())
        link, device = self._egress
        extent = Extent(grant.offset, grant.length)
        request = Request(extent, buffer, grant.length, grant.length, peer=self._peer, rank=self._rank())
        device.announce(part)
        plan_id, operator, _ = message.key
        criticality = egress_criticality(message.criticality, grant.backlog)
        submission = self._service.submit(plan_id, part.path, link, (request,), criticality, operator)
        device.forget(part.path)
        message.moving[grant.grant] = (part, submission)
        submission.ended.add_done_callback(partial(self._end_part, message, grant.grant))

    def _hasten(self, message: OutgoingMessage, now: float) -> None:
        """A backlog is its receiver's claim: what has waited for long counts as the longest, whoever claims what."""
        for part, submission in message.moving.values():
            if not (part.is_answered or part.is_overdue) and now - part.granted_at > AGEING_SECONDS:
                part.is_overdue = True
                longest = egress_criticality(message.criticality, BACKLOGS - 1)
                self._service.boost(submission, message.key.plan_id, longest)

    def _end_part(self, message: OutgoingMessage, grant: int, ended: asyncio.Future[None]) -> None:
        part, _ = message.moving.pop(grant)
        message.progress_at = self._timers.time()
        error = ended.exception()
        if error is not None:
            typed = error if isinstance(error, PystachioError) else InternalError(f"a part was not sent: {error!r}")
            if not part.is_answered:
                self._data_path.void(grant, code_of(message.error or typed))
            self._give_up(message, typed)
        message.settle()

    def _give_up(self, message: OutgoingMessage, error: PystachioError, *, tell: bool = True) -> None:
        """Nothing more of it is sent; it ends when nothing of it moves any more."""
        if message.error is not None or message.ended.done():
            return
        message.error = error
        if tell:
            self._send_frame(Withdraw(message.number, code_of(error), error.message))
        for _, submission in message.moving.values():
            self._service.abandon(submission)
        message.settle()
