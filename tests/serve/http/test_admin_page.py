"""The admin page in a real browser: it shows, it asks before a change, and it fits a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from kvstore import Message, Store
from kvstore.clock import SystemClock
from kvstore.serve.access.credentials import sha256_of
from tests.serve.http.browser import browser, browser_path
from tests.serve.http.sample import shop_store
from tests.serve.http.serving import Serving, serving
from tests.support.private_files import private_file
from tests.support.waiting import until

PROGRAM = browser_path()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="there is no browser; install one, such as Debian's chromium"
)
PATHS = ["/", "/topics", "/topic?topic=orders", "/groups", "/group?group=billing", "/messages",
         "/messages?topic=orders&key=o-1", "/message?topic=orders&queue=0&offset=0",
         "/in-flight", "/in-flight?group=warehouse", "/dead-letters", "/timers",
         "/transactions", "/schedules", "/tiers"]  # fmt: skip
PHONE = ViewportSize(width=390, height=844)


@pytest.fixture(scope="module")
def program() -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser(PROGRAM) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with shop_store(tmp_path / "store") as found:
        yield found


@pytest.fixture
def served(store: Store) -> Iterator[Serving]:
    with serving(store, SystemClock()) as found:
        yield found


@pytest.fixture
def page(program: Browser, served: Serving) -> Iterator[Page]:
    """A page of the browser. All that it complains about fails the test."""
    context = program.new_context(base_url=served.url)
    found = context.new_page()
    complaints: list[str] = []
    found.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    found.on("pageerror", lambda e: complaints.append(str(e)))
    found.on("dialog", lambda d: complaints.append(d.message))
    try:
        yield found
    finally:
        context.close()
    assert complaints == []


def ask_for(page: Page, label: str, title: str) -> None:
    """Presses the button of a change, and sees the page ask."""
    page.get_by_role("button", name=label, exact=True).first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator("#ask-title")).to_contain_text(title)


def agree(page: Page) -> str:
    """Says yes; returns what the page tells then."""
    with page.expect_navigation():
        page.locator("#ask-yes").click()
    told = page.locator("#told")
    expect(told).not_to_be_empty()
    return told.inner_text()


def looks(page: Page) -> int:
    """How often the charts were drawn."""
    return int(page.locator(".charts").get_attribute("data-looks") or 0)


def has_looked(page: Page, before: int) -> bool:
    return looks(page) > before


def test_the_pages_lead_to_each_other_and_show_the_store(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#now-dead")).to_have_text("7")
    page.get_by_role("link", name="Topics", exact=True).click()
    expect(page.get_by_role("link", name="Topics", exact=True)).to_have_attribute(
        "aria-current", "page"
    )
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    page.locator("table a").first.click()
    expect(page.locator("pre.text")).to_contain_text('"customer"')
    page.get_by_role("link", name="Messages", exact=True).click()
    by_key = page.locator("form", has=page.get_by_role("heading", name="By key"))
    by_key.get_by_label("topic").fill("orders")
    by_key.get_by_label("key").fill("o-17")
    by_key.get_by_role("button").click()
    expect(page.locator("tbody tr")).to_have_count(3)


def test_dead_letters_are_given_back_after_the_page_asked(page: Page, store: Store) -> None:
    page.goto("/dead-letters")
    ask_for(page, "Give them back", "Give 7 dead letters back?")
    page.get_by_role("button", name="No", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    ask_for(page, "Give them back", "Give 7 dead letters back?")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert store.group_stats("billing", "orders")[0].dead_letters == 7
    ask_for(page, "Give them back", "Give 7 dead letters back?")
    assert agree(page) == "7 dead letters were given back to billing"
    assert store.group_stats("billing", "orders")[0].dead_letters == 0
    expect(page.get_by_text("No group has dead letters.")).to_be_visible()


def test_messages_in_flight_are_listed_and_lead_to_their_pages(page: Page, store: Store) -> None:
    page.goto("/groups")
    page.get_by_role("link", name="In flight", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("In flight")
    page.get_by_role("row").filter(has_text="warehouse").get_by_role("link", name="64").click()
    expect(page.locator("h1 small")).to_have_text("64")
    expect(page.locator("tbody tr")).to_have_count(64)
    first = store.in_flight("warehouse", "orders", limit=1).messages[0]
    row = page.locator("tbody tr").first
    expect(row).to_contain_text(first.message_id or "")
    row.get_by_role("link").click()
    expect(page.locator("pre.text")).to_contain_text('"customer"')


def test_a_reader_sees_its_topics_and_no_buttons(
    program: Browser, store: Store, tmp_path: Path
) -> None:
    path = private_file(
        tmp_path / "credentials.toml",
        f'[[clients]]\nname = "reader"\ntoken_sha256 = "{sha256_of("kvmq_r")}"\n'
        'consume = ["orders", "mails"]\ngroups = ["billing"]\n',
    )
    with serving(store, SystemClock(), credentials=path) as served:
        page = program.new_page(base_url=served.url)
        page.goto("/")
        page.get_by_label("Token").fill("kvmq_r")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        expect(page.locator("tbody tr")).to_contain_text(["%DLQ%billing", "mails", "orders"])
        expect(page.get_by_role("link", name="Overview")).to_have_count(0)
        for path_of in ("/dead-letters", "/timers", "/schedules", "/in-flight"):
            page.goto(path_of)
            expect(page.locator("table").first).to_be_visible()
            expect(page.locator("button[data-change]")).to_have_count(0)
        page.context.close()


def test_what_waits_is_cancelled_committed_and_rolled_back(page: Page, store: Store) -> None:
    before = store.timers().count
    page.goto("/timers")
    ask_for(page, "Cancel", "Cancel this message?")
    assert agree(page).endswith("will not be delivered")
    assert store.timers().count == before - 1
    page.goto("/transactions")
    ask_for(page, "Commit", "Commit this transaction?")
    assert agree(page).startswith("committed to payments")
    ask_for(page, "Roll back", "Roll this transaction back?")
    assert agree(page).endswith("was rolled back")
    assert store.transactions().count == 0
    page.goto("/schedules")
    ask_for(page, "Pause", "Pause nightly-report?")
    assert agree(page) == "schedule nightly-report is paused"
    ask_for(page, "Resume", "Resume nightly-report?")
    assert agree(page) == "schedule nightly-report goes on"
    ask_for(page, "Delete", "Delete nightly-report?")
    assert agree(page) == "schedule nightly-report was deleted"
    assert [s.name for s in store.schedules()] == ["stock"]


def test_a_change_that_is_refused_says_why_and_the_dialog_stays(
    program: Browser, served: Serving, store: Store
) -> None:
    page = program.new_page(base_url=served.url)
    page.goto("/schedules")
    ask_for(page, "Pause", "Pause nightly-report?")
    store.delete_schedule("nightly-report")
    page.locator("#ask-yes").click()
    expect(page.locator("#ask-error")).to_contain_text("nightly-report")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.context.close()


def test_hostile_bodies_are_shown_and_do_nothing(page: Page, store: Store) -> None:
    page.goto("/topic?topic=refunds")
    expect(page.locator("td.body").filter(has_text="onerror")).to_be_visible()
    page.get_by_role("row").filter(has_text="odd").get_by_role("link").click()
    expect(page.locator("pre.text")).to_contain_text("<script>window.hacked=1</script>")
    assert page.evaluate("window.hacked") is None
    page.goto("/messages?topic=refunds&key=r-2")
    page.locator("table a").first.click()
    expect(page.locator("pre.hex")).to_contain_text("000000f0  f0 f1")


def test_charts_draw_what_happens(page: Page, store: Store) -> None:
    page.goto("/")
    for _ in range(4):
        before = looks(page)
        store.put_batch([Message("orders", b"x")] * 100)
        until(partial(has_looked, page, before))
    expect(page.locator("figure svg")).to_have_count(4)
    drawn = page.locator("figure").first.locator("path.s0").get_attribute("d") or ""
    heights = {float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn)}
    assert len(heights) >= 2, drawn
    expect(page.locator("figure").first.locator(".legend")).to_contain_text("put")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_fits_a_phone(program: Browser, served: Serving, scheme: str) -> None:
    context = program.new_context(
        base_url=served.url, viewport=PHONE, has_touch=True, is_mobile=True,
        color_scheme="dark" if scheme == "dark" else "light",
    )  # fmt: skip
    page = context.new_page()
    for path in PATHS:
        page.goto(path)
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{path} is {wide} pixels wider than the screen"
        small = page.evaluate(
            "[...document.querySelectorAll('button, input')].filter(e => e.offsetParent && "
            "e.getBoundingClientRect().height < 40).map(e => e.outerHTML)"
        )
        assert small == [], path
    page.goto("/dead-letters")
    page.get_by_role("button", name="Give them back").tap()
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    context.close()


def test_a_browser_signs_in_and_out(program: Browser, store: Store, tmp_path: Path) -> None:
    path = private_file(
        tmp_path / "credentials.toml",
        f'[[clients]]\nname = "operator"\ntoken_sha256 = "{sha256_of("kvmq_x")}"\nadmin = ["*"]\n',
    )
    with serving(store, SystemClock(), credentials=path) as served:
        page = program.new_page(base_url=served.url)
        page.goto("/schedules")
        page.get_by_label("Token").fill("kvmq_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert").first).to_contain_text("none of this server's clients'")
        page.get_by_label("Token").fill("kvmq_x")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert "kvmq_x" not in page.url
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.goto("/topics")
        expect(page.get_by_label("Token")).to_be_visible()
        page.context.close()
