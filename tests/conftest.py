"""Settings and fixtures of all tests, and of the processes that they start."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from kvstore import Store, StoreConfig
from kvstore.files import LocalFiles
from tests.fixtures import Fixture, unpack_fixture
from tests.support.clock import VirtualClock
from tests.support.disk import half_full
from tests.support.memory import stores_in_memory
from tests.support.pools import quick_pools
from tests.support.served import opener_of
from tests.support.stores import SMALL, Opens, furnish, openings

# Else a failure there does not say what was found.
pytest.register_assert_rewrite("tests.support.contents")
# How long an example takes says more about a shared machine than about the code.
hypothesis_settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("unhurried")
half_full(LocalFiles)
quick_pools()
stores_in_memory()
# A shell starts what runs in the background deaf to it; tests interrupt what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A process that a test starts imports kvmq in half the time when Python keeps compiled modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
_site = str(Path(__file__).parent / "support" / "site")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_site, os.environ.get("PYTHONPATH"))))

LONG: Final = (
    "tests/cli/test_bench.py",
    "tests/cli/test_work.py",
    "tests/core/test_wheels.py",
    "tests/pop/test_pop_model.py",
    "tests/pop/test_smallest_limits.py",
    "tests/crash/test_consume_kill.py",
    "tests/crash/test_dedup_operations.py",
    "tests/crash/test_delayed_operations.py",
    "tests/crash/test_every_operation.py",
    "tests/crash/test_index_damage.py",
    "tests/crash/test_index_power_cut.py",
    "tests/crash/test_kept_exceptions.py",
    "tests/crash/test_kill.py",
    "tests/crash/test_pop_kill.py",
    "tests/crash/test_serve_campaign.py",
    "tests/crash/test_power_cut.py",
    "tests/crash/test_threads.py",
    "tests/crash/test_threads_of_aio.py",
    "tests/crash/test_torn.py",
    "tests/crash/test_transaction_operations.py",
    "tests/api/test_states.py",
    "tests/examples",
    "tests/rocketmq/test_real_broker.py",
    "tests/serve/test_sharded_kill.py",
    "tests/serve/http2/test_h2spec.py",
    "tests/serve/test_many_connections.py",
    "tests/serve/http/test_admin_page.py",
    "tests/serve/grpc/test_java_client.py",
    "tests/tiering/operations/erase/test_kill.py",
    "tests/tiering/spark",
    "tests/tiering/catalog/test_same_answers.py",
    "tests/tiering/worker/test_every_operation.py",
    "tests/tiering/worker/test_kill.py",
    "tests/tiering/worker/test_threads.py",
)
"""Long models, crash campaigns and Spark, which `make test` leaves to `make test-all`."""


SERVED: Final = (
    "tests/api/test_columns.py",
    "tests/api/test_hostile_values.py",
    "tests/api/test_in_flight.py",
    "tests/api/test_namespaces.py",
    "tests/api/test_put_batches.py",
    "tests/api/test_put_fields.py",
    "tests/meta/test_topics.py",
    "tests/pop/test_dead_letters.py",
    "tests/pop/test_locks.py",
    "tests/pop/test_pop.py",
    "tests/pop/test_redrive.py",
    "tests/pop/test_waiting.py",
    "tests/read/test_filters.py",
    "tests/read/test_reads.py",
    "tests/timing/test_delays.py",
    "tests/timing/test_schedules.py",
    "tests/timing/test_transactions.py",
)
"""Tests of the API that run once more with a store that is served: the calls, their results and
their errors are the same.
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives the tests of `SERVED` both kinds of stores."""
    path = metafunc.definition.path.relative_to(metafunc.config.rootpath)
    if "opens" in metafunc.fixturenames and str(path) in SERVED:
        metafunc.parametrize("opens", ["embedded", "served"], indirect=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the files of the other half alone, where one is asked for."""
    half = {"long": True, "not long": False}.get(config.option.markexpr)
    if half is None or (half and collection_path.is_dir()):
        return None
    return True if _is_long(collection_path, config.rootpath) is not half else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests of `LONG`, and has files that need a Spark come first: of several workers,
    each of which is given a stretch of all tests, only one starts a Spark then.
    """
    need_spark = set[Path]()
    for item in items:
        if _is_long(item.path, config.rootpath):
            item.add_marker(pytest.mark.long)
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            need_spark.add(item.path)
    items.sort(key=lambda item: item.path not in need_spark)


@functools.cache
def _is_long(path: Path, root: Path) -> bool:
    return any(path.is_relative_to(root / name) for name in LONG)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leaves out what is alive once all tests are there when garbage is collected: hundreds of
    thousands of objects of tests and libraries, a fifth of a second each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)  # a twentieth of all time went there
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Each closing of a store would collect garbage from here on, for that exception's sake."""
    assert sys.exception() is None, "the test left an exception as handled for ever"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def opens(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opens]:
    """Opens the store in `name` under the test's folder; all are closed at the end. In tests of
    `SERVED` a second time by a server.
    """
    opener = opener_of(request)

    def open_store(
        config: StoreConfig = SMALL, name: str = "store", *, read_only: bool = False
    ) -> Store:
        return opener(tmp_path / name, config, read_only=read_only)

    with openings(open_store) as opening:
        yield opening


@pytest.fixture
def store(opens: Opens, request: pytest.FixtureRequest) -> Store:
    """A store with topic "t" of 4 queues, unless the marks `topic` and `group` say otherwise."""
    return furnish(opens(), request, queues=4)


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Fixture]:
    """The fixture called so, unpacked once: to read, not to change."""
    unpacked: dict[str, Fixture] = {}

    def store(name: str) -> Fixture:
        if name not in unpacked:
            unpacked[name] = unpack_fixture(name, tmp_path_factory.mktemp("fixture"))
        return unpacked[name]

    return store
