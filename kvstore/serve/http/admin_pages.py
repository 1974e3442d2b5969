"""Admin pages: what each page of the admin page shows, read from the store.

The idea: a page is a function from a store and the query's texts to the values of its template. It
runs in a thread of the door, and its calls are those that any program has.

Invariants: a page changes nothing; it reads a bounded number of queues, groups and messages, and
says where it left some out; a text that is no number, or a topic that is not there, is an error
that is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kvstore.api.store import Store
from kvstore.errors import CallerError, OffsetNotFound, StoreError, TopicNotFound, shown
from kvstore.message import StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.pop.progress import GroupStats
from kvstore.serve.http.shown_message import plain, show_body, show_properties
from kvstore.serve.metrics.store_metrics import StoreMetrics
from kvstore.timing.schedule_rows import NAME_PROPERTY

ROWS_MAX: Final = 100
QUEUES_MAX: Final = 4096
"""Queues that one page looks at."""
_NEWEST: Final = 20
_QUEUES_SHOWN: Final = 256
_PREVIEW: Final = 100
"""Characters of a body in a list."""

Query = Mapping[str, str]
Values = dict[str, Any]


class AdminContext(NamedTuple):
    """The sources of the pages."""

    store: Store
    metrics: StoreMetrics


Page = Callable[[AdminContext, Query], Values]


# --- overview ---


def overview(context: AdminContext, query: Query) -> Values:
    """The store at a glance; the charts are filled by the script."""
    return {"stats": context.store.stats(), "live": live(context)}


def live(context: AdminContext) -> Values:
    """The figures of the charts; of groups those that have series of their own."""
    stats = context.store.stats()
    pairs = context.metrics.group_figures()
    return {
        "at": context.metrics.now_ms(),
        "appended": stats.appended,
        "bytes": stats.end_position,
        "popped": sum(f.taken for f in pairs),
        "done": sum(f.taken - f.in_flight for f in pairs),
        "lag": sum(f.lag for f in pairs),
        "in_flight": sum(f.in_flight for f in pairs),
        "dead": sum({f.group: f.dead_letters for f in pairs}.values()),
        "delayed": stats.delays.waiting,
        "prepared": context.store.transactions(limit=1).count,
    }


# --- topics and groups ---


class TopicRow(NamedTuple):
    """A topic in the list. Without figures, the page has looked at enough queues before."""

    name: str
    kind: str
    queues: int
    held: int | None
    put: int | None


def topics(context: AdminContext, query: Query) -> Values:
    """The topics by name, a page of them; `find` is a part of their names."""
    part, after = query.get("find", ""), query.get("after", "")
    found = [i for i in context.store.topics() if part in i.name and i.name > after]
    rows, looks = [], 0
    for info in found[:ROWS_MAX]:
        looks += info.read_queues
        bounds = None
        if looks <= QUEUES_MAX:
            bounds = [context.store.bounds(info.name, q) for q in range(info.read_queues)]
        put = None if bounds is None else sum(b.next_offset for b in bounds)
        low = 0 if bounds is None else sum(b.min_offset for b in bounds)
        held = None if put is None else put - low
        rows.append(TopicRow(info.name, info.kind, info.read_queues, held, put))
    return {
        "rows": rows,
        "find": part,
        "count": len(found),
        "next": rows[-1].name if len(found) > ROWS_MAX else None,
    }


def topic(context: AdminContext, query: Query) -> Values:
    """One topic: its queues, and its newest messages."""
    store, info = context.store, context.store.topic(_text(query, "topic"))
    queues = [(q, store.bounds(info.name, q)) for q in range(min(info.read_queues, QUEUES_MAX))]
    filled = [(q, b) for q, b in queues if b.next_offset > b.min_offset]
    newest = list[StoredMessage]()
    for queue, bounds in filled[:_QUEUES_SHOWN]:
        first = max(bounds.min_offset, bounds.next_offset - _NEWEST)
        # A queue that can't be read is left out: its page says why.
        with suppress(StoreError):
            newest += store.pull(info.name, queue, first, _NEWEST).messages
    newest.sort(key=lambda m: (m.stored_at, m.position), reverse=True)
    return {
        "info": info,
        "queues": queues[:_QUEUES_SHOWN],
        "left_out": info.read_queues - min(len(queues), _QUEUES_SHOWN),
        "messages": [row_of(m) for m in newest[:_NEWEST]],
    }


def groups(context: AdminContext, query: Query) -> Values:
    """The groups with their progress in topics."""
    figures = context.metrics.group_figures()
    by_group: dict[str, list[GroupStats]] = {}
    for one in figures:
        by_group.setdefault(one.group, []).append(one)
    infos = [i for i in context.store.groups() if query.get("find", "") in i.name]
    return {
        "rows": [(i, by_group.get(i.name, [])) for i in infos[:ROWS_MAX]],
        "find": query.get("find", ""),
        "count": len(infos),
    }


def group(context: AdminContext, query: Query) -> Values:
    """One group: its settings, its progress by topic, and its dead letters."""
    store, info = context.store, context.store.group(_text(query, "group"))
    names = store.group_topics(info.name)
    figures = [f for name in names[:ROWS_MAX] for f in store.group_stats(info.name, name)]
    letters = _letters(store, info, _NEWEST)
    dead = figures[0].dead_letters if figures else len(letters)
    return {
        "info": info,
        "figures": figures,
        "left_out": max(0, len(names) - ROWS_MAX),
        "letters": letters,
        "dead": dead,
    }


def dead_letters(context: AdminContext, query: Query) -> Values:
    """The groups that have dead letters."""
    counts = {f.group: f.dead_letters for f in context.metrics.group_figures()}
    rows = []
    for info in context.store.groups():
        if count := counts.get(info.name):
            rows.append((info, count, _letters(context.store, info, 3)))
        if len(rows) >= ROWS_MAX:
            break
    return {"rows": rows}


def _letters(store: Store, info: GroupInfo, limit: int) -> list[MessageRow]:
    found = [m for name in info.dead_letter_topics for m in _newest_of(store, name)]
    found.sort(key=lambda m: m.stored_at, reverse=True)
    return [row_of(m) for m in found[:limit]]


def _newest_of(store: Store, name: str) -> list[StoredMessage]:
    try:
        queues = range(min(store.topic(name).read_queues, _QUEUES_SHOWN))
    except TopicNotFound:
        return []  # it is made with the first letter
    found = list[StoredMessage]()
    for queue in queues:
        bounds = store.bounds(name, queue)
        first = max(bounds.min_offset, bounds.next_offset - _NEWEST)
        with suppress(StoreError):
            found += store.pull(name, queue, first, _NEWEST).messages
    return found


# --- messages ---


class MessageRow(NamedTuple):
    """A message in a list."""

    topic: str
    queue: int
    offset: int
    message_id: str
    stored_at: int
    tag: str
    keys: str
    size: int
    preview: str


def row_of(message: StoredMessage) -> MessageRow:
    """A message as a line of a list."""
    body = show_body(bytes(message.body_view[: 4 * _PREVIEW]))
    preview = body.text.splitlines()[0] if body.text else ""
    if body.kind == "hex":
        preview = message.body_view[:24].hex(" ")
    return MessageRow(
        message.topic,
        message.queue,
        message.offset,
        message.message_id,
        message.stored_at,
        plain(message.tag or ""),
        plain(" ".join(message.keys))[:_PREVIEW],
        message.size,
        preview[:_PREVIEW],
    )


def messages(context: AdminContext, query: Query) -> Values:
    """Finds messages by id, by key, or from an offset on."""
    store, wanted = context.store, {k: v.strip() for k, v in query.items()}
    given = {k: wanted.get(k, "") for k in ("id", "topic", "key", "queue", "offset")}
    found: Iterable[StoredMessage] = []
    asked = True
    if given["id"]:
        found = [store.find(given["id"])]
    elif given["topic"] and given["key"]:
        found = store.query(given["topic"], given["key"], limit=ROWS_MAX)
    elif given["topic"]:
        queue, offset = _number(given, "queue"), _number(given, "offset")
        found = store.pull(given["topic"], queue, offset, ROWS_MAX).messages
    else:
        asked = False
    return {"given": given, "rows": [row_of(m) for m in found], "asked": asked}


def message(context: AdminContext, query: Query) -> Values:
    """One message, whole within bounds."""
    name, queue, offset = _text(query, "topic"), _number(query, "queue"), _number(query, "offset")
    found = context.store.get(name, queue, offset)
    before = after = None
    with suppress(OffsetNotFound):
        bounds = context.store.bounds(name, queue)
        before = offset - 1 if offset > bounds.min_offset else None
        after = offset + 1 if offset + 1 < bounds.next_offset else None
    return {
        "message": found,
        "row": row_of(found),
        "body": show_body(found.body),
        "properties": show_properties(found),
        "before": before,
        "after": after,
    }


# --- what waits ---


def timers(context: AdminContext, query: Query) -> Values:
    """The delayed messages that wait, the next due first, each with the schedule that put it."""
    page = context.store.timers(query.get("topic") or None, limit=ROWS_MAX, after=_after(query))
    names = {found.name for found in context.store.schedules()}
    rows = []
    for one in page.messages:
        name = one.message.properties.get(NAME_PROPERTY)
        rows.append((one, row_of(one.message), name if name in names else None))
    return {"rows": rows, "count": page.count, "next": _next(page.next), "now": _now(context)}


def transactions(context: AdminContext, query: Query) -> Values:
    """The prepared messages that wait, the next to be asked about first."""
    page = context.store.transactions(limit=ROWS_MAX, after=_after(query))
    rows = [(one, row_of(one.message)) for one in page.messages]
    return {"rows": rows, "count": page.count, "next": _next(page.next), "now": _now(context)}


def schedules(context: AdminContext, query: Query) -> Values:
    """The schedules by name."""
    found = context.store.schedules()
    rows = [(one, show_body(one.body[: 4 * _PREVIEW]).text[:_PREVIEW]) for one in found[:ROWS_MAX]]
    return {"rows": rows, "count": len(found), "now": _now(context)}


def tiers(context: AdminContext, query: Query) -> Values:
    """The log and the archives, with their cost if there is a policy."""
    stats = context.store.stats()
    currency, costs = context.metrics.costs_of(stats) or ("", {})
    return {"stats": stats, "currency": currency, "costs": costs}


def _now(context: AdminContext) -> int:
    return context.metrics.now_ms()


# --- texts of a query ---


def _text(query: Query, name: str) -> str:
    found = query.get(name, "").strip()
    if not found:
        raise CallerError(f"the page needs {name}; the address has none")
    return found


def _number(query: Query, name: str) -> int:
    text = query.get(name, "").strip() or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise CallerError(f"{name} is {shown(text)}; it must be a whole number")
    return int(text)


def _after(query: Query) -> tuple[int, int] | None:
    text = query.get("after", "")
    if not text:
        return None
    first, _, second = text.partition("-")
    parts = {"first": first, "second": second}
    return _number(parts, "first"), _number(parts, "second")


def _next(found: tuple[int, int] | None) -> str | None:
    return None if found is None else f"{found[0]}-{found[1]}"


PAGES: Final[Mapping[str, Page]] = {
    "": overview,
    "topics": topics,
    "topic": topic,
    "groups": groups,
    "group": group,
    "messages": messages,
    "message": message,
    "dead-letters": dead_letters,
    "timers": timers,
    "transactions": transactions,
    "schedules": schedules,
    "tiers": tiers,
}
"""By path; each has a template of that name (`overview` for the first)."""
