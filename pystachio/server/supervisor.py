"""Starts a node's process, watches it, starts it again when it ends, and tells it where other nodes are.

It runs no query and holds no data. What starts and places it is Ray (`ray_cluster`); nothing here imports Ray.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from pystachio.config import Loaded, load, require_serviceable
from pystachio.endpoint import Endpoint, parse_endpoint
from pystachio.errors import InvalidRequest, PystachioError
from pystachio.runtime.membership.ray_discovery import LONGEST_LINE, line_of
from pystachio.server.address_book import News
from pystachio.server.ready_line import Ready, parse_ready

AUTHENTICATION_VARIABLE = "RAY_AUTH_MODE"
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A node that lived for as long is started again as if it had never failed."""
START_SECONDS = 60.0
LEAVE_SECONDS = 10.0
"""More than `drain_seconds` that a node has to end by itself."""
RETRY_SECONDS = 1.0
"""Between attempts to reach the book of addresses."""
KEPT_EXITS = 10
SERVE = (sys.executable, "-m", "pystachio.cli.main", "serve")

Exchange = Callable[[str, str | None, str | None], Awaitable[News]]
"""`AddressBook.exchange`, wherever the book is. Raises NodeLost."""


class State(StrEnum):
    REFUSED = "refused"
    """It may not run here: `problem` says why."""
    STARTING = "starting"
    SERVING = "serving"
    PAUSING = "pausing"
    """The node has ended; it is started again in a moment."""
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Report:
    """`exits` are the last exit codes, the latest last; negative ones are signals. `problem`: why none is started."""

    name: str
    host: str
    state: State
    pid: int | None
    address: str | None
    starts: int
    exits: tuple[int, ...]
    problem: str | None


def require_token_mode(environment: Mapping[str, str]) -> None:
    """Raises InvalidRequest where anybody who reaches one of Ray's ports could run programs."""
    if environment.get(AUTHENTICATION_VARIABLE, "").lower() != "token":
        raise InvalidRequest(
            "Ray runs without its token authentication: whoever reaches its ports could run programs here",
            hint=f"export {AUTHENTICATION_VARIABLE}=token before `ray start` on every host, and make the token with "
            "`ray get-auth-token --generate` (copy ~/.ray/auth_token to each host, or name it in RAY_AUTH_TOKEN_PATH)",
        )


