"""The HTTP application: its routes, and the guard in front of them.

The idea: a request passes the guard, which says who it comes from and whether that client may; then
its work is done in a thread of the door, since a call of the store may wait for a disk. Programs
prove who they are by `Authorization: Bearer TOKEN`; browsers sign in with a token in a form's body
and get a session (`page_sessions`). Health needs neither.

Invariants:

- A token is in a header or a body, and in no URL, log line or answer.
- A page shows a client what it may see (`sight`), and nothing else.
- A change needs the right to administer the store and, of a browser, the page's own token in a
  header and the page's own origin.
- On loopback, a `Host` that is not this machine's is refused: a foreign name that was pointed at
  127.0.0.1 reaches nothing.
- Each answer forbids inline scripts and styles, framing, and other sites' content.
- A request's body is read up to `BODY_MAX` bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvstore.api.store import Store
from kvstore.clock import Clock
from kvstore.errors import (
    CallerError,
    GroupNotFound,
    LimitExceeded,
    MessageNotFound,
    NamespaceNotFound,
    NotAllowed,
    NotAuthenticated,
    OffsetNotFound,
    QueueNotFound,
    ScheduleNotFound,
    StoreError,
    TopicNotFound,
)
from kvstore.process.background import traced
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import Client
from kvstore.serve.access.exposure import is_loopback
from kvstore.serve.access.limits import ClientLimits, TokenBucket
from kvstore.serve.http.admin_changes import CHANGES
from kvstore.serve.http.admin_pages import PAGES, AdminContext, live
from kvstore.serve.http.page_sessions import LASTS, PageSession, PageSessions
from kvstore.serve.http.shown_message import plain
from kvstore.serve.http.sight import Sight
from kvstore.serve.metrics.server_counts import UNKNOWN, ServerCounts
from kvstore.serve.metrics.store_metrics import StoreMetrics

DOOR: Final = "HTTP door"
"""The name of the door, for people and for metrics."""
BODY_MAX: Final = 64 << 10
_THREADS: Final = 4
_WATCH_THREADS: Final = 2
_COOKIE: Final = "kvmq_session"
_TOKEN: Final = "x-kvmq-token"
_BEARER: Final = "bearer "
_LIVE_FOR: Final = 1.0
"""Seconds for which the figures of charts are kept, however many pages ask."""
_SIGN_INS: Final = 1.0
_SIGN_INS_AT_ONCE: Final = 10.0
"""Failed sign-ins a second, of all browsers together, and at once."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_CALLS: Final = frozenset(
    {"healthz", "readyz", "metrics", "sign-in", "sign-out", "live", "do", "static", *PAGES}
)
_NOT_THERE: Final = (
    MessageNotFound, OffsetNotFound, QueueNotFound, TopicNotFound, GroupNotFound, ScheduleNotFound,
    NamespaceNotFound,
)  # fmt: skip
_STATUS: Final = (
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (LimitExceeded, 429),
    (_NOT_THERE, 404),
    (CallerError, 400),
    (StoreError, 503),
)
_log = logging.getLogger("kvmq.http")

T = TypeVar("T")


