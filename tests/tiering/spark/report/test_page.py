"""The page of figures made by hand, and what follows from the volume of days; none needs Spark."""

from __future__ import annotations

import importlib
import re
import sys
from datetime import date, timedelta
from functools import cache
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import msgspec
import pytest
from click.testing import CliRunner

import tiering.spark.report
from kvstore.cli.spark.report import report
from tiering.errors import ExtraMissing
from tiering.spark.report import texts
from tiering.spark.report.figures import (
    DayVolume,
    DeadLetters,
    Delays,
    Figures,
    KeyCount,
    Sums,
    TimerCounts,
    TopicVolume,
    TransactionCounts,
    age_of,
    curve_of,
    freed_of,
    topics_of,
    total_of,
)
from tiering.spark.report.page import (
    Series,
    binned,
    byte_ticks,
    columns,
    even_ticks,
    marks_to,
    page,
    panel,
    time_ticks,
)

TODAY = date(2026, 11, 21)
NOW_MS = (TODAY.toordinal() - date(1970, 1, 1).toordinal()) * 86_400_000 + 43_200_000


def ago(days: int) -> date:
    return TODAY - timedelta(days)


def volume(topic: str | None, tier: str, days_ago: int, size: int = 1000) -> DayVolume:
    return DayVolume(topic, tier, ago(days_ago), Sums(size // 10, size * 5, size, size / 1e6))


def nothing(**changed: Any) -> Figures:
    """The figures of an empty store, with changes."""
    empty: dict[str, Any] = {
        "path": "data", "now_ms": NOW_MS, "currency": "USD",
        "prices": {"hot": 0.08, "warm": 0.045, "cold": 0.023}, "archives": {}, "top": 2,
        "topics_count": 0, "total": TopicVolume(None, Sums(), {}), "topics": [], "days": [],
        "dead_letters_count": 0, "dead_letters": [], "delays": [], "timers": [],
        "transactions": [],
        "keys_count": 0, "keys": [], "retention": [],
    }  # fmt: skip
    return Figures(**{**empty, **changed})


def something(name: str = "orders", days: int = 40) -> Figures:
    """Two topics by name and others, some of everything; `name` is wherever a name can be."""
    rows = [volume(name, "cold" if n > 9 else "hot", n, 1000 + n) for n in range(days)]
    rows += [volume("events", "warm", n, 500) for n in range(3, 9)]
    rows += [volume(None, "hot", 1, 100)]
    topics = topics_of(rows, [name, "events"])
    return nothing(
        path=f"/{name}",
        archives={"warm": 2, "cold": 7},
        topics_count=9,
        total=total_of(topics),
        topics=topics,
        days=rows,
        dead_letters_count=12,
        dead_letters=[DeadLetters(name, name, 9, 3, [(ago(5), 4), (ago(1), 5)]),
                      DeadLetters(None, None, 1, None, [(ago(2), 1)])],
        delays=[Delays(None, None, 90, 2, 30, 4000, 90_000),
                Delays(name, None, 80, 2, 30, 4000, 90_000),
                Delays("events", None, 10, -5, 3, 9, 10),
                *(Delays(name, ago(n), 8, 2, 30, 4000 + n, 90_000) for n in range(10)),
                Delays("events", ago(3), 10, -5, 3, 9, 10)],
        timers=[TimerCounts(name, 3, 1, 12_345, 2, 4, 9, 80, 61_000),
                TimerCounts("events", 5, 0, 0, 0, None, None, None, None)],
        transactions=[TransactionCounts(name, name, 3, 1, 12_345, 2, 4, 9, 80, 90, 95, 61_000),
                      TransactionCounts("events", None, 0, 0, 0, 5, 0, 0, None, None, None, None)],
        keys_count=77,
        keys=[KeyCount(name, name, 60, 0.6), KeyCount("events", "k2", 3, 0.001)],
        retention=list(freed_of(rows, topics, NOW_MS, (1, 7, 30, 90))),
    )  # fmt: skip


ROWS = [
    volume("a", "cold", 100, 4000),
    volume("a", "warm", 8, 2000),
    volume("b", "hot", 0, 1000),
    volume(None, "warm", 8, 500),
]


def test_topics_are_in_the_order_that_is_asked_for_with_the_others_last() -> None:
    topics = topics_of(ROWS, ["b", "a", "none"])
    assert [topic.topic for topic in topics] == ["b", "a", None]
    assert list(topics[1].tiers) == ["warm", "cold"]
    assert topics[1].sums == Sums(600, 30_000, 6000, 0.006)


def test_all_topics_as_one_are_the_sum_of_each() -> None:
    total = total_of(topics_of(ROWS, ["a", "b"]))
    assert total.sums.stored_bytes == 7500
    assert {tier: sums.stored_bytes for tier, sums in total.tiers.items()} == {
        "hot": 1000, "warm": 2500, "cold": 4000,
    }  # fmt: skip
    assert list(total.tiers) == ["hot", "warm", "cold"]


def test_a_day_is_as_old_as_its_end() -> None:
    assert age_of(ago(0), NOW_MS) == -0.5
    assert age_of(ago(1), NOW_MS) == 0.5
    assert age_of(date(1970, 1, 1), 86_400_000) == 0.0


def test_what_would_go_is_what_is_over_by_then() -> None:
    topics = topics_of(ROWS, ["a", "b"])
    freed = {
        (f.topic, f.kept_days): f.sums.stored_bytes
        for f in freed_of(ROWS, topics, NOW_MS, (1, 7, 30, 365))
    }
    assert freed == {
        ("a", 1): 6000, ("a", 7): 6000, ("a", 30): 4000, (None, 1): 500, (None, 7): 500,
    }  # fmt: skip


def test_a_day_goes_in_the_moment_it_is_old_enough_and_not_before() -> None:
    row = [volume("a", "hot", 8)]
    topics = topics_of(row, ["a"])
    midnight = NOW_MS - 43_200_000
    assert list(freed_of(row, topics, midnight - 1, (7,))) == []
    assert len(list(freed_of(row, topics, midnight, (7,)))) == 1


def test_the_curve_rises_from_nothing_to_what_is_paid_now() -> None:
    curve = curve_of(ROWS, NOW_MS)
    assert curve[0] == (0.0, 0.0)
    assert [x for x, _ in curve] == sorted(x for x, _ in curve)
    assert [y for _, y in curve] == sorted(y for _, y in curve)
    assert curve[-1][0] == 100.5
    assert curve[-1][1] == pytest.approx(0.0075)


SECTIONS = [
    "Volume and cost",
    "Dead letters",
    "Delay from born to stored",
    "Delayed messages",
    "Transactions",
    "Most frequent keys",
    "What keeping less would save",
]
VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "<script>alert('x')</script>&amp;\"><img src=http://e.org/a>"


class Read(HTMLParser):
    """A page as it is parsed: elements that are closed as they were opened, and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[str]:
        return [text for of, text in self.texts if of == tag]


FULL = something()


@cache
def full_page() -> str:
    return page(FULL)


@pytest.mark.parametrize("figures", [FULL, nothing(), something(HOSTILE)],
                         ids=["full", "empty", "hostile"])  # fmt: skip
def test_a_page_is_well_formed_and_fetches_nothing(figures: Figures) -> None:
    text = page(figures)
    assert text.startswith("<!doctype html>")
    read = Read(text)
    assert not {"script", "link", "img", "iframe", "object", "use", "image"} & set(read.tags)
    names = {name for name, _ in read.attributes}
    assert not {"src", "href", "srcset", "style", "xlink:href"} & names
    assert not any(name.startswith("on") for name in names)
    assert "url(" not in text
    assert "@import" not in text
    assert read.of("h2") == SECTIONS


def test_the_same_figures_make_the_same_page_whatever_matplotlib_is_set_to() -> None:
    before = full_page()
    with mpl.rc_context({"font.size": 30, "axes.grid": True, "svg.fonttype": "path"}):
        assert page(FULL) == before
        assert mpl.rcParams["font.size"] == 30


def test_every_colour_is_a_variable_that_has_a_value_by_day_and_by_night() -> None:
    style, _, body = full_page().partition("</style>")
    used = set(re.findall(r"var\((--\w+)\)", style + body))
    day, _, night = style.partition("prefers-color-scheme:dark")
    night = night.partition("}}")[0]
    assert used
    for variable in used:
        assert f"{variable}:#" in day, variable
        assert f"{variable}:#" in night, variable
    assert not re.search(r'"#[0-9a-f]{3,6}"', body)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_what_a_page_takes_the_error_names_the_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tiering.spark.report.page")
    monkeypatch.delattr(tiering.spark.report, "page")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExtraMissing, match=rf"{package}.*kvmq\[plot\]") as caught:
        importlib.import_module("tiering.spark.report.page")
    assert caught.value.extra == "plot"
    words = ["data", "-o", "page.html"]
    assert CliRunner().invoke(report, words).exception.__class__ is ExtraMissing


def test_no_number_on_a_page_is_none() -> None:
    for text in (full_page(), page(nothing())):
        assert not re.search(r"\b(nan|inf|None)\b", text)


@pytest.mark.parametrize("name", [HOSTILE, "told:$x_1$ #000004 {{ 7 * 7 }} </style>"])
def test_names_out_of_messages_are_text(name: str) -> None:
    read = Read(page(something(name)))
    cells = read.of("td")
    assert cells.count(name) >= 6
    assert name in read.of("b")
    assert name in read.of("li")
    assert name in read.of("h1")[0]
    assert any(f" · {name}: " in said for said in read.of("title"))
    assert ("aria-label", f"{name}: delay by day") in read.attributes


def test_control_characters_and_endless_names_are_shown_as_something_else() -> None:
    assert texts.name("a\x00b\u202ec\n") == "a\\x00b\\u202ec\\n"
    assert len(texts.name("k" * 10_000)) < 80
    assert "\x1b" not in page(something("\x1b[31mred"))


def test_what_there_is_nothing_of_is_said() -> None:
    empty = re.findall(r'<p class="empty">([^<]+)</p>', page(nothing()))
    assert len(empty) == len(SECTIONS)
    assert "There are no messages." in page(nothing())
    young = topics_of(rows := [volume("a", "hot", 0)], ["a"])
    figures = nothing(days=rows, topics=young, total=total_of(young), topics_count=1)
    assert "less than a day old" in page(figures)


def test_a_page_has_the_figures() -> None:
    read = Read(full_page())
    cells, total = read.of("td"), FULL.total.sums
    for text in ("orders", "events", "7 other topics", f"{total.messages:,}", "9", "not said"):
        assert text in cells, text
    assert "4.0 s" in cells or "4 s" in cells
    assert f"{texts.MINUS}5 ms" in cells
    assert read.of("dd")[-2:] == ["12", texts.share(12, total.messages) + " of the messages"]
    assert "others" in cells  # two dead letters that are not among the largest


def test_columns_and_tables_are_of_the_same_rows() -> None:
    text = full_page()
    told = re.findall(r"<title>(\d+ \w+) · (\w+): ([^<]+)</title>", text)
    hot = [size for _, tier, size in told if tier == "hot"]
    assert hot[0] == texts.tick(1009)
    assert len({day for day, _, _ in told}) == 40


@pytest.mark.parametrize(
    ("days", "unit", "count"), [(1, "day", 1), (124, "day", 124), (125, "week", 19),
                                (900, "month", 30)],
)  # fmt: skip
def test_many_days_are_weeks_and_very_many_months(days: int, unit: str, count: int) -> None:
    first = date(2024, 1, 3)
    last = date.fromordinal(first.toordinal() + days - 1)
    starts, found = binned([last, first])
    assert (found, len(starts)) == (unit, count)
    assert starts[0] <= first
    assert starts[-1] <= last
    if unit == "week":
        assert {start.weekday() for start in starts} == {0}


@pytest.mark.parametrize("most", [0.0, 3e-9, 0.7, 1.0, 99.0, 1023.0, 1024.0, 5e6, 7.7e13])
def test_an_axis_begins_at_nothing_and_holds_the_largest(most: float) -> None:
    for ticks in (even_ticks(most), byte_ticks(most)):
        assert ticks[0] == 0
        assert 2 <= len(ticks) <= 8
        assert ticks[-1] >= most * 0.999


@pytest.mark.parametrize("most", [1500.0, 5e6, 7.7e13])
def test_an_axis_of_bytes_is_round_in_their_unit(most: float) -> None:
    assert all(re.fullmatch(r"\d+ \w+", texts.tick(tick)) for tick in byte_ticks(most)[::2])


@pytest.mark.parametrize("span", [(0, 0), (-5, 3), (1, 5e12), (2500, 2600)])
def test_an_axis_of_times_holds_all_of_them(span: tuple[float, float]) -> None:
    ticks = time_ticks(*span)
    half = Series("half", "p50", span)
    plot = panel("", [0, 1], str, [half], ticks, texts.delay, is_log=True)
    drawn = ElementTree.fromstring(plot)
    # Below it are two marks.
    labels = [float(one.attrib["y"]) for one in drawn.iter("text")][:-2]
    assert 2 <= len(labels) <= 6
    [path] = [one for one in drawn.iter("path") if one.get("stroke") == "var(--p50)"]
    points = re.findall(r"[ML] [\d.]+ ([\d.]+)", path.attrib["d"])
    assert len(points) == 2
    assert all(12 <= float(y) <= 132 for y in points)


def test_columns_are_as_high_as_what_they_say_and_stand_on_each_other() -> None:
    series = [Series("a", "c0", [10, 0, 40]), Series("b", "c1", [30, 20, 0])]
    drawn = ElementTree.fromstring(columns("", ["x", "y", "z"], series, [0, 20, 40], str))
    found = {}
    for one in drawn.iter("g"):
        if (told := one.findtext("title")) is not None:
            ys = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", one[1].attrib["d"])]
            # 12 pixels are free above, and 26 below.
            found[told] = tuple(round((224 - y) / 212 * 40, 1) for y in (max(ys), min(ys)))
            assert one[1].attrib["fill"] == ("var(--c0)" if " a:" in told else "var(--c1)")
    assert found == {
        "x · a: 10": (0, 10), "x · b: 30": (10, 40), "y · b: 20": (0, 20), "z · a: 40": (0, 40),
    }  # fmt: skip


def test_marks_below_a_panel_are_few_whatever_the_span() -> None:
    for span in (0, 1, 3, 4, 30, 400, 4000):
        found = marks_to(span)
        assert 1 <= len(found) <= 4
        assert found[0] == 0


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (texts.short(1_234_567), "1.23 M"), (texts.short(0), "0"), (texts.short(999), "999"),
        (texts.size(0), "0 B"), (texts.size(1_234_567), "1.2 MiB"),
        (texts.tick(1 << 19), "512 KiB"),
        (texts.share(1, 0), "–"), (texts.share(1, 200), "0.5 %"), (texts.share(1, 3), "33 %"),
        (texts.money(0.000123, 6), "0.000123"), (texts.money(1234.5, 2), "1,234.50"),
        (texts.amount(2.5e-10), "2.5\u2009·\u200910⁻¹⁰"),
        (texts.money(4e-9, texts.decimals([4e-9])), "<\u20090.000001"),
        (texts.money(0.0001, 2), "<\u20090.01"), (texts.amount(5e-05), "0.00005"),
        (texts.delay(90_000), "1.5 min"), (texts.delay(-5), f"{texts.MINUS}5 ms"),
        (texts.delay(0), "0 ms"),
        (texts.plural(1, "topic"), "1 topic"), (texts.plural(2000, "key"), "2,000 keys"),
        (texts.instant(NOW_MS), "21 Nov 2026, 12:00 UTC"),
        # The decimals of a column are those of its largest amount.
        (texts.decimals([0.00722, 0.0001]), 5), (texts.decimals([12.0, 0.001]), 2),
        (texts.decimals([]), 2), (texts.decimals([1e-30]), 6),
    ],
)  # fmt: skip
def test_numbers_are_said_as_people_read_them(said: object, text: object) -> None:
    assert said == text


def test_years_of_everything_stay_a_page_of_reasonable_size() -> None:
    long = something(days=3000)
    days = [(ago(n), 1) for n in range(3000, 0, -1)]
    dead = [DeadLetters("orders", "billing", 3000, 2, days)]
    delays = [
        Delays("orders", None, 9, 1, 2, 3, 4),
        *(Delays("orders", ago(n), 9, 1, 2, 3, 4) for n in range(3000)),
    ]
    text = page(msgspec.structs.replace(long, dead_letters=dead, delays=delays))
    Read(text)
    assert text.count("<rect") + text.count("<path") < 1000
    assert len(text) < 300_000
    assert "Bytes stored now, by month and tier" in text


def test_delayed_messages_have_a_row_for_each_topic() -> None:
    text = page(something("later"))
    row = text.partition("<h2>Delayed messages</h2>")[2].partition("</section>")[0]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    assert cells[:5] == ["later", "3", "1", "12,345", "2"]
    assert cells[9:14] == ["events", "5", "0", "0", "0"]
    assert cells[14:] == ["–"] * 4
    assert "No message was delayed." in page(nothing())
