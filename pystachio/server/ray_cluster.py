"""The nodes of a cluster by way of Ray: supervisors are started on its hosts, looked at, and ended.

Ray owns joining, placement and restart of supervisors. Neither queries nor data nor the cluster's secret go through it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from pystachio.errors import (
    InvalidRequest,
    NodeLost,
    ResourceExhausted,
    Unauthorized,
    Unsupported,
)
from pystachio.server.ray_actors import BookActor, SupervisorActor
from pystachio.server.ray_placement import place
from pystachio.server.supervisor import (
    AUTHENTICATION_VARIABLE,
    LEAVE_SECONDS,
    Report,
    State,
    require_token_mode,
)

NAMESPACE = "pystachio"
BOOK = "address-book"
GROUP = "pystachio-nodes"
SUPERVISOR = "supervisor-"
"""Before the node's name: the supervisor's name in Ray."""
HEAD = "node:__internal_head__"
"""The resource by which Ray's head is known: whether it asks for a token is seen there."""
HOSTS_SECONDS = 120.0
PLACE_SECONDS = 30.0
ANSWER_SECONDS = 5.0
SERVE_SECONDS = 90.0
LONGEST_DRAIN_SECONDS = 86_400.0
_LOOK_SECONDS = 0.1
_TOKEN_FILE_VARIABLE = "RAY_AUTH_TOKEN_PATH"


@contextmanager
def connected(address: str | None = None) -> Iterator[RayCluster]:
    """This process as a guest of the Ray cluster at `address`, by default the one that this machine belongs to.

    Asks for Ray's token mode in this process. Raises Unsupported without the package, InvalidRequest where token mode
    is off, Unauthorized for a wrong token, NodeLost where there is no Ray.
    """
    try:
        import ray
    except ImportError:
        raise Unsupported(
            "Ray: the package ray is not installed", hint="pip install 'pystachio-engine[ray]' on every host"
        ) from None
    os.environ.setdefault(AUTHENTICATION_VARIABLE, "token")
    require_token_mode(os.environ)
    _require_readable_token(os.environ)
    try:
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="error",
            configure_logging=True,
        )
    except ray.exceptions.AuthenticationError as error:
        raise Unauthorized(
            f"Ray does not accept this token, or there is none: {_first_line(error)}",
            hint="copy ~/.ray/auth_token from the head, or name its file in RAY_AUTH_TOKEN_PATH",
        ) from None
    except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError) as error:
        raise NodeLost(
            f"no Ray cluster answers at {address or 'this machine'}: {_first_line(error)}",
            hint=f"start one: {AUTHENTICATION_VARIABLE}=token ray start --head; one that has another token than "
            "~/.ray/auth_token does not answer either",
        ) from None
    try:
        yield RayCluster(ray)
    except ray.exceptions.RayError as error:
        raise NodeLost(f"Ray could not do it: {type(error).__name__}: {_first_line(error)}") from None
    finally:
        ray.shutdown()