def pause_before(failures: int) -> float:
    """Seconds until the next start, after so many short lives one after the other."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 30)) if failures else 0.0


class Supervisor:
    """Of one node. On a loop of its own, on which none of its methods keeps another one waiting."""

    def __init__(
        self,
        name: str,
        config: str | None,
        *,
        host: str,
        exchange: Exchange,
        environment: Mapping[str, str] = os.environ,
        command: Sequence[str] = SERVE,
    ) -> None:
        """`config` is the path of a file on this host, `host` where others reach this host."""
        self._name = name
        self._config = config
        self._host = host
        self._exchange = exchange
        self._environment = environment
        self._command = tuple(command)
        self._state = State.STARTING
        self._stop_asked = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._address: str | None = None
        self._known: tuple[str, ...] = ()
        self._starts = 0
        self._exits: deque[int] = deque(maxlen=KEPT_EXITS)
        self._problem: str | None = None
        self._drain_seconds = 0.0
        self._running: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Where Ray asks nobody for a token, no node is started: the report says so."""
        try:
            require_token_mode(self._environment)
        except InvalidRequest as error:
            self._state, self._problem = State.REFUSED, str(error)
            return
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def report(self) -> Report:
        process = self._process
        return Report(
            name=self._name,
            host=self._host,
            state=self._state,
            pid=None if process is None else process.pid,
            address=self._address,
            starts=self._starts,
            exits=tuple(self._exits),
            problem=self._problem,
        )

    async def stop(self) -> Report:
        """Let the node finish its plans and end, and start it no more; kill it when it does not end."""
        self._stop_asked.set()
        if self._running is not None:
            self._state = State.STOPPING
            if (process := self._process) is not None:
                await self._end(process)
            await self._running
            self._state = State.STOPPED
        return await self.report()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        informed = loop.create_task(self._keep_informed())
        failures = 0
        try:
            while not self._stop_asked.is_set():
                began = loop.time()
                await self._live_once()
                failures = 1 if loop.time() - began >= STEADY_SECONDS else failures + 1
                if not self._stop_asked.is_set():
                    self._state = State.PAUSING
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._stop_asked.wait(), pause_before(failures))
        finally:
            informed.cancel()
            if self._announcing is not None:
                self._announcing.cancel()

    async def _live_once(self) -> None:
        """One life of the node's process."""
        self._state = State.STARTING
        try:
            environment = dict(_environment_of_node(self._environment))
            loaded = self._load(environment)
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *(() if self._config is None else (f"--config={self._config}",)),
                f"--name={self._name}",
                "--while-stdin-is-open",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                limit=LONGEST_LINE,
                start_new_session=True,  # what ends this process tells the node by the pipe
            )
        except PystachioError as error:
            self._problem = str(error)
            return
        except OSError as error:
            self._problem = f"the node's process cannot be started: {error.strerror or error}"
            return
        self._problem = None
        self._drain_seconds = loaded.cluster.drain_seconds
        self._process = process
        self._starts += 1
        self._tell_addresses()
        try:
            if self._stop_asked.is_set():
                await self._end(process)
            await self._follow(process, loaded)
        finally:
            if process.returncode is None:
                process.kill()
            self._exits.append(await process.wait())
            self._process = None
            self._announce(None)

    def _load(self, environment: dict[str, str]) -> Loaded:
        """The node's settings, as it will read them itself; completes its environment."""
        environment["PYSTACHIO_CLUSTER_MEMBERSHIP"] = "ray"
        loaded = load(self._config, environment=environment)
        if loaded.cluster.listens_everywhere and loaded.cluster.advertise is None:
            environment["PYSTACHIO_CLUSTER_ADVERTISE"] = str(Endpoint(self._host, 0))
            loaded = load(self._config, environment=environment)
        require_serviceable(loaded.cluster)
        return loaded

    async def _follow(self, process: asyncio.subprocess.Process, loaded: Loaded) -> None:
        """From its start to its end. One that is not ready in time is left: it is killed."""
        assert process.stdout is not None
        ready: Ready | None = None
        with suppress(TimeoutError, ValueError):
            async with asyncio.timeout(START_SECONDS):
                while ready is None and (line := await process.stdout.readline()):
                    ready = parse_ready(line.decode(errors="replace"))
        if ready is None:
            return
        if not self._stop_asked.is_set():
            self._state = State.SERVING
        self._announce(str(_advertised(loaded, ready)))
        while await process.stdout.read(LONGEST_LINE):
            pass
        await process.wait()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._drain_seconds + LEAVE_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()

    async def _keep_informed(self) -> None:
        version: str | None = None
        while True:
            try:
                news = await self._exchange(self._name, self._address_in_book(), version)
            except PystachioError:
                version = None
                await asyncio.sleep(RETRY_SECONDS)
                continue
            version = news.version
            if news.addresses != self._known:
                self._known = news.addresses
                self._tell_addresses()

    def _announce(self, address: str | None) -> None:
        """The call of `_keep_informed` that waits for a change returns with it."""

        async def say() -> None:
            with suppress(PystachioError):  # the next call of `_keep_informed` says it too
                await self._exchange(self._name, self._address_in_book(), None)

        self._address = address
        if self._announcing is not None:
            self._announcing.cancel()
        self._announcing = asyncio.get_running_loop().create_task(say())

    def _address_in_book(self) -> str | None:
        return None if self._address is None else f"{self._name}={self._address}"

    def _tell_addresses(self) -> None:
        """A node that has stopped reading gets no more: it is dead to the others too."""
        if self._process is None or (pipe := self._process.stdin) is None or pipe.is_closing():
            return
        if pipe.transport.get_write_buffer_size() < LONGEST_LINE:
            pipe.write(line_of(self._known))


def _environment_of_node(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The node is no part of Ray and has no use for its token; the number of threads is Ray's guess for its own."""
    return {
        name: value for name, value in environment.items() if not name.startswith("RAY_") and name != "OMP_NUM_THREADS"
    }


def _advertised(loaded: Loaded, ready: Ready) -> Endpoint:
    """Where others reach the node."""
    if loaded.cluster.advertise is None:
        return ready.address
    host, port = parse_endpoint(loaded.cluster.advertise)
    return Endpoint(host, port or ready.address.port)
