"""The table of calls: which calls of a store go over the protocol, and how.

The idea: the calls are those of `Store`; their results have the types that its signatures say. The
table says the rest: what a repeat of a call does whose reply was lost, whether it may run for long,
and which of several shards it reaches. A call that is added to `Store` is added here by two lines,
and a test fails until it is.

Invariant: client and server have the same table, which belongs to the protocol's version.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal, get_type_hints

import msgspec

from kvstore.api.store import Store
from kvstore.errors import FormatError
from kvstore.wire.column_values import SentColumns
from kvstore.wire.values import receipt_results, result_reader

Repeat = Literal["again", "ids", "never"]
"""The repeat of a call that may have been made: it is made again; messages are looked for by their
ids first; it is not made.
"""

_AGAIN: Final = (
    "get", "pull", "pull_columns", "query", "read_at", "find", "find_in", "offset_at", "bounds",
    "pop", "ack_batch", "group_stats", "in_flight", "group_topics", "topics", "topics_of", "topic",
    "alter_topic", "groups", "groups_of", "group", "alter_group", "commit_offset", "commit_offsets",
    "committed_offset", "offset_history", "reset_offset", "lag", "commit", "commit_batch",
    "commit_in", "rollback",
    "rollback_batch", "rollback_in", "transactions", "transactions_in", "prepared", "prepared_in",
    "cancel", "cancel_in", "timer", "timer_in", "timers", "timers_in", "schedules",
    "schedules_in", "schedule_info", "next_firings", "pause_schedule", "resume_schedule",
    "namespaces", "import_rocketmq_config", "flush", "checkpoint", "seal", "apply_retention",
    "stats", "segments", "catalog", "verify", "on_check", "renew_batch",
)  # fmt: skip
_IDS: Final = ("put_batch", "put_columns", "prepare_batch")
_NEVER: Final = (
    "change_invisible", "change_invisible_batch", "nack_batch", "undo_pop", "give_up", "redrive",
    "create_topic", "create_topics", "delete_topic", "delete_topics",
    "create_group", "create_groups", "delete_group", "delete_groups",
    "change_delay", "change_delay_in", "schedule", "delete_schedule", "create_namespace",
    "delete_namespace", "export_rocketmq", "export_rocketmq_store",
)  # fmt: skip

REPEATS: Final[dict[str, Repeat]] = {
    **dict.fromkeys(_AGAIN, "again"),
    **dict.fromkeys(_IDS, "ids"),
    **dict.fromkeys(_NEVER, "never"),
}
"""The calls, and what a repeat of each does."""

Reach = Literal["queue", "batch", "columns", "commits", "receipts", "pop", "holder", "schedule",
                "any", "all", "sum", "pages", "one"]  # fmt: skip
"""The shards that a call reaches (docs/sharding.md): that of its queue; those of its messages, its
rows, its commits or its receipts; each in turn; the one that has it; one by a name; all that are
up, or all, to change them or to combine their answers, in pages one after the other; none, since it
is about one shard's log.
"""

REACHES: Final[dict[str, Reach]] = {
    **dict.fromkeys(
        ("get", "pull", "offset_at", "bounds", "commit_offset", "committed_offset",
         "offset_history"), "queue"),
    **dict.fromkeys(("put_batch", "prepare_batch"), "batch"),
    **dict.fromkeys(("put_columns", "pull_columns"), "columns"),
    "commit_offsets": "commits",
    **dict.fromkeys(
        ("ack_batch", "nack_batch", "undo_pop", "change_invisible", "change_invisible_batch",
         "renew_batch", "give_up"), "receipts"),
    "pop": "pop",
    **dict.fromkeys(
        ("find", "find_in", "cancel", "cancel_in", "change_delay", "change_delay_in", "timer",
         "timer_in", "prepared", "prepared_in", "commit", "commit_batch", "commit_in", "rollback",
         "rollback_batch", "rollback_in", "schedule_info", "next_firings", "pause_schedule",
         "resume_schedule", "delete_schedule"), "holder"),
    "schedule": "schedule",
    **dict.fromkeys(
        ("topics", "topics_of", "topic", "groups", "groups_of", "group", "group_topics",
         "namespaces"), "any"),
    **dict.fromkeys(
        ("create_topic", "create_topics", "alter_topic", "delete_topic", "delete_topics",
         "create_group", "create_groups", "alter_group", "delete_group", "delete_groups",
         "create_namespace", "delete_namespace", "reset_offset", "redrive", "flush", "checkpoint",
         "seal", "apply_retention", "on_check"), "all"),
    **dict.fromkeys(
        ("query", "lag", "group_stats", "stats", "timers", "timers_in", "transactions",
         "transactions_in", "schedules", "schedules_in"), "sum"),
    "in_flight": "pages",
    **dict.fromkeys(
        ("read_at", "segments", "catalog", "verify", "export_rocketmq", "export_rocketmq_store",
         "import_rocketmq_config"), "one"),
}  # fmt: skip
"""The calls, and which shards each reaches."""

TIER: Final = "tier"
"""The work of tiering, which is no call of the store: `[operation, policy, arguments]`."""

HAVE_MESSAGES: Final = frozenset({"put_batch", "prepare_batch"})
"""Calls whose first argument is messages."""
HAVE_PROGRESS: Final = frozenset({"segments", "verify", "export_rocketmq_store", TIER})
_OF_RECEIPTS: Final = frozenset(
    {"ack_batch", "nack_batch", "undo_pop", "change_invisible_batch", "renew_batch"}
)
"""Calls that have a result or an error for each receipt."""


def repeat_of(method: str) -> Repeat:
    """How a repeat of any call is made."""
    return "never" if method == TIER else REPEATS.get(method, "again")


@cache
def _reader(method: str) -> Callable[[Any], Any]:
    if method in _OF_RECEIPTS:
        return result_reader(list[Any])
    if method == "put_columns":
        return result_reader(SentColumns)
    if method in REPEATS:
        return result_reader(get_type_hints(getattr(Store, method))["return"])
    return result_reader(Any if method == TIER else None)


def read_result(method: str, data: Any) -> Any:
    """A call's result, of its bytes; `FormatError`."""
    try:
        found = _reader(method)(data)
    except (msgspec.DecodeError, TypeError, ValueError, OverflowError) as e:
        raise FormatError(f"the result of {method} can't be read: {e}") from None
    return receipt_results(found) if method in _OF_RECEIPTS else found
