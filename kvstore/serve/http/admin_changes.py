"""Admin changes: what the admin page can change, each by one call of the store.

The idea: a table. A change is asked for by its name with a few texts, in a request's body; its
answer is a sentence for people. The page asks before it sends one, the guard (`application`) has
checked who it is.

Invariant: a change is one call, with its own promise; nothing else here changes the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvstore.api.store import Store
from kvstore.errors import CallerError, shown

_REDRIVEN_MAX: Final = 10_000
"""Dead letters of one change, which takes a second; the page says if there are more."""

Given = Mapping[str, str]
Change = Callable[[Store, Given], str]


def _text(given: Given, name: str) -> str:
    found = given.get(name)
    if not found:
        raise CallerError(f"the change needs {name}; it got {shown(sorted(given))}")
    return found


def _redrive(store: Store, given: Given) -> str:
    group = _text(given, "group")
    count = store.redrive(group, _REDRIVEN_MAX)
    more = "; there may be more" if count == _REDRIVEN_MAX else ""
    return f"{count} dead letters were given back to {group}{more}"


def _cancel(store: Store, given: Given) -> str:
    message_id = _text(given, "id")
    if store.cancel(message_id):
        return f"{message_id} will not be delivered"
    return f"{message_id} does not wait: it was delivered, or cancelled before"


def _commit(store: Store, given: Given) -> str:
    result = store.commit(_text(given, "id"))
    return f"committed to {result.topic}, queue {result.queue}, offset {result.offset}"


def _rollback(store: Store, given: Given) -> str:
    message_id = _text(given, "id")
    store.rollback(message_id)
    return f"{message_id} was rolled back"


def _pause(store: Store, given: Given) -> str:
    return f"schedule {store.pause_schedule(_text(given, 'name')).name} is paused"


def _resume(store: Store, given: Given) -> str:
    return f"schedule {store.resume_schedule(_text(given, 'name')).name} goes on"


def _delete_schedule(store: Store, given: Given) -> str:
    name = _text(given, "name")
    store.delete_schedule(name)
    return f"schedule {name} was deleted"


CHANGES: Final[Mapping[str, Change]] = {
    "redrive": _redrive,
    "cancel": _cancel,
    "commit": _commit,
    "rollback": _rollback,
    "pause": _pause,
    "resume": _resume,
    "delete-schedule": _delete_schedule,
}