class HttpApplication:
    """The application of one door; see the module. It is made in the loop."""

    def __init__(
        self,
        store: Store,
        access: AccessControl,
        metrics: StoreMetrics,
        counts: ServerCounts,
        limits: ClientLimits,
        clock: Clock,
        *,
        is_loopback_only: bool,
        has_tls: bool,
    ) -> None:
        self._store = store
        self._access = access
        self._counts = counts
        self._limits = limits
        self._clock = clock
        self._is_loopback_only = is_loopback_only
        self._has_tls = has_tls
        self._metrics = metrics
        self._sessions = PageSessions(clock)
        self._failures = TokenBucket(_SIGN_INS, _SIGN_INS_AT_ONCE, clock)
        self._threads = ThreadPoolExecutor(_THREADS, "kvmq-http")
        self._watched = ThreadPoolExecutor(_WATCH_THREADS, "kvmq-watch")
        """For health and metrics: pages that read slow archives must not hold these up."""
        self._live: tuple[float, asyncio.Future[dict[str, Any]]] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(metrics)
        ProcessCollector(registry=self._registry)
        self._templates = _templates()
        self.is_ending = False
        """Whether the server drains, so that nothing new is to be sent here."""
        self.app: ASGIApp = self._guarded(self._routes())

    def close(self) -> None:
        """Ends the threads, which have no work any more."""
        self._threads.shutdown(wait=False)
        self._watched.shutdown(wait=False)

    def _routes(self) -> Router:
        return Router(
            [
                Route("/healthz", self._health),
                Route("/readyz", self._readiness),
                Route("/metrics", self._scrape),
                Route("/sign-in", self._sign_in_form),
                Route("/sign-in", self._sign_in, methods=["POST"]),
                Route("/sign-out", self._sign_out, methods=["POST"]),
                Route("/live", self._live_figures),
                Route("/do/{change}", self._change, methods=["POST"]),
                Mount("/static", StaticFiles(packages=[("kvstore.serve.http", "static")])),
                *[Route(f"/{path}", self._page_of(path)) for path in PAGES],
            ],
            redirect_slashes=False,
            default=_no_such_page,
        )

    # --- the guard ---

    def _guarded(self, inner: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    given = {name for name, _ in message["headers"]}
                    message["headers"] += [pair for pair in _HEADERS if pair[0] not in given]
                await send(message)

            if scope["type"] != "http":
                return
            request = Request(scope, receive)
            error: BaseException | None = None
            try:
                self._check_host(request)
                await inner(scope, receive, send_with_headers)
            except (StoreError, HTTPException) as e:
                error = e
                await self._refusal(request, e)(scope, receive, send_with_headers)
            except Exception as e:
                # Its text may be a caller's; the log has it, the answer does not.
                _log.error("a request to %s failed: %s", scope["path"], traced(e))
                error = e
                answer = PlainTextResponse("the server failed; its log says why\n", 500)
                await answer(scope, receive, send_with_headers)
            finally:
                self._counts.called(DOOR, _call_of(scope), error)

        return guarded

    def _check_host(self, request: Request) -> None:
        if self._is_loopback_only:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
            if not is_loopback(host):
                raise NotAllowed(
                    "this door is for this machine alone: open it as 127.0.0.1 or localhost"
                )

    def _refusal(self, request: Request, error: StoreError | HTTPException) -> Response:
        if isinstance(error, HTTPException):
            status, text = error.status_code, str(error.detail)
        else:
            status = next(code for kinds, code in _STATUS if isinstance(error, kinds))
            text = str(error)
        headers = {}
        if isinstance(error, LimitExceeded):
            headers["retry-after"] = str(max(1, round(error.retry_after + 0.5)))
        if status == 401:
            if _wants_page(request):
                return RedirectResponse("/sign-in", 303)
            headers["www-authenticate"] = "Bearer"
        if _wants_page(request):
            return self._render("error", None, {"status": status, "text": text}, status, headers)
        if request.url.path.startswith("/do/"):
            return JSONResponse({"error": text}, status, headers)
        return PlainTextResponse(f"{text}\n", status, headers)

    def _client(self, request: Request) -> tuple[Client, PageSession | None]:
        """Who a request comes from; `NotAuthenticated`, `LimitExceeded`."""
        if _has_bearer(request):
            token = request.headers["authorization"][len(_BEARER) :].strip()
            return self._access.of_token(token), None
        session = self._sessions.find(request.cookies.get(_COOKIE, ""))
        if session is not None:
            self._access.check_current(session.client)
            return session.client, session
        return self._access.anonymous(), None

    def _admitted(self, request: Request) -> tuple[Client, PageSession | None, AdminContext]:
        """As `_client`, of a client that may see something, with what it sees."""
        client, session = self._client(request)
        sight = _sight_of(client)
        self._limits.charge(client.name, 0)
        return client, session, AdminContext(self._store, self._metrics, sight)

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    async def _watch(self, work: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._watched, work, *given)

    # --- health and metrics ---

    async def _health(self, request: Request) -> Response:
        try:
            await self._watch(self._store.stats)
        except StoreError:
            return PlainTextResponse("not up\n", 503)
        return PlainTextResponse("up\n")

    async def _readiness(self, request: Request) -> Response:
        try:
            refusal = (await self._watch(self._store.stats)).refuses_puts
        except StoreError:
            refusal = "closed"
        if self.is_ending or refusal is not None:
            return PlainTextResponse("not ready\n", 503)
        return PlainTextResponse("ready\n")

    async def _scrape(self, request: Request) -> Response:
        client, _ = self._client(request)
        self._access.require_metrics(client)
        self._limits.charge(client.name, 0)
        encoder, kind = choose_encoder(request.headers.get("accept", ""))
        with self._limits.connected(client.name):
            text = await self._watch(encoder, self._registry)
        return Response(text, headers={"content-type": kind})

    # --- signing in ---

    async def _sign_in_form(self, request: Request) -> Response:
        return self._render("sign-in", None, {"refused": None})

    async def _sign_in(self, request: Request) -> Response:
        self._check_origin(request)
        wait = self._failures.wait()
        if wait:
            raise LimitExceeded(f"too many failed sign-ins; try again in {wait:.0f} s", wait)
        token = parse_qs((await _body(request)).decode("utf-8", "replace")).get("token", [""])[0]
        try:
            client = self._access.of_token(token.strip())
            _sight_of(client)
        except (NotAuthenticated, NotAllowed) as e:
            self._failures.take(1)
            _log.warning("a sign-in to the admin page was refused: %s", str(e))
            return self._render("sign-in", None, {"refused": str(e)}, 403)
        _log.info("%s signed in to the admin page", client.name)
        answer = RedirectResponse("/", 303)
        self._begin(answer, client)
        return answer

    async def _sign_out(self, request: Request) -> Response:
        self._check_origin(request)
        self._sessions.end(request.cookies.get(_COOKIE, ""))
        answer = RedirectResponse("/sign-in", 303)
        answer.delete_cookie(_COOKIE)
        return answer

    def _begin(self, answer: Response, client: Client) -> PageSession:
        session_id, session = self._sessions.begin(client)
        answer.set_cookie(
            _COOKIE, session_id, max_age=int(LASTS), httponly=True, samesite="strict",
            secure=self._has_tls,
        )  # fmt: skip
        return session

    def _check_origin(self, request: Request) -> None:
        """Refuses a request that a page of another site made."""
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            raise NotAllowed("a page of another site asked for this")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise NotAllowed("a page of another site asked for this")

    # --- pages ---

    def _page_of(self, path: str) -> Callable[[Request], Any]:
        async def page(request: Request) -> Response:
            client, session, context = self._admitted(request)
            if not path and not context.sight.has_figures:
                return RedirectResponse("/topics", 303)
            query = dict(request.query_params)
            with self._limits.connected(client.name):
                values = await self._in_thread(PAGES[path], context, query)
            holder = Response()
            if session is None and not _has_bearer(request):
                session = self._begin(holder, client)
            values |= {
                "path": path,
                "client": client.name,
                "sight": context.sight,
                "has_sign_in": self._access.has_credentials,
            }
            answer = self._render(path or "overview", session, values)
            answer.raw_headers += [h for h in holder.raw_headers if h[0] == b"set-cookie"]
            return answer

        return page

    def _render(
        self,
        name: str,
        session: PageSession | None,
        values: dict[str, Any],
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> Response:
        token = "" if session is None else session.token.reveal()
        text = self._templates.get_template(f"{name}.html").render(
            {"path": name, "client": None, "sight": None, "has_sign_in": False, "token": token}
            | values
        )
        return Response(text, status, headers, "text/html")

    async def _live_figures(self, request: Request) -> Response:
        _, _, context = self._admitted(request)
        context.sight.require_figures()
        now = self._clock.monotonic()
        if self._live is None or now >= self._live[0] + _LIVE_FOR:
            work = asyncio.ensure_future(self._in_thread(live, context))
            self._live = now, work
        return JSONResponse(await asyncio.shield(self._live[1]))

    async def _change(self, request: Request) -> Response:
        client, session, _ = self._admitted(request)
        self._access.require(client, "admin")
        if not _has_bearer(request):
            self._check_origin(request)
            if session is None or not session.has_token(request.headers.get(_TOKEN, "")):
                raise NotAllowed("the change lacks the page's token; load the page again")
        change = CHANGES.get(request.path_params["change"])
        if change is None:
            raise HTTPException(404, "there is no such change")
        try:
            given = json.loads(await _body(request))
        except ValueError:
            given = None
        if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
            raise CallerError("the body of a change is a JSON object of texts")
        with self._limits.connected(client.name):
            told = await self._in_thread(change, self._store, given)
        _log.info("%s, by the admin page: %s", client.name, told)
        return JSONResponse({"done": told})


def _sight_of(client: Client) -> Sight:
    """The sight of a client; `NotAllowed` if it sees nothing."""
    sight = Sight(client.rights)
    if sight.is_blind:
        raise NotAllowed(
            f"client {client.name} has no right to see anything here; the file of credentials "
            "gives rights to consume and to administer"
        )
    return sight


async def _no_such_page(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404, "there is no such page")


def _has_bearer(request: Request) -> bool:
    """Whether a program asks, with a token in a header, which no browser adds by itself."""
    return request.headers.get("authorization", "").lower().startswith(_BEARER)


def _wants_page(request: Request) -> bool:
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


def _call_of(scope: Scope) -> str:
    """The name of a request for the counts: the first part of its path, if there is such a one."""
    name = scope["path"].lstrip("/").partition("/")[0]
    return (name or "overview") if name in _CALLS else UNKNOWN


async def _body(request: Request) -> bytes:
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > BODY_MAX:
            raise HTTPException(413, f"the request's body has more than {BODY_MAX} bytes")
    return bytes(found)


# --- templates ---


def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("kvstore.serve.http"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    filters: dict[str, Callable[..., str]] = {
        "count": _count, "size": _size, "time": _time, "span": _span, "plain": plain,
        "money": _money, "message_url": _message_url,
        "param": lambda text: quote(str(text), safe=""),
    }  # fmt: skip
    made.filters |= filters
    return made


def _count(number: float | None) -> str:
    return "–" if number is None else f"{number:,}"


def _size(number: float) -> str:
    size = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.3g}"


def _time(ms: int | None) -> str:
    if ms is None:
        return "–"
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # beyond the years that have dates
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"


def _span(ms: float) -> str:
    """A duration until some time, or since then."""
    seconds, past = abs(ms) / 1000, " ago" if ms < 0 else ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}{past}"
    return f"{seconds:.1f} s{past}"


def _message_url(row: Any) -> str:
    return f"/message?topic={quote(row.topic, safe='')}&queue={row.queue}&offset={row.offset}"
