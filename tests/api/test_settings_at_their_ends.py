"""Every value that a setting may have, the smallest and the largest too, gives a store that works:
its calls do what they say or raise one of the store's own errors, and none of its threads fails.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import Store, StoreConfig, StoreError
from tests.api.test_config import RIGHT
from tests.support.clock import VirtualClock
from tests.support.naming import named
from tests.support.stores import Opens

VALUES = [(name, value) for name, values in RIGHT.items() for value in values]


def use(store: Store, clock: VirtualClock) -> None:
    """A day's calls."""
    store.create_topic("t", 1, exist_ok=True)
    store.create_group("g", max_attempts=1, exist_ok=True)
    for _ in range(4):
        store.put("t", b"a", keys=["k"])
    store.flush()
    store.query("t", "k")
    store.commit_offset("reader", "t", 0, 1)
    first, second, third = store.pop("g", "t", limit=3)
    store.ack(first.receipt)
    clock.advance(0.01)
    store.ack_batch([second.receipt])
    store.change_invisible(third.receipt)
    store.redrive("g")
    store.reset_offset("g", "t", to="begin")
    assert store.offset_history("g", "t", 0) or not store.config.offset_history_for
    store.seal()
    store.apply_retention()


@pytest.mark.parametrize(("name", "value"), VALUES, ids=named)
def test_a_store_works_with_every_value_that_a_setting_may_have(
    opens: Opens, name: str, value: Any
) -> None:
    clock = VirtualClock()
    settings = {"segment_size": 64 << 10, "clock": clock, name: value}
    if name == "check_property_crc":
        settings["property_crc"] = True  # what is demanded of records has to be in them
    config = StoreConfig(**settings)
    store = opens(config)
    try:
        use(store, clock)
    except StoreError:
        # Here no body may be so long, or no disk so full.
        assert name in ("max_properties", "watermarks")
    clock.advance(1.0)
    assert [thread for thread in store.stats().threads if thread.failures] == []
    store.close()
