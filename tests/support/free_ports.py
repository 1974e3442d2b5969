"""Free ports of this machine that follow each other.

The idea: connections get their own ports from a range of the kernel's, and so do servers that name
none. These ports are below that range: nobody takes the port of a server that a test has killed
before it is started again.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path
from typing import Final

_OF_CONNECTIONS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10_000


def free_ports(count: int) -> int:
    """The first of so many ports that nobody listens at."""
    end = max(int(_OF_CONNECTIONS.read_text().split()[0]), 2 * _LOWEST)
    while True:
        port = _LOWEST + secrets.randbelow(end - count - _LOWEST)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for number in range(count):
                held.enter_context(socket.create_server(("127.0.0.1", port + number)))
            return port
