"""Makes the pictures of the admin page in docs/: `make pictures`. Needs a browser."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, ViewportSize, expect

from kvstore import Message, Store
from kvstore.clock import SystemClock
from tests.serve.http.browser import browser, browser_path
from tests.serve.http.sample import archive, shop_store
from tests.serve.http.serving import Serving, serving

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
WIDE: Final = ViewportSize(width=1180, height=800)
PHONE: Final = ViewportSize(width=390, height=844)
LOOKS: Final = 24
"""Looks of the charts: two seconds each."""


def main() -> None:
    path = browser_path()
    if path is None:
        sys.exit("there is no browser; install one, such as Debian's chromium")
    with (
        tempfile.TemporaryDirectory(prefix="kvmq-shop-") as folder,
        shop_store(Path(folder) / "shop") as store,
    ):
        archive(store, Path(folder))
        with serving(store, SystemClock()) as served, browser(path) as program:
            take_all(program, served, store)


def take_all(program: Browser, served: Serving, store: Store) -> None:
    stop = threading.Event()
    worker = threading.Thread(target=work, args=(store, stop))
    worker.start()
    try:
        live(program, served)
    finally:
        stop.set()
        worker.join()
    take(program, served, "admin-message", "/message?topic=orders&queue=1&offset=40", WIDE)
    take(program, served, "admin-in-flight", "/in-flight?group=billing", WIDE)
    take(program, served, "admin-dead-letters", "/dead-letters", WIDE, press="Give them back")
    take(program, served, "admin-groups", "/groups", WIDE, dark=True)
    take(program, served, "admin-tiers", "/tiers", WIDE)
    take(program, served, "admin-phone", "/timers", PHONE)


def work(store: Store, stop: threading.Event) -> None:
    """Puts and takes in waves, so that charts show something."""
    turn = 0
    while not stop.wait(0.1):
        turn += 1
        count = 40 + 30 * (turn // 40 % 3)
        store.put_batch([Message("orders", b'{"order": 1}')] * count)
        store.ack_batch([p.receipt for p in store.pop("warehouse", "orders", limit=count - 8)])
        store.ack_batch([p.receipt for p in store.pop("billing", "orders", limit=count + 4)])
        if turn % 60 == 0:
            store.ack_batch([p.receipt for p in store.pop("warehouse", "orders", limit=500)])


def live(program: Browser, served: Serving) -> None:
    page = program.new_page(base_url=served.url, viewport=WIDE)
    page.goto("/")
    expect(page.locator(".charts")).to_have_attribute("data-looks", f"{LOOKS}", timeout=200_000)
    page.locator(".where").evaluate("e => e.textContent = '/srv/shop'")
    page.screenshot(path=DOCS / "admin-overview.png")
    page.context.close()


def take(
    program: Browser, served: Serving, name: str, at: str, size: ViewportSize, *,
    press: str = "", dark: bool = False,
) -> None:  # fmt: skip
    context = program.new_context(
        base_url=served.url, viewport=size, color_scheme="dark" if dark else "light",
        device_scale_factor=2 if size is PHONE else 1, is_mobile=size is PHONE,
    )  # fmt: skip
    page = context.new_page()
    page.goto(at)
    if press:
        page.get_by_role("button", name=press).first.click()
    page.screenshot(path=DOCS / f"{name}.png")
    context.close()


if __name__ == "__main__":
    main()
