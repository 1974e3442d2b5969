"""The limits of what is kept in memory: for each its smallest value, and the test that lowers it.

A limit that no test reaches hides its faults. `tests/test_limits.py` finds the limits that are not
here; `tests/pop/test_smallest_limits.py` lowers them.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Limit(NamedTuple):
    """The modules that have its name; its smallest value; the models that reach it."""

    names: tuple[str, ...]
    value: int
    models: tuple[str, ...]


POPPED: Final = ("Pops",)
EVERYWHERE: Final = ("Pops", "Stores")
LIMITS: Final = (
    Limit(("pop.inflight.tables.AHEAD",), 1, POPPED),
    Limit(("pop.inflight.tables._AHEAD_BYTES",), 1, POPPED),
    Limit(("pop.claim._DEAD_AT_ONCE",), 1, POPPED),
    Limit(("pop.inflight.tables.ENDED_MAX", "pop.popper.ENDED_MAX"), 1, POPPED),
    Limit(("pop.inflight.tables._PREFETCHED_MAX",), 0, POPPED),
    Limit(("pop.inflight.tables._KEPT_MAX",), 1, POPPED),
    Limit(("core.popping.offset_sets.EMPTY_MAX",), 0, POPPED),
    Limit(("core.popping.inflight.KNOWN_MAX",), 1, POPPED),
    Limit(("pop.ordered._READ_AT_ONCE",), 1, POPPED),
    Limit(("pop.ordered._READ_BYTES",), 1, POPPED),
    Limit(("pop.pop._CHECKED_MAX",), 1, POPPED),
    Limit(("pop.dead_letters._AT_ONCE",), 1, POPPED),
    Limit(("pop.inflight.counters._STALE_MAX",), 0, POPPED),
    Limit(("index.index.HEADS_CACHED_MAX",), 1, EVERYWHERE),
    Limit(("index.key_lookup.FILTERS_CACHED_BYTES_MAX",), 1, ("Stores",)),
    Limit(("index.key_parts.BLOCKS_CACHED_BYTES_MAX",), 1, ("Stores",)),
    Limit(("index.queue_locations.RUNS_CACHED_MAX",), 1, EVERYWHERE),
    Limit(("index.queue_locations.SPANS_CACHED_MAX",), 1, EVERYWHERE),
    Limit(("index.checkpoint.CODES_MAX",), 1, EVERYWHERE),
    Limit(("log.segments.MAPS_MAX",), 1, EVERYWHERE),
    Limit(("meta.groups.CACHED_MAX",), 1, ("Pops", "OffsetsMachine")),
    Limit(("meta.groups._CACHED_OF_A_BATCH",), 0, ("Pops", "OffsetsMachine")),
    Limit(("meta.offsets._ENDS_MAX",), 0, POPPED),
    Limit(("meta.offsets._LAST_MAX",), 1, ("Pops", "OffsetsMachine")),
    Limit(("meta.topics.CACHED_MAX",), 1, EVERYWHERE),
    Limit(("meta.topics._CACHED_OF_A_BATCH",), 0, EVERYWHERE),
    Limit(("record.put.put_routes._ROUTES_MAX",), 1, EVERYWHERE),
)
LET_OUT: Final = {
    "timing.timers._DAMAGED_MAX": "tests/timing/test_delays.py",
    "engine.upkeep._PARTS_MAX": "tests/engine/test_checkpoints.py",
    "timing.checks.AGE_ENDS_MAX": "tests/timing/test_transaction_ages.py",
    "timing.checks.LINE_MAX": "tests/timing/test_transactions.py",
    "index.archived.FETCHED_MAX": "tests/tiering/catalog/test_same_answers.py",
    "consume.hand._UNSETTLED_MAX": "tests/consume/test_consumer.py",
    "pop.several._SETS_MAX": "tests/pop/test_several_topics.py",
    "tracing._LINKS_MAX": "tests/api/test_tracing.py",
    "client.exchange.CONFIRM_BYTES": "tests/serve/test_serving_limits.py",
    "client.exchange.OUTSTANDING_MAX": "tests/serve/test_serving_limits.py",
    "client.exchange.REQUEST_MAX": "tests/serve/test_serving_limits.py",
    "client.loop_batches._BYTES_MAX": "tests/serve/test_loop_batches.py",
    "client.loop_batches._COUNT_MAX": "tests/serve/test_loop_batches.py",
    "sharding.batch_check.KNOWN_MAX": "tests/serve/test_sharded_store.py",
    "serve.client_requests.REPLY_MAX": "tests/serve/test_serving_limits.py",
    "serve.client_requests.REPLY_BYTES": "tests/serve/test_large_replies.py",
    "serve.grpc.receiving.REPLY_BYTES": "tests/serve/test_reply_room.py",
    "serve.replies.reply_room.HELD_MAX": "tests/serve/test_hostile_clients.py",
    "serve.replies.reply_room.LARGE_MAX": "tests/serve/test_reply_room.py",
    "serve.gatherer.QUEUED_MAX": "tests/serve/test_serving_limits.py",
    "serve.local_connection.CONNECTIONS_MAX": "tests/serve/test_serving_limits.py",
    "serve.connection_watch.UNFINISHED_MAX": "tests/serve/test_hostile_clients.py",
    "serve.sessions.LOST_MAX": "tests/serve/test_hostile_clients.py",
    "serve.sessions.UNCONFIRMED_MAX": "tests/serve/test_serving_limits.py",
    "serve.sessions._READS_MAX": "tests/serve/test_serving_limits.py",
    "serve.sessions.UNDER_WAY_MAX": "tests/serve/test_serving_limits.py",
    "serve.http.page_sessions.SESSIONS_MAX": "tests/serve/http/test_http_door.py",
    "timing.prepared_message.SET_MAX": "it is no cache, but the messages that one put takes: "
    "tests/timing/test_transactions.py",
    "serve.grpc.clients.CLIENTS_MAX": "tests/serve/grpc/test_bounds.py",
    "serve.grpc.orphan_checks.CHECKERS_MAX": "tests/serve/grpc/test_bounds.py",
    "pop.ordered.PARKED_MAX": "it is no cache: what is parked waits, so the model would not "
    "hold: tests/pop/test_bounds.py",
}
"""Not of the models; and the test that lowers it."""
LIMITS_OF_TIERING: Final = {
    "archive.external_sort.ROWS_MAX": "tests/tiering/archive/test_external_sort.py",
    "catalog.tiers.SCANS_CACHED_MAX": "tests/tiering/catalog/test_bounds.py",
    "catalog.tiers.FOUND_CACHED_MAX": "tests/tiering/catalog/test_bounds.py",
    "catalog.tiers.GROUPS_CACHED_MAX": "tests/tiering/catalog/test_bounds.py",
    "catalog.tiers.GROUPS_CACHED_BYTES_MAX": "tests/tiering/catalog/test_bounds.py",
    "catalog.tiers.QUEUE_BLOCKS_CACHED_MAX": "tests/tiering/catalog/test_bounds.py",
    "operations.attach_conflicts._KEPT": "tests/tiering/catalog/test_bounds.py",
    "spark.stream.stream_view.BLOCKS_MAX": "tests/tiering/spark/stream/test_stream_model.py",
    "worker.runs._BYTES_MAX": "tests/tiering/catalog/test_bounds.py",
}
"""Limits of tiering, and the test that lowers each."""
NO_LIMITS_OF_MEMORY: Final = frozenset(
    {
        "BLOCK_BYTES", "FORMER_MAX", "GROUP_MAX", "KEY_HISTORY_MAX", "LENGTH_MAX", "MISSED_MAX",
        "NAME_MAX",
        "PROPERTIES_MAX", "SCAN_MAX", "TOPIC_MAX", "_DIGITS_MAX", "_DISK_CHECK_BYTES",
        "_ID_CHARACTERS_MAX",
        "_INTEGER_LENGTH_MAX", "_PATH_MAX", "_PROBLEMS_KEPT", "_PROBLEMS_MAX", "_SHOWN_MAX",
        # Of the server: ids, a file, a token, a signature; a request, a list and a value of a page.
        "BODY_MAX", "CLIENT_ID_MAX", "ROWS_MAX", "_FILE_BYTES_MAX", "_ID_MAX", "_SIGNED_MAX",
        "_TOKEN_TEXT_MAX", "_VALUE_MAX",
        # Of tiering: what one archive, one batch, one name or one plot may have.
        "BATCH_BYTES", "INPUTS_MAX", "KEY_BYTES_MAX", "MESSAGES_MAX", "PART_BYTES_MAX",
        "TOPICS_MAX", "_CONSTANTS_MAX", "_NAME_MAX", "_RUN_MAX",
        # Of HTTP/2: what a window may be.
        "WINDOW_MAX",
    }
)  # fmt: skip
"""Sizes of given or written data: no limit of what is kept in memory."""
