"""A socket with TLS that one thread reads while another writes.

The idea: OpenSSL lets in one thread at a time, and `ssl.SSLSocket` holds it while it waits. Here
TLS works on buffers, for moments under a lock; what waits is the socket below.

Invariants: one thread writes at a time, and one reads; a reader never waits for a writer, so what
TLS answers by itself (a new key) goes out with the next write.
"""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Final

_RECORDS: Final = 256 << 10
"""Bytes that are encrypted at a time."""
_RAW: Final = 64 << 10


class TlsSocket:
    """See the module; as `socket.socket`, as far as a client uses one. Errors are OSError."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Shakes hands by a connected socket."""
        self._raw = raw
        self._lock = threading.Lock()
        self._came = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._to_send, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                raw.sendall(self._to_send.read())
                self._receive()
            except ssl.SSLError:
                raw.sendall(self._to_send.read())  # the alert that says why
                raise
            else:
                raw.sendall(self._to_send.read())
                return

    def _receive(self) -> None:
        data = self._raw.recv(_RAW)
        with self._lock:
            if data:
                self._came.write(data)
            else:
                self._came.write_eof()

    def recv(self, size: int) -> bytes:
        """Waits for bytes; none if the other side has ended."""
        while True:
            with self._lock:
                try:
                    return self._tls.read(size)
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            self._receive()

    def sendall(self, data: bytes) -> None:
        """Sends all of the bytes."""
        view = memoryview(data)
        for at in range(0, len(view), _RECORDS):
            with self._lock:
                self._tls.write(view[at : at + _RECORDS])
                records = self._to_send.read()
            self._raw.sendall(records)

    def settimeout(self, seconds: float | None) -> None:
        """See `socket.socket.settimeout`."""
        self._raw.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """See `socket.socket.shutdown`."""
        self._raw.shutdown(how)

    def close(self) -> None:
        """See `socket.socket.close`."""
        self._raw.close()
