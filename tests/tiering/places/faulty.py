"""A server between a place and its object store that breaks what a test tells it to break.

The idea: it passes requests on, one connection each, and asks the test's faults about every one;
the first fault that takes it is used up by one request.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal
from urllib.parse import urlsplit

Kind = Literal["status", "stall", "cut", "short", "drop", "lose", "stale", "ignore"]

_ERROR: Final = "<?xml version='1.0'?><Error><Code>{}</Code><Message>quoted: {}</Message></Error>"
QUOTED: Final = "a-secret-that-a-server-quotes"
_NOT_PASSED_ON: Final = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass
class Fault:
    """The fault of the next `times` requests of a method whose target holds `part`.

    status: answered so, and not passed on. stall: no answer until the server stops. cut: the answer
    ends early. short: it says itself that it is shorter. drop: closed without passing on. lose:
    passed on, and the answer lost. stale: a list gets the answer of the first one again. ignore:
    passed on without its condition.
    """

    kind: Kind
    method: str = "GET"
    part: str = ""
    times: int = 1
    status: int = 500
    code: str = "InternalError"

    def takes(self, method: str, target: str) -> bool:
        return self.times > 0 and self.method in (method, "*") and self.part in target


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""


class FaultyServer:
    """Between a place and the server at `behind`; `asked` lists what came, in order."""

    def __init__(self, behind: str) -> None:
        self._behind = urlsplit(behind).netloc
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._first_list: Answer | None = None
        self.faults: list[Fault] = []
        self.asked: list[str] = []
        self._server = _Server(("127.0.0.1", 0), _handler(lambda request: self._handle(request)))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def count(self, start: str) -> int:
        """How many requests began so, such as "PUT "."""
        with self._lock:
            return sum(line.startswith(start) for line in self.asked)

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        method, target = request.command, request.path
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        with self._lock:
            self.asked.append(f"{method} {target}")
            fault = next((f for f in self.faults if f.takes(method, target)), None)
            if fault is not None:
                fault.times -= 1
        kind = fault.kind if fault else ""
        if kind == "drop":
            return
        if kind == "stall":
            self._stopping.wait()
            return
        if fault is not None and kind == "status":
            error = _ERROR.format(fault.code, QUOTED).encode()
            said = Answer(fault.status, [("ETag", '"0"')], error)
            _send(request, said, len(error), len(error))
            return
        headers = dict(request.headers.items())
        if kind == "ignore":
            headers = {k: v for k, v in headers.items() if k.lower() != "if-none-match"}
        answer = self._passed_on(method, target, headers, body)
        if "list-type" in target:
            answer = self._list(answer, stale=kind == "stale")
        if kind == "lose":
            return
        size = len(answer.body)
        _send(
            request,
            answer,
            size // 2 if kind == "short" else size,
            size // 2 if kind in ("short", "cut") else size,
        )

    def _passed_on(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self._behind, timeout=30)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read())
        finally:
            connection.close()

    def _list(self, answer: Answer, *, stale: bool) -> Answer:
        with self._lock:
            self._first_list = self._first_list or answer
            return self._first_list if stale else answer


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up on purpose here."""


def _handler(handle: Callable[[BaseHTTPRequestHandler], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{method}", handle)
    return Handler


def _send(request: BaseHTTPRequestHandler, answer: Answer, said: int, sent: int) -> None:
    request.send_response(answer.status)
    for name, value in answer.headers:
        if name.lower() not in _NOT_PASSED_ON and not (
            name.lower() == "content-range" and said < len(answer.body)
        ):
            request.send_header(name, value)
    if said < len(answer.body):
        request.send_header("Content-Range", f"bytes 0-{max(said - 1, 0)}/{len(answer.body)}")
    length = _header(answer, "content-length") if request.command == "HEAD" else str(said)
    request.send_header("Content-Length", length or "0")
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(answer.body[:sent])


def _header(answer: Answer, name: str) -> str | None:
    return next((value for key, value in answer.headers if key.lower() == name), None)
