"""The table of calls is whole: what a store can do, a served one can."""

from __future__ import annotations

import inspect
from typing import Final, get_type_hints

import pytest

import kvstore
import kvstore.aio
from kvstore import Namespace, ServedStore, Store
from kvstore.wire.call_table import REPEATS

MADE_OF_OTHERS: Final = frozenset(
    {"put", "prepare", "ack", "nack", "consume", "transaction",
     "namespace", "close"}
)  # fmt: skip
"""Calls that a client makes of other calls, or for itself."""


def calls(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_every_public_call_of_a_store_is_in_the_table_or_made_of_others() -> None:
    assert calls(Store) == REPEATS.keys() | MADE_OF_OTHERS
    assert not REPEATS.keys() & MADE_OF_OTHERS


@pytest.mark.parametrize("kind", [ServedStore, kvstore.aio.ServedStore, kvstore.aio.Store])
def test_every_kind_of_store_has_every_call(kind: type) -> None:
    assert calls(Store) - calls(kind) == set()


def test_a_namespaces_calls_are_those_of_a_served_store_too() -> None:
    assert calls(Namespace) - calls(ServedStore) == set()


@pytest.mark.parametrize("name", sorted(REPEATS))
def test_a_call_has_the_signature_of_the_stores(name: str) -> None:
    assert (
        inspect.signature(getattr(ServedStore, name)) == inspect.signature(getattr(Store, name))
        or name == "on_check"
    )
    assert get_type_hints(getattr(Store, name))["return"] is not None
