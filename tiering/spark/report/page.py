"""Page: a report's figures as one file of HTML that needs nothing else.

The idea: five sections, each a sentence on what is shown, plots, and the table that has the numbers
in them; where there is nothing to show, a section says so. No scripts, nothing is fetched, so the
page can be mailed, printed and kept.

Invariants: every section is there, whatever there is; texts go through `markup`, which escapes.
"""

from __future__ import annotations

from typing import Final

from tiering.spark.report import texts
from tiering.spark.report.delaypage import delays
from tiering.spark.report.figures import TIERS, Figures
from tiering.spark.report.markup import Head, Html, empty, section, table, tag
from tiering.spark.report.retentionpage import retention
from tiering.spark.report.style import sheet
from tiering.spark.report.svg import bar, strip
from tiering.spark.report.volumepage import volume

_STRIP_MAX: Final = 170
"""Columns of a strip; of more days several share one."""


def page(figures: Figures) -> str:
    """The page."""
    title = f"Report on {texts.name(figures.path)}"
    body = tag(
        "main",
        tag("h1", title),
        tag("p", f"As of {texts.instant(figures.now_ms)}. {_span(figures)}", kind="lead"),
        _headlines(figures),
        volume(figures),
        _dead_letters(figures),
        delays(figures),
        _keys(figures),
        retention(figures),
        tag("footer", tag("p", _prices(figures), kind="note")),
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"{tag('title', title)}\n<style>\n{sheet()}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def _span(figures: Figures) -> str:
    if not figures.days:
        return "There are no messages."
    days = [one.day for one in figures.days]
    first, last = (texts.day(one, with_year=True) for one in (min(days), max(days)))
    when = f"on {first}" if first == last else f"from {first} to {last}"
    return f"What is there was stored {when}; days are UTC."


def _prices(figures: Figures) -> str:
    each = ", ".join(f"{figures.prices[tier]:g} {tier}" for tier in TIERS)
    return (
        f"Costs are of what is stored now, for a month of 30 days, at {figures.currency} {each} "
        "for a GB (10⁹ bytes). Requests and transfer are not in them. Bytes stored are those of "
        "records in the log, and of archives with their indexes; what a segment's file takes "
        "beyond its records is not counted."
    )


# --- what there is --------------------------------------------------------------------------------


def _headlines(figures: Figures) -> Html:
    total = figures.total.sums
    places = texts.decimals([total.cost_per_month])
    archives = sum(figures.archives.values())
    tiers = ", ".join(f"{texts.count(n)} {tier}" for tier, n in figures.archives.items())
    share = texts.share(total.stored_bytes, total.raw_bytes)
    dead = texts.share(figures.dead_letters_count, total.messages)
    each = (
        (
            "Messages",
            texts.short(total.messages),
            f"in {texts.plural(figures.topics_count, 'topic')}",
        ),
        ("Records", texts.size(total.raw_bytes), "as they were put"),
        (
            "Stored",
            texts.size(total.stored_bytes),
            f"{share} of the records" if total.raw_bytes else "",
        ),
        ("Cost", texts.money(total.cost_per_month, places), f"{figures.currency} a month"),
        (
            "Archives",
            texts.count(archives),
            tiers or ("everything is in the log" if total.messages else ""),
        ),
        (
            "Dead letters",
            texts.short(figures.dead_letters_count),
            f"{dead} of the messages" if total.messages else "",
        ),
    )
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value), tag("dd", more))
          for name, value, more in each),
        kind="head",
    )  # fmt: skip


# --- what went wrong, what is asked for -----------------------------------------------------------


def _dead_letters(figures: Figures) -> Html:
    title = "Dead letters"
    lead = (
        "What groups gave up on, as it is in their dead-letter topics; those that were redriven "
        "are among them."
    )
    if not figures.dead_letters:
        return section(title, lead, empty("There are none: no group gave up on a message."))
    days = [day for one in figures.dead_letters for day, _ in one.days]
    first, span = min(days), (max(days) - min(days)).days + 1
    wide = -(-span // _STRIP_MAX)
    rows = []
    for one in figures.dead_letters:
        values = [0] * -(-span // wide)
        for day, count in one.days:
            values[(day - first).days // wide] += count
        last = max(day for day, _ in one.days)
        rows.append([
            texts.name(one.topic) if one.topic is not None else "not said",
            texts.name(one.group) if one.group is not None else "not said",
            texts.count(one.messages),
            "–" if one.attempts is None else texts.count(one.attempts),
            texts.day(last, with_year=True),
            Html(strip(values, "dead", f"at most {max(values)} in {texts.plural(wide, 'day')}")),
        ])  # fmt: skip
    is_long = first.year != max(days).year
    ends = (texts.day(day, with_year=is_long) for day in (first, max(days)))
    by_day = f"when, {' to '.join(ends)}"
    heads = [
        Head("Topic", "text"), Head("Group", "text"), Head("Dead letters"),
        Head("most attempts"), Head("last"), Head(by_day, "plot"),
    ]  # fmt: skip
    left = figures.dead_letters_count - sum(one.messages for one in figures.dead_letters)
    rest = ["others", "", texts.count(left), "", "", ""] if left else None
    return section(title, lead, table(heads, rows, rest=rest))


def _keys(figures: Figures) -> Html:
    title = "Most frequent keys"
    lead = f"Of {texts.plural(figures.keys_count, 'different key')}, dead letters left out."
    if not figures.keys:
        return section(
            title, "Keys by how many messages have them.", empty("No message has a key.")
        )
    most = figures.keys[0].messages
    rows = [
        [texts.name(one.key), texts.name(one.topic), texts.count(one.messages),
         texts.share(one.share, 1.0),
         Html(bar([("cold", one.messages / most)], texts.count(one.messages)))]
        for one in figures.keys
    ]  # fmt: skip
    heads = [
        Head("Key", "text"), Head("Topic", "text"), Head("Messages"),
        Head("of the topic’s"), Head("", "plot"),
    ]  # fmt: skip
    return section(title, lead, table(heads, rows))
