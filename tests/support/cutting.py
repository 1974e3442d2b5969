"""A relay between a client and a server that cuts connections, or passes bytes on one by one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


class Relay:
    """Listens at `path`, and connects to a server's socket for each client. Each connection ends
    when it has passed on as many bytes as the next of `cuts` says; then connections live on.
    """

    def __init__(self, path: Path, target: Path, cuts: list[int], piece: int = 1 << 16) -> None:
        self._target = target
        self._cuts = cuts
        self._piece = piece
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(64)
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(str(self._target))
                except OSError:
                    client.close()
                    continue
                left = [self._cuts.pop(0) if self._cuts else 1 << 60]
                self.connections += 1
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(*pair, left), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self._piece):
                data = data[: max(left[0], 0)]
                left[0] -= len(data)
                target.sendall(data)
                if left[0] <= 0:
                    break
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        """Takes no more connections."""
        self._listening.close()


@contextlib.contextmanager
def relaying(path: Path, target: Path, cuts: list[int], piece: int = 1 << 16) -> Iterator[Relay]:
    """A relay for the time of the block."""
    relay = Relay(path, target, cuts, piece)
    try:
        yield relay
    finally:
        relay.close()
