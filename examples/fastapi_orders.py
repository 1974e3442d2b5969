"""A web application of asyncio: its consumer lives as long as the application.

kvmq serve data --create
STORE=kvmq+unix:///PATH/data/kvmq.sock uvicorn examples.fastapi_orders:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

import kvstore.aio

shipped: dict[str, int] = {}
"""The orders that this process has shipped, and the attempt at which it did."""


async def ship(popped: kvstore.Popped) -> None:
    """Ships an order."""
    (order,) = popped.message.keys
    shipped[order] = popped.attempt


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connects, consumes until the application ends, and lets handlers end first."""
    async with kvstore.aio.connect(os.environ["STORE"]) as store:
        await store.create_topic("orders", queues=4, exist_ok=True)
        await store.create_group("shipping", exist_ok=True)
        app.state.store = store
        async with store.consume("shipping", "orders", ship, concurrency=16):
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order}", status_code=202)
async def take(order: str, request: Request) -> dict[str, str]:
    """Takes an order."""
    put = await request.app.state.store.put("orders", await request.body(), keys=[order])
    return {"id": put.message_id}


@app.get("/orders/{order}")
async def look(order: str) -> dict[str, bool]:
    """Says whether an order was shipped."""
    return {"shipped": order in shipped}
