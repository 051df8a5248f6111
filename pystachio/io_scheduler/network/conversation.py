"""Two ends that tell each other bodies, and notice when the other is gone: a client, and the node that it visits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pystachio.errors import InvalidRequest, NodeLost, PystachioError
from pystachio.io_scheduler.network.bodies import BODY_BYTES, BodyReader
from pystachio.io_scheduler.network.frame_connection import FrameConnection
from pystachio.io_scheduler.network.frames import BodyPart, Frame, Goodbye, Heartbeat
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import Timers
from pystachio.io_scheduler.network.liveness import Health, Liveness
from pystachio.io_scheduler.network.refusals import copy_of


class Conversation:
    """One end. Everything is called on the loop; `ended` is called once, however it ends, and nothing after it.

    `heard` is told of bodies of up to `longest` bytes; a PystachioError of it ends the conversation. `check` is called
    with each heartbeat, and may end it in the same way.
    """

    def __init__(
        self,
        connection: FrameConnection,
        *,
        limits: NetworkLimits,
        timers: Timers,
        longest: int,
        heard: Callable[[bytes], None],
        ended: Callable[[PystachioError], None],
        check: Callable[[], None],
    ) -> None:
        self.error: PystachioError | None = None
        self._connection = connection
        self._timers = timers
        self._beat_seconds = limits.heartbeat_seconds
        self._heard = heard
        self._ended = ended
        self._check = check
        self._bodies = BodyReader(longest)
        self._is_held = False
        self._liveness = Liveness(
            beat_seconds=limits.heartbeat_seconds,
            suspect_seconds=limits.suspect_seconds,
            dead_seconds=limits.dead_seconds,
        )
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to listen and to beat."""
        if self.error is None:
            self._connection.attach(self._handle, self.fail)
        if self.error is None:
            self._beat()

    def tell(self, body: bytes) -> None:
        """In order, never waiting. Raises why it has ended, or InvalidRequest for a body that is too long."""
        if self.error is not None:
            raise copy_of(self.error)
        require_short(body)
        self._connection.tell(body)

    async def drained(self) -> None:
        """Wait until what was told has gone. Raises why it has ended."""
        await self._connection.drained()

    def hold(self, is_held: bool) -> None:
        """Whether to read nothing for now; the other end is not taken for dead meanwhile."""
        self._is_held = is_held
        self._connection.hold(is_held)

    def close(self, reason: str) -> None:
        """Say goodbye. Idempotent."""
        if self.error is None:
            self._connection.close(reason)
            self.fail(NodeLost(f"the connection was closed: {reason}"))

    async def gone(self) -> None:
        """Wait until nothing is left of the connection, which has ended; a second at most."""
        await self._connection.gone()

    def fail(self, error: PystachioError) -> None:
        """It is over. Idempotent."""
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        self._connection.fail(error)
        self._ended(error)

    def _handle(self, frame: Frame) -> None:
        self._liveness.note_heard()
        match frame:
            case Heartbeat():
                pass
            case BodyPart():
                body = self._bodies.take(frame)
                if body is not None:
                    self._heard(body)
            case Goodbye(reason):
                self.fail(NodeLost(f"the other end has left: {reason}"))
            case _:
                raise NodeLost(f"a frame that is not of a client's connection: {type(frame).__name__}")

    def _beat(self) -> None:
        self._connection.send(Heartbeat())
        if self._is_held:
            self._liveness.note_heard()
        if self._liveness.note_beat() is Health.LOST:
            self.fail(NodeLost("the other end's event loop has not turned, or the network is silent"))
        try:
            self._check()
        except PystachioError as error:
            self.close(str(error))
        if self.error is None:
            self._timer = self._timers.call_later(self._beat_seconds, self._beat)


def require_short(body: bytes) -> None:
    """Raises InvalidRequest for a body that is too long."""
    if len(body) > BODY_BYTES:
        raise InvalidRequest(
            f"a body is too long to be told: {len(body):,} of {BODY_BYTES:,} bytes",
            hint="ask for fewer or shorter columns at once",
        )
