"""Commands to a node of a cluster: where it is, and what lets one in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.failure import wrong_usage
from pystachio.errors import InvalidRequest, NodeLost, NotFound, PystachioError

if TYPE_CHECKING:
    from pystachio.remote.connection import Connection
    from pystachio.remote.description import NodeDescription
    from pystachio.runtime.control_client import Found

NodeOption = Annotated[
    str | None, typer.Option("--node", metavar="HOST:PORT", help="A node of a cluster, in place of this machine.")
]
AnyNode = Annotated[str, typer.Option("--node", metavar="HOST:PORT", help="Any node of the cluster.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File that holds a token. [default: PYSTACHIO_TOKEN, or the secret's owner]"),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file that names the secret and TLS files.")]

ANSWER_SECONDS = 5.0


@contextmanager
def connected_to(node: str, token_file: Path | None, config: Path | None) -> Iterator[Connection]:
    """An address or a file that makes no sense is wrong usage: exit code 2."""
    from contextlib import closing

    from pystachio.endpoint import parse_endpoint
    from pystachio.io_scheduler.network.tokens import read_token
    from pystachio.remote.door import SCHEME, open_connection

    try:
        endpoint = parse_endpoint(node.removeprefix(SCHEME))
        token = None if token_file is None else read_token(token_file)
    except InvalidRequest as error:
        raise wrong_usage(error) from None
    with closing(open_connection(endpoint, token=token, config=config)) as connection:
        yield connection


class ClusterEyes:
    """Looks at all nodes of the cluster through one of them. To be closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._others: dict[str, Connection] = {}

    def look(self) -> list[Found]:
        """What each member does now, or why it does not say."""
        return [self._look_at(member.name, member.address) for member in self.describe().members]

    def describe(self) -> NodeDescription:
        from pystachio.remote.messages import Described, Status

        return self._connection.ask(Described, Status, seconds=ANSWER_SECONDS).description

    def close(self) -> None:
        for other in self._others.values():
            other.close()

    def _look_at(self, name: str, address: str) -> Found:
        from pystachio.remote.messages import Look, Seen
        from pystachio.runtime.control_client import Found
        from pystachio.runtime.control_folder import ControlSocket
        from pystachio.runtime.control_protocol import Seen as SeenProcess

        node = ControlSocket(Path(address), 0)
        try:
            seen = self._to(name, address).ask(Seen, Look, seconds=ANSWER_SECONDS)
        except PystachioError as error:
            self._others.pop(name, None)
            return Found(node, None, NodeLost(f"{name}: {error.message}", hint=error.hint), name)
        return Found(node, SeenProcess(seen.pid, seen.program, seen.activity), name=name)

    def _to(self, name: str, address: str) -> Connection:
        from pystachio.endpoint import parse_endpoint

        if name == self._connection.welcome.node:
            return self._connection
        if name not in self._others:
            self._others[name] = self._connection.to(parse_endpoint(address))
        return self._others[name]


def whole_plan_id(connection: Connection, beginning: str) -> str:
    """Raises NotFound, and InvalidRequest when several plans of the cluster begin so."""
    from pystachio.remote.messages import FindPlans, Found

    missing = NotFound(f"no running plan has this id: {beginning}", hint="pystachio-node ps --node lists them")
    if not 0 < len(beginning) <= 200:
        raise missing
    found = connection.ask(Found, lambda number: FindPlans(number, beginning)).plan_ids
    if not found:
        raise missing
    if len(found) > 1:
        raise InvalidRequest(f"several plans begin with {beginning!r}", hint=f"one of {', '.join(found)}")
    return found[0]
