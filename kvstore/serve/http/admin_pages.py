"""Admin pages: what each page of the admin page shows, read from the store.

The idea: a page is a function from a store and the query's texts to the values of its template. It
runs in a thread of the door, and its calls are those that any program has. It leaves out the
topics and groups that its client may not see (`sight`).

Invariants: a page changes nothing; it reads a bounded number of queues and groups, and messages up
to those of a page that its client may see, and says where it left some out; a text that is no
number, or a topic that is not there, is an error that is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kvstore.api.store import Store
from kvstore.api.topics_part import TopicsPart
from kvstore.core.names import PENDING_TOPICS
from kvstore.errors import (
    CallerError,
    MessageNotFound,
    OffsetNotFound,
    StoreError,
    TopicNotFound,
    shown,
)
from kvstore.message import Bounds, StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.pop.inflight.listing import InFlightMessage
from kvstore.pop.progress import GroupStats
from kvstore.serve.http.shown_message import plain, show_body, show_properties
from kvstore.serve.http.sight import Sight
from kvstore.serve.metrics.store_metrics import StoreMetrics
from kvstore.timing.delayed_message import DelayedPage
from kvstore.timing.prepared_message import PreparedPage
from kvstore.timing.schedule_rows import NAME_PROPERTY

ROWS_MAX: Final = 100
QUEUES_MAX: Final = 4096
"""Queues that one page looks at."""
_NEWEST: Final = 20
_QUEUES_SHOWN: Final = 256
_PARTS_OF_A_ROW: Final = 5
_PREVIEW: Final = 100
"""Characters of a body in a list."""

Query = Mapping[str, str]
Values = dict[str, Any]


class AdminContext(NamedTuple):
    """The sources of a page, and what its client may see of them."""

    store: Store
    metrics: StoreMetrics
    sight: Sight

    def part(self) -> TopicsPart:
        """The store, as if the topics out of sight were not there."""
        return TopicsPart(self.store, self.sight.topic)

    def figures(self) -> list[GroupStats]:
        """The groups in topics that have series of their own, as far as they are seen."""
        found, sight = self.metrics.group_figures(), self.sight
        return [f for f in found if sight.group(f.group) and sight.topic(f.topic)]


Page = Callable[[AdminContext, Query], Values]


# --- overview ---


def overview(context: AdminContext, query: Query) -> Values:
    """The store at a glance; the charts are filled by the script."""
    context.sight.require_figures()
    return {"stats": context.store.stats(), "live": live(context)}


def live(context: AdminContext) -> Values:
    """The figures of the charts; of groups those that have series of their own."""
    context.sight.require_figures()
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
    names = ((i, i.name) for i in context.store.topics())
    found = [i for i, n in names if part in n and n > after and context.sight.topic(n)]
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
    store = context.store
    info = store.topic(context.sight.require_topic(_text(query, "topic")))
    queues = [(q, store.bounds(info.name, q)) for q in range(min(info.read_queues, QUEUES_MAX))]
    filled = [(q, b) for q, b in queues if b.next_offset > b.min_offset]
    newest = _newest(store, info.name, filled[:_QUEUES_SHOWN], _NEWEST)
    return {
        "info": info,
        "queues": queues[:_QUEUES_SHOWN],
        "left_out": info.read_queues - min(len(queues), _QUEUES_SHOWN),
        "messages": [row_of(m) for m in newest],
        "is_read": info.name not in PENDING_TOPICS,
    }


def _newest(
    store: Store, topic: str, queues: Iterable[tuple[int, Bounds]], limit: int
) -> list[StoredMessage]:
    """The newest messages of some queues of a topic, at most `limit`, the newest first."""
    found = list[StoredMessage]()
    for queue, bounds in queues:
        first = max(bounds.min_offset, bounds.next_offset - limit)
        # A queue that can't be read is left out: its page says why.
        with suppress(StoreError):
            found += store.pull(topic, queue, first, limit).messages
        # So memory holds the messages of one queue more, not of all.
        found.sort(key=lambda m: (m.stored_at, m.position), reverse=True)
        del found[limit:]
    return found


def groups(context: AdminContext, query: Query) -> Values:
    """The groups with their progress in topics."""
    by_group: dict[str, list[GroupStats]] = {}
    for one in context.figures():
        by_group.setdefault(one.group, []).append(one)
    names = ((i, i.name) for i in context.store.groups())
    infos = [i for i, n in names if query.get("find", "") in n and context.sight.group(n)]
    return {
        "rows": [(i, by_group.get(i.name, [])) for i in infos[:ROWS_MAX]],
        "find": query.get("find", ""),
        "count": len(infos),
    }


def group(context: AdminContext, query: Query) -> Values:
    """One group: its settings, its progress by topic, and its dead letters."""
    store, sight = context.store, context.sight
    info = store.group(sight.require_group(_text(query, "group")))
    names = [name for name in store.group_topics(info.name) if sight.topic(name)]
    figures, looks = list[GroupStats](), 0
    for name in names[:ROWS_MAX]:
        looks += store.topic(name).read_queues
        if figures and looks > QUEUES_MAX:
            break
        figures += store.group_stats(info.name, name)
    letters = _letters(context, info, _NEWEST)
    dead = figures[0].dead_letters if figures else len(letters)
    return {
        "info": info,
        "figures": figures,
        "left_out": len(names) - len(figures),
        "letters": letters,
        "dead": dead,
    }


def dead_letters(context: AdminContext, query: Query) -> Values:
    """The groups that have dead letters."""
    counts = {f.group: f.dead_letters for f in context.figures()}
    rows = []
    for info in context.store.groups():
        if count := counts.get(info.name):
            rows.append((info, count, _letters(context, info, 3)))
        if len(rows) >= ROWS_MAX:
            break
    return {"rows": rows}


def _letters(context: AdminContext, info: GroupInfo, limit: int) -> list[MessageRow]:
    names = (name for name in info.dead_letter_topics if context.sight.topic(name))
    found = [m for name in names for m in _newest_letters(context.store, name, limit)]
    found.sort(key=lambda m: m.stored_at, reverse=True)
    return [row_of(m) for m in found[:limit]]


def _newest_letters(store: Store, topic: str, limit: int) -> list[StoredMessage]:
    try:
        queues = min(store.topic(topic).read_queues, _QUEUES_SHOWN)
    except TopicNotFound:
        return []  # it is made with the first letter
    return _newest(store, topic, ((q, store.bounds(topic, q)) for q in range(queues)), limit)


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
    if given["topic"]:
        context.sight.require_topic(given["topic"])
    found: Iterable[StoredMessage] = []
    asked = True
    if given["id"]:
        found = [_find(context, given["id"])]
    elif given["topic"] and given["key"]:
        found = store.query(given["topic"], given["key"], limit=ROWS_MAX)
    elif given["topic"]:
        queue, offset = _number(given, "queue"), _number(given, "offset")
        found = store.pull(given["topic"], queue, offset, ROWS_MAX).messages
    else:
        asked = False
    return {"given": given, "rows": [row_of(m) for m in found], "asked": asked}


def _find(context: AdminContext, message_id: str) -> StoredMessage:
    try:
        found = context.store.find(message_id)
    except MessageNotFound:
        if context.sight.is_whole:
            raise
    else:
        if context.sight.topic(found.topic):
            return found
    raise MessageNotFound("no message has that id, or this client may not see its topic")


def message(context: AdminContext, query: Query) -> Values:
    """One message, whole within bounds."""
    name = context.sight.require_topic(_text(query, "topic"))
    queue, offset = _number(query, "queue"), _number(query, "offset")
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


class InFlightRow(NamedTuple):
    """A message in flight in a list; `row` is None if it can't be read now."""

    shown: InFlightMessage
    row: MessageRow | None
    reason: str