class RayCluster:
    """What `connected` gives. Every call waits for bounded time."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def up(
        self, config: str | None, *, nodes: int | None = None, per_gpu: bool | None = None, hosts: int = 1
    ) -> list[Report]:
        """Start supervisors, and return when each one's node serves. `config` is the path of a file on every host.

        Waits for so many `hosts` to be there first, for two minutes. What was started is ended again when this raises:
        as `place`; InvalidRequest for a Ray without token mode, for settings that no node can start with, and where
        there are supervisors already; NodeLost for a node that ends before it serves.
        """
        if self._group() is not None or self._names():
            raise InvalidRequest(
                "there are supervisors in this Ray already",
                hint="pystachio-node ray status shows them, ray down ends them",
            )
        placement = place(self._await_hosts(hosts), nodes, per_gpu)
        try:
            book = self._open_book()
            group = self._reserve(placement.bundles, placement.strategy)
            supervisors = [
                self._supervise(number, config, book, group, bundle) for number, bundle in enumerate(placement.bundles)
            ]
            return self._until_served(supervisors)
        except BaseException:
            self.down()
            raise

    def status(self) -> list[Report]:
        """One for each supervisor; of one that Ray is starting, or has no host for, only its name is known."""
        asked = {name: actor.report.remote() for name, actor in self._supervisors().items()}
        return self._answers(asked, ANSWER_SECONDS)

    def down(self) -> list[Report]:
        """Let all nodes finish their plans and end, then the supervisors and what they share; nothing of it is left."""
        ray = self._ray
        actors = self._supervisors()
        there = {name: actor.report.remote() for name, actor in actors.items()}
        reports = {report.name: report for report in self._answers(there, ANSWER_SECONDS)}
        # One that waits for a host would never hear it.
        heard, _ = ray.wait(list(there.values()), num_returns=len(there), timeout=0) if there else ([], [])
        stopping = {name: actors[name].stop.remote() for name, asked in there.items() if asked in heard}
        reports |= {report.name: report for report in self._answers(stopping, LONGEST_DRAIN_SECONDS + LEAVE_SECONDS)}
        for actor in actors.values():
            # A node whose supervisor is killed ends too.
            ray.kill(actor, no_restart=True)
        with suppress(ValueError):
            ray.kill(ray.get_actor(BOOK), no_restart=True)
        if (group := self._group()) is not None:
            ray.util.remove_placement_group(group)
        return list(reports.values())

    def _supervisors(self) -> dict[str, Any]:
        return {name: self._ray.get_actor(name) for name in self._names()}

    def _answers(self, asked: Mapping[str, Any], seconds: float) -> list[Report]:
        """Of supervisors by their name in Ray, all within so many seconds."""
        ray = self._ray
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)
        reports: list[Report] = []
        for name, answer in asked.items():
            try:
                reports.append(ray.get(answer, timeout=0))
            except ray.exceptions.RayError as error:
                reports.append(_unknown(name, error))
        return reports

    def _names(self) -> list[str]:
        """Of the supervisors, in Ray."""
        names = [name for name in self._ray.util.list_named_actors() if name.startswith(SUPERVISOR)]
        return sorted(names, key=lambda name: (len(name), name))

    def _group(self) -> Any:
        try:
            group = self._ray.util.get_placement_group(GROUP)
        except ValueError:
            return None
        return group

    def _await_hosts(self, count: int) -> list[Mapping[str, float]]:
        """The resources of each host."""
        deadline = time.monotonic() + HOSTS_SECONDS
        while True:
            found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            if len(found) >= count:
                return found
            if time.monotonic() > deadline:
                raise NodeLost(f"Ray has {len(found)} hosts after {HOSTS_SECONDS:.0f} s, and {count} were waited for")
            time.sleep(_LOOK_SECONDS)

    def _open_book(self) -> Any:
        """Raises InvalidRequest where Ray's head asks nobody for a token."""
        ray = self._ray
        book = (
            ray.remote(BookActor)
            .options(
                name=BOOK,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                resources={HEAD: 0.001},
                max_restarts=-1,
                max_concurrency=10_000,
            )
            .remote()
        )
        if (problem := ray.get(book.problem.remote(), timeout=PLACE_SECONDS)) is not None:
            raise InvalidRequest(problem)
        return book

    def _reserve(self, bundles: tuple[Mapping[str, float], ...], strategy: str) -> Any:
        group = self._ray.util.placement_group(
            [dict(bundle) for bundle in bundles], strategy=strategy, name=GROUP, lifetime="detached"
        )
        if not group.wait(PLACE_SECONDS):
            raise ResourceExhausted(
                f"Ray has no room for {len(bundles)} nodes, each of them with {_listed(bundles[0])}",
                setting="nodes",
                value=len(bundles),
                hint="fewer nodes, or more hosts; `ray status` shows what is free",
            )
        return group

    def _supervise(self, number: int, config: str | None, book: Any, group: Any, bundle: Mapping[str, float]) -> Any:
        ray = self._ray
        in_bundle = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=number
        )
        return (
            ray.remote(SupervisorActor)
            .options(
                name=f"{SUPERVISOR}node{number}",
                lifetime="detached",
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=in_bundle,
                max_restarts=-1,
                max_concurrency=100,
            )
            .remote(f"node{number}", config, book)
        )

    def _until_served(self, supervisors: list[Any]) -> list[Report]:
        """Raises InvalidRequest for one that cannot start its node, NodeLost for one that does not in time."""
        ray = self._ray
        deadline = time.monotonic() + SERVE_SECONDS
        while True:
            reports: list[Report] = ray.get([each.report.remote() for each in supervisors], timeout=SERVE_SECONDS)
            for report in reports:
                if report.problem is not None:
                    raise InvalidRequest(f"{report.name} cannot start on {report.host}: {report.problem}")
                if report.exits and report.state is not State.SERVING:
                    raise NodeLost(
                        f"{report.name} ended on {report.host} with exit code {report.exits[-1]} before it served",
                        hint="its log is the supervisor's, in Ray's folder of logs on that host",
                    )
            if all(report.state is State.SERVING for report in reports):
                return reports
            if time.monotonic() > deadline:
                late = ", ".join(f"{each.name} on {each.host}" for each in reports if each.state is not State.SERVING)
                raise NodeLost(f"nodes that do not serve after {SERVE_SECONDS:.0f} s: {late}")
            time.sleep(_LOOK_SECONDS)


def _unknown(name: str, error: Exception) -> Report:
    problem = f"Ray is starting the supervisor, or has no host for it ({type(error).__name__})"
    return Report(name.removeprefix(SUPERVISOR), "", State.STARTING, None, None, 0, (), problem)


def _require_readable_token(environment: Mapping[str, str]) -> None:
    """Ray ends the process where it cannot read the file."""
    path = environment.get(_TOKEN_FILE_VARIABLE)
    if path and not environment.get("RAY_AUTH_TOKEN") and not os.access(path, os.R_OK):
        raise Unauthorized(f"the file of Ray's token cannot be read: {path}", hint=f"see {_TOKEN_FILE_VARIABLE}")


def _listed(bundle: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
