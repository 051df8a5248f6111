"""The settings of a node that serves others: the table `[cluster]`."""

from __future__ import annotations

import json
import re
import socket
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pystachio.config.quantities import AbsolutePath, Count, Duration, Rate, parse_duration, parse_size
from pystachio.endpoint import Endpoint, parse_endpoint
from pystachio.errors import InvalidRequest

CLUSTER_SECTION = "cluster"
CLUSTER_PREFIX = f"{CLUSTER_SECTION}_"
"""Before a key's name in the environment (`PYSTACHIO_CLUSTER_LISTEN`) and as an argument (`cluster_listen`)."""

_EVERYWHERE = ("0.0.0.0", "::")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def _endpoint_text(text: str) -> str:
    try:
        return str(parse_endpoint(text))
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def _node_name(text: str) -> str:
    if text and _NAME.fullmatch(text) is None:
        raise ValueError("a name is of 1 to 64 letters, digits, '.', '_' and '-'")
    return text


def _peer_text(text: str) -> str:
    name, equals, address = text.partition("=")
    if not equals or not name:
        raise ValueError("write NAME=HOST:PORT")
    return f"{_node_name(name.strip())}={_endpoint_text(address)}"


def _separated(value: object) -> object:
    """The environment has room for text only: items between commas."""
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


EndpointText = Annotated[str, AfterValidator(_endpoint_text)]
NodeName = Annotated[str, AfterValidator(_node_name)]
PeerText = Annotated[str, AfterValidator(_peer_text)]
Patience = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=86_400, allow_inf_nan=False)]


class StaticPeer(NamedTuple):
    name: str
    endpoint: Endpoint


class EmulatedNetwork(BaseModel):
    """A network of this rate in bytes per second, each way, and latency in seconds in place of the node's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: Rate
    latency: Duration = 0.0


def _table(value: object) -> object:
    """The environment has room for text only: JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except (ValueError, RecursionError):
        raise ValueError('write a table as JSON: {"rate": "200MB/s"}') from None


class ClusterSettings(BaseModel):
    """Every setting of a node that serves, with its type, default and meaning. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: NodeName = Field(default="", description="the node's name in the cluster; by default host name and port")
    listen: EndpointText = Field(default="127.0.0.1:0", description="where the node listens; port 0 takes a free one")
    advertise: EndpointText | None = Field(
        default=None, description="where others reach the node, if not where it listens"
    )
    secret_file: AbsolutePath | None = Field(
        default=None, description="file of the cluster's secret, mode 0600; `pystachio-node init` makes one"
    )
    join: Annotated[tuple[EndpointText, ...], BeforeValidator(_separated)] = Field(
        default=(), description="addresses of nodes of the cluster to join, one is enough"
    )
    peers: Annotated[tuple[PeerText, ...], BeforeValidator(_separated)] = Field(
        default=(), description="the other nodes of a cluster that is known beforehand, as NAME=HOST:PORT"
    )
    membership: Literal["static", "ray"] = Field(
        default="static", description="who says which nodes there are: static (join, peers) or ray"
    )
    transport: Literal["auto", "tcp", "ucx", "rdma"] = Field(
        default="auto", description="what moves data between nodes: auto, tcp, ucx or rdma"
    )
    emulated: Annotated[EmulatedNetwork | None, BeforeValidator(_table)] = Field(
        default=None, description="a slower network in place of the real one: a table of rate and latency"
    )
    tls_certificate: AbsolutePath | None = Field(default=None, description="PEM file of this node's certificate")
    tls_key: AbsolutePath | None = Field(default=None, description="PEM file of the certificate's private key")
    tls_authority: AbsolutePath | None = Field(
        default=None, description="PEM file of the authority that signed the certificates of all nodes and clients"
    )
    data: Annotated[tuple[AbsolutePath, ...], BeforeValidator(_separated)] = Field(
        default=(), description="folders whose Parquet files are tables for every client"
    )
    client_folders: Annotated[tuple[AbsolutePath, ...] | None, BeforeValidator(_separated)] = Field(
        default=None,
        description="folders whose Parquet files clients may name themselves, links resolved; empty: none but the "
        "tables of data; by default whatever the node's user can read",
    )
    file_seconds: Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=3600)] = Field(
        default=4.0, description="how long a file system may take to say which files it has"
    )
    clients: Count = Field(
        default=128,
        ge=1,
        le=4096,
        description="how many clients may be connected at once; half of them with the same token, and half observers",
    )
    client_plans: Count = Field(default=64, ge=1, le=4096, description="how many plans of one client may run at once")
    retries: Count = Field(default=1, ge=0, le=10, description="how often a plan that lost a node is run again")
    alone_bytes: Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 60)] = Field(
        default=4 << 20, description="a plan that reads files of so many bytes or less runs on one node alone"
    )
    watchdog_seconds: Patience = Field(
        default=10.0, description="the process ends when its event loop stands still for so long; 0 for never"
    )
    drain_seconds: Patience = Field(
        default=60.0, description="how long running plans may take to finish when the node is told to stop"
    )
    health: EndpointText | None = Field(
        default=None, description="where GET /ready and /live are answered over HTTP; by default nowhere"
    )

    @model_validator(mode="after")
    def _complete(self) -> ClusterSettings:
        tls = (self.tls_certificate, self.tls_key, self.tls_authority)
        if any(tls) and not all(tls):
            raise ValueError("TLS needs all of tls_certificate, tls_key and tls_authority")
        names = [peer.name for peer in self.static_peers]
        if len(set(names)) < len(names):
            raise ValueError("the same name twice among the peers")
        return self

    @property
    def endpoint(self) -> Endpoint:
        return parse_endpoint(self.listen)

    @property
    def health_endpoint(self) -> Endpoint | None:
        return None if self.health is None else parse_endpoint(self.health)

    @property
    def join_endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(map(parse_endpoint, self.join))

    @property
    def listens_everywhere(self) -> bool:
        return self.endpoint.host in _EVERYWHERE

    @property
    def static_peers(self) -> tuple[StaticPeer, ...]:
        parted = (peer.partition("=") for peer in self.peers)
        return tuple(StaticPeer(name, parse_endpoint(address)) for name, _, address in parted)

    @property
    def has_tls(self) -> bool:
        return self.tls_certificate is not None

    def name_at(self, port: int) -> str:
        """The node's name, once it is known where it listens."""
        if self.name:
            return self.name
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:50]
        return f"{host or 'node'}-{port}"


def require_serviceable(cluster: ClusterSettings) -> None:
    """Raises InvalidRequest for a node that anybody could command, or that nobody could find."""
    if cluster.secret_file is not None:
        if cluster.listens_everywhere and cluster.advertise is None:
            raise InvalidRequest(
                f"a node that listens on all interfaces says where others reach it: it listens at {cluster.listen}",
                hint="set advertise under [cluster] to HOST:PORT",
            )
        return
    where = cluster.listen
    if not cluster.endpoint.is_loopback:
        raise InvalidRequest(
            f"a node that others can reach needs the cluster's secret: it listens at {where}",
            hint="pystachio-node init DIR makes a secret; name its file as secret_file under [cluster], and have "
            "tls_certificate, tls_key and tls_authority encrypt what crosses the network",
        )
    raise InvalidRequest(
        "a node that serves needs the cluster's secret",
        hint="pystachio-node init DIR makes one, and a configuration file for serve --config; "
        "pystachio-node cluster starts a cluster to try out without any",
    )
