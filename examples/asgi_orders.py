"""A web application of asyncio: its consumer lives as long as the application. (FastAPI takes the
same `lifespan`.)

    kvmq serve data --create
    STORE=kvmq+unix:///PATH/data/kvmq.sock uvicorn examples.asgi_orders:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import kvstore.aio

shipped: dict[str, int] = {}
"""The orders that this process has shipped, and the attempt at which it did."""


async def ship(popped: kvstore.Popped) -> None:
    """Ships an order."""
    (order,) = popped.message.keys
    shipped[order] = popped.attempt


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Connects, consumes until the application ends, and lets handlers end first."""
    async with kvstore.aio.connect(os.environ["STORE"]) as store:
        await store.create_topic("orders", queues=4, exist_ok=True)
        await store.create_group("shipping", exist_ok=True)
        app.state.store = store
        async with store.consume("shipping", "orders", ship, concurrency=16):
            yield


async def take(request: Request) -> JSONResponse:
    """Takes an order."""
    order = request.path_params["order"]
    put = await request.app.state.store.put("orders", await request.body(), keys=[order])
    return JSONResponse({"id": put.message_id}, 202)


async def look(request: Request) -> JSONResponse:
    """Says whether an order was shipped."""
    return JSONResponse({"shipped": request.path_params["order"] in shipped})


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/orders/{order}", take, methods=["POST"]),
        Route("/orders/{order}", look, methods=["GET"]),
    ],
)
