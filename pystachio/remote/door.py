"""Ways into a cluster for its clients: an address, a token, and TLS where the cluster has it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pystachio.endpoint import Endpoint, parse_endpoint
from pystachio.errors import InvalidRequest, Unauthorized, shown
from pystachio.io_scheduler.network.tls import TlsFiles
from pystachio.io_scheduler.network.tokens import Token, TokenRole, issue, parse_token, read
from pystachio.remote.connection import Connection

if TYPE_CHECKING:
    from pystachio.config import ClusterSettings

SCHEME = "pystachio://"
_TOKEN_VARIABLE = "PYSTACHIO_TOKEN"
_OWNER = "owner"
"""The id of a token that who can read the secret makes for himself."""


def parse_address(address: str) -> Endpoint:
    """`pystachio://host:port`. Raises InvalidRequest."""
    if not isinstance(address, str) or not address.startswith(SCHEME):
        raise InvalidRequest(f"not the address of a node: {shown(address)}", hint=f"write {SCHEME}HOST:PORT")
    return parse_endpoint(address.removeprefix(SCHEME).rstrip("/"))


def open_connection(
    endpoint: Endpoint,
    *,
    token: str | Token | None = None,
    tls: TlsFiles | None = None,
    config: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Connection:
    """Raises as `Connection`, and Unauthorized without a token.

    The token is the one that is given, that of the environment's PYSTACHIO_TOKEN, or made from the secret that the
    configuration names, for who can read that. TLS is that of the configuration, unless it is given.
    """
    given = token if token is not None else environment.get(_TOKEN_VARIABLE) or None
    if given is not None and (tls is not None or not _has_configuration(config, environment)):
        return Connection(endpoint, _parsed(given), tls=tls)
    from pystachio.config import load

    cluster = load(config, environment=environment).cluster
    known = _parsed(given) if given is not None else own_token(cluster)
    return Connection(endpoint, known, tls=tls if tls is not None else tls_files(cluster))


def own_token(cluster: ClusterSettings) -> Token:
    """Raises Unauthorized where the configuration names no secret, and as reading it does."""
    if cluster.secret_file is None:
        raise Unauthorized(
            "a node of a cluster wants a token",
            hint="give token=..., set PYSTACHIO_TOKEN (pystachio-node token makes one), or have the configuration name "
            "the cluster's secret_file",
        )
    return issue(read(cluster.secret_file), TokenRole.CLIENT, _OWNER)


def tls_files(cluster: ClusterSettings) -> TlsFiles | None:
    """None where the cluster is not encrypted."""
    if cluster.tls_certificate is None or cluster.tls_key is None or cluster.tls_authority is None:
        return None
    return TlsFiles(cluster.tls_certificate, cluster.tls_key, cluster.tls_authority)


def _parsed(token: str | Token) -> Token:
    return parse_token(token) if isinstance(token, str) else token


def _has_configuration(config: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> bool:
    """Reading it takes as long as connecting does: it is left out where it can say nothing."""
    if config is not None or any(name.startswith("PYSTACHIO_") and name != _TOKEN_VARIABLE for name in environment):
        return True
    folder = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return (Path(folder) / "pystachio" / "config.toml").is_file()
