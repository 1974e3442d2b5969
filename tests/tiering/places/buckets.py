"""Buckets of an S3 server on loopback, as places and as they are."""

from __future__ import annotations

import http.client
import itertools
from typing import Final
from urllib.parse import urlsplit

from kvstore.clock import Clock
from kvstore.files import Files
from tiering.places.place import Place, open_place

SECRET: Final = "not-to-be-seen-anywhere"
_numbers = itertools.count()


def make_bucket(s3: str) -> str:
    """A new bucket; its name."""
    name = f"archives-{next(_numbers)}"
    assert ask(s3, "PUT", f"/{name}") == 200
    return name


def ask(s3: str, method: str, target: str) -> int:
    """Ask the server something without a client of S3's; the status."""
    return fetch(s3, method, target)[0]


def fetch(s3: str, method: str, target: str) -> tuple[int, str]:
    """As `ask`, with the answer."""
    connection = http.client.HTTPConnection(urlsplit(s3).netloc, timeout=30)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def open_bucket(
    endpoint: str,
    bucket: str,
    *,
    clock: Clock | None = None,
    files: Files | None = None,
    **options: object,
) -> Place:
    """A folder of a bucket, as a place; large is what has over 64 KiB."""
    settings: dict[str, object] = {
        "endpoint": endpoint,
        "access_key_id": "tester",
        "secret_access_key": SECRET,
        "region": "us-east-1",
        "whole_put_bytes": 64 << 10,
    }
    return open_place(
        f"s3://{bucket}/store/one", options=settings | options, clock=clock, files=files
    )
