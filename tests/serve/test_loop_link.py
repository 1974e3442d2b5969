"""Connections for asyncio: no call waits without an end."""

from __future__ import annotations

import asyncio

import pytest

import kvstore.aio
from kvstore import ConnectionLost, Store
from kvstore.client import exchange
from tests.support.served import serving


def test_calls_that_wait_for_room_end_when_no_server_comes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "OUTSTANDING_MAX", 1)

    async def main() -> object:
        with serving(store) as server:
            client = await kvstore.aio.connect(server.url, reconnect_for=0)
            calls = [client.pop("g", "t", wait=60) for _ in range(4)]
            ended = asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(0)
            await asyncio.to_thread(server.stop)
            found = await asyncio.wait_for(ended, 20)
            await client.close()
        return found[-1]

    assert isinstance(asyncio.run(main()), ConnectionLost)
