"""Both interfaces of `klamm.core.transport` over TLS, built on Python's `ssl` alone.

They show that the interfaces promise nothing that TLS cannot do. Klamm itself offers no TLS yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from klamm.core.protocol.messages import Buffer
from klamm.core.transport import socket_options
from klamm.core.transport.address import Address
from klamm.core.transport.interface import Accept, Dial, TransportHandler

HANDSHAKE_S = 60.0
_READ = 64 * 1024


@dataclass(frozen=True)
class Contexts:
    """A server's certificate for 127.0.0.1, and a client that trusts it alone."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def self_signed(folder: Path) -> Contexts:
    """Makes a key and a certificate in `folder`; needs the command `openssl`."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        raise RuntimeError(f"openssl made no certificate: {made.stderr}")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return Contexts(server, ssl.create_default_context(cafile=certificate))


# -- under the broker


class TlsTransport(asyncio.BufferedProtocol):
    """A `Transport`: ciphertext on the event loop's TCP transport, whose protocol it is; plaintext for the handler."""

    def __init__(self, context: ssl.SSLContext, handler: TransportHandler) -> None:
        self._handler = handler
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._ciphertext = bytearray(_READ)
        self._negotiated = self._paused = self._ended = self._closing = False
        self._owes_update = False  # True if `expects_input` was True and nothing has been delivered since

    # -- the event loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._too_late = self._loop.call_later(HANDSHAKE_S, self.abort)
        self._handler.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._ciphertext)

    def buffer_updated(self, nbytes: int) -> None:
        self._received.write(memoryview(self._ciphertext)[:nbytes])
        self._advance()

    def eof_received(self) -> bool:
        self._received.write_eof()
        self._advance()
        return True  # `_deliver` closes the connection

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._too_late.cancel()
        self._handler.connection_lost(exc)

    def _advance(self) -> None:
        if not self._negotiated:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                return
            except ssl.SSLError:
                self.abort()
                return
            self._negotiated = True
            self._too_late.cancel()
        self._flush()
        self._deliver()

    def _deliver(self) -> None:
        while not (self._paused or self._ended or self._closing) and self._negotiated:
            room = self._handler.get_buffer(-1)
            try:
                count = cast(int, self._tls.read(len(room), room))  # given a buffer, it returns a count
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                count = 0
            except ssl.SSLError:
                self.abort()
                return
            self._owes_update = False
            if count == 0:
                self._ended = True
                if not self._handler.eof_received():
                    self.close()
                return
            self._handler.buffer_updated(count)
        if self._owes_update and not (self._paused or self._closing or socket_options.received_bytes(self._socket)):
            self._owes_update = False
            self._handler.buffer_updated(0)

    def _flush(self) -> None:
        if self._to_send.pending and not self._tcp.is_closing():
            self._tcp.write(self._to_send.read())

    # -- the interface

    @property
    def peer(self) -> tuple[str, int] | None:
        peer = self._tcp.get_extra_info("peername")
        return (peer[0], peer[1]) if peer else None

    def expects_input(self) -> bool:
        if self._ended:
            return False
        self._owes_update = bool(
            self._received.pending or self._tls.pending() or socket_options.received_bytes(self._socket)
        )
        if self._owes_update:
            self._loop.call_soon(self._deliver)
        return self._owes_update

    def writelines(self, pieces: list[Buffer], /) -> None:
        data = b"".join(pieces)
        if data and not self._tcp.is_closing():
            self._tls.write(data)
            self._flush()

    def get_write_buffer_size(self) -> int:
        return self._tcp.get_write_buffer_size() + self._to_send.pending

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._tcp.set_write_buffer_limits(high=high, low=low)

    def pause_reading(self) -> None:
        self._paused = True
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._tcp.resume_reading()
        self._loop.call_soon(self._deliver)

    def grow_send_buffer(self) -> None:
        socket_options.grow_send_buffer(self._socket)

    def is_closing(self) -> bool:
        return self._closing or self._tcp.is_closing()

    def close(self) -> None:
        if self._negotiated and not self.is_closing():
            with contextlib.suppress(ssl.SSLError):  # it would wait for the client's answer
                self._tls.unwrap()
            self._flush()
        self._closing = True
        self._tcp.close()

    def abort(self) -> None:
        self._closing = True
        self._tcp.abort()

    @property
    def _socket(self) -> socket.socket | None:
        return cast("socket.socket | None", self._tcp.get_extra_info("socket"))


def accept_tls(context: ssl.SSLContext) -> Accept:
    async def accept(accepted: socket.socket, make_handler: Callable[[], TransportHandler]) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: TlsTransport(context, make_handler()), accepted)

    return accept


# -- under a client


class TlsStream:
    """A `ByteStream`; takes over a negotiated socket."""

    def __init__(self, negotiated: ssl.SSLSocket) -> None:
        self._socket = negotiated
        self._read_waits_for_write = self._write_waits_for_read = False

    def read_into(self, buffer: memoryview, timeout_s: float) -> int:
        self._socket.settimeout(timeout_s)
        return self._socket.recv_into(buffer)

    def write_all(self, data: bytes, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def is_quiet(self) -> bool:
        """A readable socket may hold a session ticket, so it has to be read."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except OSError:
            return False
        return False

    def set_nonblocking(self) -> None:
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def read_available(self, buffer: memoryview) -> int | None:
        self._read_waits_for_write = False
        try:
            return self._socket.recv_into(buffer)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self._read_waits_for_write = True
            return None

    @property
    def has_buffered_input(self) -> bool:
        return self._socket.pending() > 0

    def write_available(self, pieces: Iterable[memoryview]) -> int:
        self._write_waits_for_read = False
        try:
            return self._socket.send(next(iter(pieces)))
        except ssl.SSLWantReadError:
            self._write_waits_for_read = True
            return 0
        except ssl.SSLWantWriteError:
            return 0

    def events(self, *, writing: bool) -> int:
        write = self._read_waits_for_write or (writing and not self._write_waits_for_read)
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def dial_tls(context: ssl.SSLContext) -> Dial:
    def dial(address: Address, timeout_s: float) -> TlsStream:
        opened = socket.create_connection((address.host, address.port), timeout_s)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return TlsStream(context.wrap_socket(opened, server_hostname=address.host))
        except BaseException:
            opened.close()
            raise

    return dial
