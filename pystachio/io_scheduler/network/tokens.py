"""What opens a door: the cluster's secret, in a file, and tokens for clients, derived from it and kept by nobody.

A token is `pst1.<role>.<expiry>.<id>.<key>`: all but the key is its credential, which a client shows; the key is the
HMAC-SHA-256 of the credential under the secret, and is proved and never shown (`handshake`). A node needs no list of
tokens to know each of them again. A token cannot be taken back one by one: it expires, or the secret is changed.
"""

from __future__ import annotations

import hmac
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pystachio.errors import InvalidRequest, Unauthorized, shown
from pystachio.io_scheduler.network.private_file import read_private

SECRET_BYTES = 32
"""Of a secret that is made here."""
KEY_BYTES = 32
_SECRET_FILE = re.compile(rb"pystachio-secret-1:([A-Za-z0-9_-]{43}=?)\n?")
LATEST_EXPIRY = 999_999_999_999
"""In seconds of Unix time."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_CREDENTIAL = re.compile(rf"pst1\.([a-z]+)\.(never|[0-9]{{1,12}})\.({_ID.pattern})", re.ASCII)
_BASE64 = re.compile(rb"[A-Za-z0-9_-]*=*")


class TokenRole(StrEnum):
    """What its holder may do. Nodes have no token: they know the secret itself."""

    CLIENT = "client"
    """Submit plans over every Parquet file that a node's user can read, cancel any, drain nodes, and see everything."""
    OBSERVER = "observer"
    """See everything."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The public part of a token. `expires_at` is in seconds of Unix time; None: never."""

    role: TokenRole
    expires_at: int | None
    id: str

    def __post_init__(self) -> None:
        if _ID.fullmatch(self.id) is None:
            raise InvalidRequest(
                f"not an id for a token: {shown(self.id)}", hint="an id is of 1 to 64 letters, digits, _ and -"
            )
        if self.expires_at is not None and not 0 <= self.expires_at <= LATEST_EXPIRY:
            raise InvalidRequest(
                f"no token can expire at this time: {shown(self.expires_at)}",
                hint="seconds of Unix time of 12 digits at most, or never",
            )

    def __str__(self) -> str:
        return f"pst1.{self.role}.{'never' if self.expires_at is None else self.expires_at}.{self.id}"

    def check(self, now: float) -> None:
        """Raises Unauthorized from the moment on at which it expires."""
        if self.expires_at is not None and now >= self.expires_at:
            raise Unauthorized(
                f"the token has expired {now - self.expires_at:,.0f} seconds ago: {self.id}",
                hint="ask who runs the cluster for a new token",
            )


@dataclass(frozen=True, slots=True)
class Token:
    """A credential, and the key that proves it."""

    credential: Credential
    key: bytes = field(repr=False)

    def __str__(self) -> str:
        """The text that its holder keeps: a password."""
        return f"{self.credential}.{urlsafe_b64encode(self.key).decode().rstrip('=')}"


def issue(secret: bytes, role: TokenRole, id: str, *, expires_at: int | None = None) -> Token:
    """Raises InvalidRequest for an id or a time that a token cannot hold."""
    credential = Credential(role, expires_at, id)
    return Token(credential, key_of(secret, credential))


def key_of(secret: bytes, credential: Credential) -> bytes:
    return hmac.digest(secret, str(credential).encode(), "sha256")


def parse_credential(text: str) -> Credential:
    """Raises Unauthorized for what is none, without saying more of it than that."""
    match = _CREDENTIAL.fullmatch(text)
    if match is None or match[1] not in tuple(TokenRole):
        raise Unauthorized("a malformed token", hint="a token is one line: pst1.<role>.<expiry>.<id>.<key>")
    return Credential(TokenRole(match[1]), None if match[2] == "never" else int(match[2]), match[3])


def parse_token(text: str) -> Token:
    """Raises Unauthorized. Whether the key is right, only who knows the secret can say."""
    public, _, key_text = text.strip().rpartition(".")
    credential = parse_credential(public)
    key = _decode(key_text.encode("ascii", errors="replace"))
    if len(key) != KEY_BYTES:
        raise Unauthorized("a malformed token: its key is cut or longer", hint="copy the whole line that the token is")
    return Token(credential, key)


def create(path: Path) -> bytes:
    """Write a new secret to a file that only its owner can read, and return it.

    Raises InvalidRequest when there is such a file already: two secrets make two clusters.
    """
    secret = os.urandom(SECRET_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise InvalidRequest(
            f"the cluster's secret is there already: {path}", hint="use it, or remove it to begin another cluster"
        ) from error
    except OSError as error:
        raise InvalidRequest(f"the cluster's secret cannot be written ({error.strerror}): {path}") from error
    try:
        with open(descriptor, "wb") as file:
            file.write(b"pystachio-secret-1:" + urlsafe_b64encode(secret) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # Half a secret would be in the way of a whole one.
        path.unlink(missing_ok=True)
        raise InvalidRequest(f"the cluster's secret cannot be written ({error.strerror}): {path}") from error
    return secret


def read(path: Path) -> bytes:
    """The secret in a file. Raises Unauthorized for one that others can read, InvalidRequest for one that is none."""
    content = read_private(
        path,
        "the cluster's secret",
        missing="copy the file that was made with the cluster to each of its nodes",
        exposed="make a new secret",
    )
    match = _SECRET_FILE.fullmatch(content)
    secret = b"" if match is None else _decode(match[1])
    if len(secret) != SECRET_BYTES:
        raise InvalidRequest(
            f"not a secret of a cluster: {path}", hint="it is one line that begins with pystachio-secret-1:"
        )
    return secret


def read_token(path: Path) -> Token:
    """The token in a file. Raises as `read`, and as `parse_token`."""
    content = read_private(
        path, "the token", missing="pystachio-node token > FILE makes one", exposed="ask for another token"
    )
    return parse_token(content.decode("ascii", errors="replace"))


def _decode(text: bytes) -> bytes:
    """Empty for what is no base64."""
    if _BASE64.fullmatch(text) is None:
        return b""  # the decoder passes over what it does not know
    try:
        return urlsafe_b64decode(text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4))
    except (Base64Error, ValueError):
        return b""
