"""Encryption of everything between nodes and clients, where the network below is not trusted to keep secrets.

Both ends show certificates of one authority, and nothing older than TLS 1.3 is spoken. Names in certificates are not
compared: who is at the other end is proved by the handshake above, which every connection has with and without TLS.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.network.private_file import read_private

_NOT_FOR_THIS = 26
"""OpenSSL's X509_V_ERR_INVALID_PURPOSE, of a certificate that an authority has signed for the other end only."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: this end's certificate and its private key, and the authority that signed everybody's."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """For connections that are accepted, and for those that are opened."""

    listening: ssl.SSLContext
    connecting: ssl.SSLContext


def load(files: TlsFiles) -> TlsContexts:
    """Raises InvalidRequest, with the file that cannot be used, Unauthorized for a key that others can use. Never asks
    for a passphrase."""
    read_private(
        files.key,
        "the TLS private key",
        missing="tls_key under [cluster] names its PEM file",
        exposed="make another key",
    )
    contexts = TlsContexts(_context(files, is_listening=True), _context(files, is_listening=False))
    _require_own_authority(contexts, files)
    return contexts


class TlsArrival(asyncio.Protocol):
    """Somebody has connected, and has to begin with TLS. `arrived` is given the socket, of which nothing is read yet:
    a server of the event loop's own would tell of nobody before that has ended.
    """

    def __init__(self, arrived: Callable[[socket.socket], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        plain = cast(asyncio.Transport, transport)
        try:
            taken = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        except OSError:  # too many files are open
            return
        finally:
            plain.abort()
        self._arrived(taken)


async def encrypt(taken: socket.socket, protocol: asyncio.Protocol, tls: TlsContexts, seconds: float) -> None:
    """The listener's side of TLS; then the protocol has its connection. Raises OSError when there is none."""
    loop = asyncio.get_running_loop()
    try:
        taken.setblocking(False)
        await loop.connect_accepted_socket(lambda: protocol, taken, ssl=tls.listening, ssl_handshake_timeout=seconds)
    except BaseException:
        taken.close()
        raise


def _context(files: TlsFiles, *, is_listening: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_listening else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if is_listening:
        # A session that is resumed would not be examined again.
        context.num_tickets = 0
    try:
        context.load_verify_locations(files.authority)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"not the certificate of an authority ({_reason(error)}): {files.authority}",
            hint="tls_authority under [cluster] names its PEM file",
        ) from error
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_passphrase)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"not a certificate with its private key ({_reason(error)}): {files.certificate}, {files.key}",
            hint="tls_certificate and tls_key under [cluster] name their PEM files; the key has no passphrase",
        ) from error
    return context


def _require_own_authority(contexts: TlsContexts, files: TlsFiles) -> None:
    """A handshake with itself: a certificate that its own authority does not know is refused by all others, who cannot
    say why, because there is no connection yet.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (contexts.connecting.wrap_bio(back, there), contexts.listening.wrap_bio(there, back, server_side=True))
    try:
        # Hello; answer with certificate; own certificate; examined.
        for end in (*ends, *ends):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _NOT_FOR_THIS:  # a client's need not be good for listening
            return
        raise InvalidRequest(
            f"the TLS certificate is not of the authority ({error.verify_message}): {files.certificate}, "
            f"{files.authority}",
            hint="the authority in tls_authority signs the certificates of all nodes and clients of a cluster",
        ) from error


def _reason(error: OSError | ValueError) -> str:
    """What OpenSSL says of a file, without where in OpenSSL."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _refuse_passphrase() -> str:
    raise ValueError("the private key has a passphrase")
