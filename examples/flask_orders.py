"""A web application whose processes share a served store: it takes orders.

kvmq serve data --create
STORE=kvmq+unix:///PATH/data/kvmq.sock flask --app examples.flask_orders run
STORE=… python -m examples.flask_worker          as many as there are processors
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, jsonify, request

import kvstore

store = kvstore.connect(os.environ["STORE"])
store.create_topic("orders", queues=4, dedup_window=3600, exist_ok=True)
store.create_topic("shipped", queues=4, dedup_window=3600, exist_ok=True)
app = Flask(__name__)


@app.post("/orders/<order>")
def take(order: str) -> tuple[Any, int]:
    """Takes an order; a request that is sent again changes nothing."""
    put = store.put("orders", request.get_data(), keys=[order], dedup_id=order)
    return jsonify(id=put.message_id, again=put.duplicate), 202


@app.get("/orders/<order>")
def look(order: str) -> tuple[Any, int]:
    """Says whether an order was shipped."""
    if found := store.query("shipped", order, limit=1):
        return jsonify(state="shipped", by=found[0].body.decode()), 200
    if store.query("orders", order, limit=1):
        return jsonify(state="taken"), 200
    return jsonify(state="unknown"), 404
