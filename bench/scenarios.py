"""The list of scenarios: names, how often each is run, which figures follow from two of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bench.figure import Figure, Options


class Scenario(msgspec.Struct, frozen=True):
    """Where a scenario's function is; `runs` None means as many as the command line says."""

    name: str
    place: str
    """module:function"""
    runs: int | None = None
    size: int | None = None
    """The body size it stands for, where it exists for several."""

    @property
    def help(self) -> str:
        """The first line of the function's docstring."""
        return (_function(self.place).__doc__ or "").strip().splitlines()[0]


SCENARIOS: Final = (
    Scenario("put_batch", "put_batch:run", size=128),
    Scenario("put_batch_1k", "put_batch:run", size=1024),
    Scenario("put_columns", "put_columns:run", size=128),
    Scenario("put_lines", "put_lines:run", size=128),
    Scenario("put", "put_single:run"),
    Scenario("put_stalls", "put_stalls:run_few", runs=1),
    Scenario("put_stalls_many", "put_stalls:run_many", runs=1),
    Scenario("put_sync", "put_sync:run"),
    Scenario("dedup", "dedup:run", runs=1),
    Scenario("dedup_window", "dedup:run_window", runs=1),
    Scenario("pull", "reading:run_pull"),
    Scenario("get", "reading:run_get"),
    Scenario("query", "reading:run_query"),
    Scenario("pop", "popping:run_batch"),
    Scenario("pop_one", "popping:run_one"),
    Scenario("pop_threads", "popping:run_threads"),
    Scenario("pop_shared", "sharing:run"),
    Scenario("pop_curve", "popping:run_curve", runs=1),
    Scenario("topics", "popping:run_topics"),
    Scenario("offsets", "popping:run_offsets", runs=1),
    Scenario("index_many", "index_size:run_many", runs=1),
    Scenario("index_sparse", "index_size:run_sparse", runs=1),
    Scenario("index_few", "index_size:run_few", runs=1),
    Scenario("open_queues", "opening:run_queues", runs=1),
    Scenario("open_killed", "opening:run_killed"),
    Scenario("delay_put", "delays:run_puts"),
    Scenario("delay_memory", "delays:run_memory", runs=1),
    Scenario("delay_open", "delays:run_opening", runs=1),
    Scenario("delay_beside", "delivering:run_beside", runs=1),
    Scenario("delay_burst", "delivering:run_burst", runs=1),
    Scenario("delay_cancel", "delivering:run_cancel"),
    Scenario("transactions", "transactions:run_transactions"),
    Scenario("serve_puts", "serving:run_puts"),
    Scenario("serve_pops", "serving:run_pops"),
    Scenario("serve_latency", "serving:run_latency"),
    Scenario("serve_polls", "serving:run_polls", runs=1),
    Scenario("serve_beside", "serving:run_beside", runs=1),
    Scenario("archive_size", "archives:run_size", runs=1),
    Scenario("archive_read", "archives:run_read", runs=1),
    Scenario("archive_few", "archive_blocks:run_few"),
    Scenario("archive_many", "archive_blocks:run_many"),
    Scenario("archive_lz4", "archive_blocks:run_lz4"),
    Scenario("tiering", "tiering:run", runs=1),
    Scenario("tier_rate", "tiering:run_rate", runs=1),
    Scenario("tier_rate_many", "tiering:run_rate_many", runs=1),
    Scenario("scale", "scale:run", runs=1),
    Scenario("spark_scan", "scanning:run", runs=1),
    Scenario("merging", "merging:run", runs=1),
    Scenario("grpc_calls", "grpc_calls:run", runs=1),
    Scenario("sqlite", "peer_sqlite:run", runs=1),
    Scenario("parquet", "peer_parquet:run", runs=1),
    Scenario("clients_send", "grpc_clients:run_send", size=1024),
    Scenario("clients_receive", "grpc_clients:run_receive", size=1024),
    Scenario("clients_latency", "grpc_clients:run_latency", runs=1, size=1024),
    Scenario("clients_memory", "grpc_clients:run_memory", runs=1, size=1024),
)

DERIVED: Final = {("index_many", "index_few"): "index_size:compare"}
"""Two scenarios, and what computes figures from both."""


def _function(place: str) -> Callable[..., list[Figure]]:
    module, _, name = place.partition(":")
    function: Callable[..., list[Figure]] = getattr(
        importlib.import_module(f"bench.{module}"), name
    )
    return function


def run_scenario(scenario: Scenario, folder: Path, options: Options) -> list[Figure]:
    """Run a scenario once, in this process."""
    if options.size is None:
        options = msgspec.structs.replace(options, size=scenario.size)
    return _function(scenario.place)(folder, options)


def derive(results: dict[str, list[Figure]]) -> dict[str, list[Figure]]:
    """The ratios of pairs of scenarios that were both run."""
    found = {}
    for names, place in DERIVED.items():
        if all(name in results for name in names):
            found["/".join(names)] = _function(place)(*(results[name] for name in names))
    return found
