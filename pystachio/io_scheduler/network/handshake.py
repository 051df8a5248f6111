"""Who is at the other end: mutual proof that both know the cluster's secret, without a byte of it on the wire.

Whoever connects says Hello with a random number; the listener answers with a Challenge and one of his own. Each then
proves himself by an HMAC-SHA-256, keyed with the secret, over everything that both have said: Proof, then Welcome. The
two proofs differ by a label, so that neither can be sent back as the other. Between a client and a node, both do so
with the key of the client's token (`tokens`) in place of the secret. Plain data in and out: the caller moves the frames
and gives up in time.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TypeVar

from pystachio.errors import InvalidRequest, NodeLost, PystachioError, Unauthorized
from pystachio.io_scheduler.network.frames import (
    PROTOCOL_VERSION,
    Carrier,
    Challenge,
    Frame,
    Hello,
    Proof,
    Refusal,
    Role,
    Welcome,
    encode,
)
from pystachio.io_scheduler.network.refusals import CLIENTS_SETTING, error_of
from pystachio.io_scheduler.network.tokens import Credential, Token, key_of, parse_credential

F = TypeVar("F", bound=Frame)

SECRET_BYTES = 16
"""The shortest secret: a listener's proof can be attacked off line by whoever watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a node says of itself. `instance` is random for each start of it, `epoch` the membership it knows.

    A client has its token's key for a secret.
    """

    node: str
    instance: bytes
    epoch: int
    carrier: Carrier
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < SECRET_BYTES:
            raise InvalidRequest(f"the cluster's secret is shorter than {SECRET_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Established:
    """Both have proved themselves. `session` identifies this connection; `key` is known to the two only.

    `credential` is a client's, who is no node.
    """

    node: str
    instance: bytes
    session: int
    key: bytes = field(repr=False)
    credential: Credential | None = None


class ConnectedToItself(NodeLost):
    """Where the node wanted to find another one, it is reached itself: addresses may have several names."""

    def __init__(self) -> None:
        super().__init__("a node has connected to itself")


class Initiator:
    """The side that connects: `hello`, then `proof` of what came, then `established` by what came."""

    def __init__(
        self, identity: Identity, *, peer: str, role: Role, session: int, nonce: bytes, credential: str = ""
    ) -> None:
        """`peer` is whom to find there; empty for who takes whoever knows the secret, or his token."""
        self._identity = identity
        self._hello = Hello(
            PROTOCOL_VERSION,
            role,
            identity.carrier,
            identity.epoch,
            session,
            identity.instance,
            nonce,
            identity.node,
            peer,
            credential,
        )
        self._challenge: Challenge | None = None

    def hello(self) -> Hello:
        return self._hello

    def proof(self, frame: Frame) -> Proof:
        """Raises what the listener refused with, or Unauthorized when somebody else answers."""
        challenge = _expect(frame, Challenge, self._hello.peer)
        if self._hello.peer and challenge.node != self._hello.peer:
            raise Unauthorized(f"another node answers: {challenge.node!r} instead of {self._hello.peer!r}")
        if challenge.instance == self._identity.instance:
            raise ConnectedToItself
        self._challenge = challenge
        return Proof(_prove(self._identity.secret, b"initiator", self._hello, challenge))

    def established(self, frame: Frame) -> Established:
        welcome = _expect(frame, Welcome, self._hello.peer)
        assert self._challenge is not None, "the proof comes first"
        expected = _prove(self._identity.secret, b"listener", self._hello, self._challenge)
        if not hmac.compare_digest(expected, welcome.proof):
            raise Unauthorized(f"the node does not know {_secret(self._hello.credential)}: {self._challenge.node!r}")
        key = _prove(self._identity.secret, b"session", self._hello, self._challenge)
        return _establish(self._challenge.node, self._challenge.instance, key)


class Listener:
    """The side that was connected to: `challenge` for a Hello, then `established` by the proof."""

    def __init__(self, identity: Identity, *, nonce: bytes, now: float) -> None:
        """`now` is the Unix time, by which tokens expire."""
        self._identity = identity
        self._nonce = nonce
        self._now = now
        self._secret = identity.secret
        self._credential: Credential | None = None
        self._hello: Hello | None = None
        self._challenge: Challenge | None = None

    def challenge(self, frame: Frame) -> Challenge:
        hello = _expect(frame, Hello, "")
        if hello.version != PROTOCOL_VERSION:
            raise InvalidRequest(f"the nodes speak different protocols: {hello.version} and {PROTOCOL_VERSION}")
        self._hello = hello
        identity = self._identity
        if hello.credential:
            self._credential = parse_credential(hello.credential)
            self._secret = key_of(identity.secret, self._credential)
        self._challenge = Challenge(identity.carrier, identity.epoch, identity.instance, self._nonce, identity.node)
        return self._challenge

    def established(self, frame: Frame) -> tuple[Hello, Welcome, Established]:
        """Only now is anything that the Hello claims believed, and compared with what this node knows."""
        proof = _expect(frame, Proof, "")
        assert self._hello is not None, "the Hello comes first"
        assert self._challenge is not None, "and its challenge"
        secret = self._secret
        if not hmac.compare_digest(_prove(secret, b"initiator", self._hello, self._challenge), proof.proof):
            raise Unauthorized(
                f"whoever connects does not know {_secret(self._hello.credential)}",
                hint="use a token, or the secret, of this cluster",
            )
        self._check(self._hello)
        welcome = Welcome(_prove(secret, b"listener", self._hello, self._challenge))
        key = _prove(secret, b"session", self._hello, self._challenge)
        established = _establish(self._hello.node, self._hello.instance, key, self._credential)
        return self._hello, welcome, established

    def _check(self, hello: Hello) -> None:
        identity = self._identity
        if hello.role == Role.CLIENT:
            self._check_client()
            return
        if self._credential is not None:
            raise Unauthorized(
                f"a token of a {self._credential.role} opens no connection of a node", hint="nodes use the secret"
            )
        if hello.node == identity.node and hello.instance == identity.instance:
            raise ConnectedToItself
        if hello.node == identity.node:
            raise name_taken(hello.node)
        if hello.peer not in ("", identity.node) or not hello.node:
            raise InvalidRequest(f"a wrong node was connected to: {hello.peer!r} is not {identity.node!r}")
        if hello.epoch != identity.epoch:
            raise NodeLost(f"the nodes know different epochs of the cluster: {hello.epoch} and {identity.epoch}")
        if hello.carrier != identity.carrier:
            raise InvalidRequest(
                f"the nodes are configured for different transports: {_name(hello.carrier)} and {identity.carrier.name}"
            )
        if hello.role not in tuple(Role):
            raise InvalidRequest(f"a connection of no known role: {hello.role}")

    def _check_client(self) -> None:
        if self._credential is None:
            raise Unauthorized("a client has shown no token", hint="ask who runs the cluster for a token")
        self._credential.check(self._now)


def name_taken(name: str) -> InvalidRequest:
    """What a node is refused with whose name another one has, that is there."""
    return InvalidRequest(
        f"the name is taken: {name!r} is another node of the cluster", hint="give each node a name of its own (--name)"
    )


def _name(carrier: int) -> str:
    return Carrier(carrier).name if carrier in tuple(Carrier) else str(carrier)


def _expect(frame: Frame, kind: type[F], node: str) -> F:
    if isinstance(frame, kind):
        return frame
    if isinstance(frame, Refusal):
        error: PystachioError = error_of(
            frame.code, f"a node refused the connection: {frame.reason}", node, CLIENTS_SETTING
        )
        raise error
    raise Unauthorized(f"a connection began with the wrong frame: {type(frame).__name__}")


def _prove(secret: bytes, label: bytes, hello: Hello, challenge: Challenge) -> bytes:
    return hmac.digest(secret, label + encode(hello) + encode(challenge), "sha256")


def _establish(node: str, instance: bytes, key: bytes, credential: Credential | None = None) -> Established:
    session = int.from_bytes(key[:8])
    return Established(node=node, instance=instance, session=session, key=key, credential=credential)


def _secret(credential: str) -> str:
    return "the token's key" if credential else "the cluster's secret"


def client_identity(token: Token, instance: bytes) -> Identity:
    """Of a client; its epoch and carrier mean nothing."""
    return Identity(node=token.credential.id, instance=instance, epoch=0, carrier=Carrier.TCP, secret=token.key)
