"""Free ports of this machine that follow each other."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> int:
    """The first of so many ports that nobody listens at."""
    while True:
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            first = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            port: int = first.getsockname()[1]
            for number in range(1, count):
                held.enter_context(socket.create_server(("127.0.0.1", port + number)))
            return port
