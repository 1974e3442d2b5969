"""The calls of a served store have the signatures of the store's: for people, for mypy, and for a
field that there is none of.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.aio
from kvstore import ServedStore, ShardedStore, Store
from kvstore.wire.call_table import REPEATS
from tests.support.served import ServerThread

CALLS = sorted({*REPEATS, "put", "prepare", "ack", "nack", "transaction", "consume"} - {"on_check"})


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Store, ServedStore]]:
    """A store, and the same as a client has it."""
    with kvstore.open(tmp_path / "s") as store:
        store.create_topic("t")
        server = ServerThread(store)
        with kvstore.connect(server.url) as served:
            yield store, served
        server.stop()


def parameters(call: object) -> dict[str, tuple[Any, ...]]:
    assert callable(call)
    found = inspect.signature(call).parameters.values()
    return {one.name: (one.kind, one.default, one.annotation) for one in found}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_parameters_of_the_stores_own(name: str) -> None:
    own, awaited = getattr(Store, name), getattr(kvstore.aio.Store, name)
    assert parameters(getattr(ServedStore, name)) == parameters(own)
    assert parameters(getattr(ShardedStore, name)) == parameters(own)
    assert parameters(getattr(kvstore.aio.ServedStore, name)) == parameters(awaited)


def test_a_field_that_there_is_none_of_is_refused_as_by_the_store(
    both: tuple[Store, ServedStore],
) -> None:
    """mypy sees each of these, too: it reports an ignored error that is none."""
    said = list[list[str]]()
    for store in both:
        texts = list[str]()
        with pytest.raises(TypeError) as caught:
            store.put("t", b"x", tga="a")  # type: ignore[call-arg]  # see above
        texts.append(str(caught.value))
        with pytest.raises(TypeError) as caught:
            store.prepare("t", b"x", group="g", delay=5)  # type: ignore[call-arg]  # see above
        texts.append(str(caught.value))
        with pytest.raises(kvstore.MessageIllegal):
            store.put("t", b"x", queue="1")  # type: ignore[arg-type]  # see above
        said.append(texts)
    assert said[0] == said[1]
    assert both[0].bounds("t", 0) == (0, 0)


def test_asyncio_refuses_the_same(both: tuple[Store, ServedStore]) -> None:
    async def refused(url: str) -> None:
        async with kvstore.aio.connect(url) as store:
            with pytest.raises(TypeError, match=r"put\(\) got an unexpected .* 'tga'"):
                await store.put("t", b"x", tga="a")  # type: ignore[call-arg]  # see above
            with pytest.raises(TypeError, match=r"prepare\(\) got an unexpected .* 'delay'"):
                await store.prepare("t", b"x", group="g", delay=5)  # type: ignore[call-arg]  # see above
            with pytest.raises(TypeError, match=r"pop\(\) got an unexpected .* 'lmit'"):
                await store.pop("g", "t", lmit=5)  # type: ignore[call-arg]  # see above

    asyncio.run(refused(both[1].url))
