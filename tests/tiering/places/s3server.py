"""moto's S3 server in a process of its own: says its port, and ends when its input does.

A process, because moto warns of things that are no business of ours, and warnings are errors here.
One request at a time, because moto looks whether a name is free and then takes it, where S3 does
both at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


def main() -> None:
    app = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_by_one(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start))

    server = make_server("127.0.0.1", 0, one_by_one, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