def in_flight(context: AdminContext, query: Query) -> Values:
    """The messages that a group has under lock, by topic the next due first; without a group, the
    groups that have some.
    """
    group, topic = query.get("group", "").strip(), query.get("topic", "").strip()
    if not group:
        pairs = [f for f in context.figures() if f.in_flight]
        pairs.sort(key=lambda f: -f.in_flight)
        return {"group": None, "pairs": pairs[:ROWS_MAX], "now": _now(context)}
    context.sight.require_group(group)
    if topic:
        context.sight.require_topic(topic)
    page = context.store.in_flight(
        group, topic or None, limit=ROWS_MAX, after=_after(query, _PARTS_OF_A_ROW)
    )
    rows = [
        InFlightRow(one, None if one.message is None else row_of(one.message), plain(one.reason))
        for one in page.messages
        if context.sight.topic(one.topic)
    ]
    count = page.count if topic or context.sight.is_whole else None
    return {
        "group": group, "topic": topic, "rows": rows, "count": count, "next": _next(page.next),
        "now": _now(context),
    }  # fmt: skip


def timers(context: AdminContext, query: Query) -> Values:
    """The delayed messages that wait, the next due first, each with the schedule that put it."""
    topic = query.get("topic", "").strip()
    if topic:
        context.sight.require_topic(topic)
    page = context.part().timers(topic or None, limit=ROWS_MAX, after=_after(query))
    names = {found.name for found in context.store.schedules()}
    rows = []
    for one in page.messages:
        name = one.message.properties.get(NAME_PROPERTY)
        rows.append((one, row_of(one.message), name if name in names else None))
    return {"topic": topic} | _page(context, rows, page)


def transactions(context: AdminContext, query: Query) -> Values:
    """The prepared messages that wait, the next to be asked about first."""
    page = context.part().transactions(limit=ROWS_MAX, after=_after(query))
    return _page(context, [(one, row_of(one.message)) for one in page.messages], page)


def _page(context: AdminContext, rows: list[Any], page: DelayedPage | PreparedPage) -> Values:
    return {"rows": rows, "count": page.count, "next": _next(page.next), "now": _now(context)}


def schedules(context: AdminContext, query: Query) -> Values:
    """The schedules by name."""
    found = [one for one in context.store.schedules() if context.sight.topic(one.topic)]
    rows = [(one, show_body(one.body[: 4 * _PREVIEW]).text[:_PREVIEW]) for one in found[:ROWS_MAX]]
    return {"rows": rows, "count": len(found), "now": _now(context)}


def tiers(context: AdminContext, query: Query) -> Values:
    """The log and the archives, with their cost if there is a policy."""
    context.sight.require_figures()
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


def _after(query: Query, parts: int = 2) -> Any:
    """The place behind which a page begins, of so many numbers; None: at the beginning."""
    text = query.get("after", "")
    if not text:
        return None
    found = text.split("-")
    if len(found) != parts:
        raise CallerError(f"after is {shown(text)}; it must be what the page before linked to")
    return tuple(_number({"after": one}, "after") for one in found)


def _next(found: tuple[int, ...] | None) -> str | None:
    return None if found is None else "-".join(map(str, found))


PAGES: Final[Mapping[str, Page]] = {
    "": overview,
    "topics": topics,
    "topic": topic,
    "groups": groups,
    "group": group,
    "messages": messages,
    "message": message,
    "in-flight": in_flight,
    "dead-letters": dead_letters,
    "timers": timers,
    "transactions": transactions,
    "schedules": schedules,
    "tiers": tiers,
}
"""By path; each has a template of that name (`overview` for the first)."""
