"""The views, and the report of them, by way of Spark: they come to what a consumer counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import Row, SparkSession

import kvstore
from kvstore import StoredMessage
from kvstore.cli.spark.report import report, sql
from tests.tiering.spark.report.conftest import Past
from tiering import PolicyIllegal, Prices
from tiering.policy.policy import TierPrice
from tiering.spark.report import VIEWS, create_views
from tiering.spark.report.figures import Figures, Sums
from tiering.spark.report.gather import gather

DOCS = Path(__file__).parents[4] / "docs" / "spark.md"
PRICES = Prices(hot=TierPrice(8e6), warm=TierPrice(4e6), cold=TierPrice(2e6), currency="EUR")


def rows(spark: SparkSession, query: str) -> list[Row]:
    return spark.sql(query).collect()


def documented() -> dict[str, list[str]]:
    """The views' columns, as docs/spark.md lists them."""
    text = DOCS.read_text().partition("| view | columns |")[2].partition("\n\n")[0]
    cells = [line.split("|") for line in text.splitlines()[2:]]
    found = {cell[1].strip(" `"): re.findall(r"`(\w+)`", cell[2]) for cell in cells}
    del found["messages"]
    return found


def day_of(message: StoredMessage) -> date:
    return datetime.fromtimestamp(message.stored_at / 1000, UTC).date()


def test_every_view_comes_to_what_a_consumer_counts(spark: SparkSession, past: Past) -> None:
    create_views(spark, str(past.folder), prices=PRICES, now_ms=past.now_ms)
    assert {name: spark.table(name).columns for name in VIEWS if name != "messages"} == documented()
    volume = rows(spark, "SELECT * FROM volume")
    days = Counter((m.topic, day_of(m)) for m in past.messages)
    counted: Counter[tuple[str, date]] = Counter()
    for row in volume:
        counted[row.topic, row.day] += row.messages
        price = getattr(PRICES, row.tier).gb_month
        assert row.cost_per_month == pytest.approx(row.stored_bytes / 1e9 * price, rel=0.01)
    assert counted == days

    keys = {(row.topic, row.key): row.messages for row in rows(spark, "SELECT * FROM keys")}
    assert keys == Counter((m.topic, key) for m in past.messages for key in set(m.keys))

    dead = rows(spark, "SELECT * FROM dead_letters")
    letters = [m for m in past.messages if m.topic.startswith("%DLQ%")]
    assert {(r.topic, r.group, r.day, r.attempts, r.kept_in): r.messages for r in dead} == Counter(
        (m.properties["DLQ_ORIGIN_TOPIC"], m.properties["DLQ_ORIGIN_GROUP"], day_of(m), 2, m.topic)
        for m in letters
    )

    delays = rows(spark, "SELECT * FROM delays")
    assert {(row.topic, row.day): row.messages for row in delays} == days
    for row in delays:
        mine = sorted(
            m.stored_at - m.born_at
            for m in past.messages
            if (m.topic, day_of(m)) == (row.topic, row.day)
        )
        assert row.max == mine[-1]
        assert row.p50 == mine[-(-len(mine) // 2) - 1]
        assert mine[0] <= row.p50 <= row.p90 <= row.p99 <= row.max


def test_the_verb_writes_a_page_and_its_figures_are_those_of_the_views(
    spark: SparkSession, past: Past, tmp_path: Path
) -> None:
    target = tmp_path / "page.html"
    words = [str(past.folder), "-o", str(target), "--json", "--as-of", "2026-09-08T09:00",
             "--price-hot", "8e6", "--price-warm", "4e6", "--price-cold", "2e6",
             "--currency", "EUR", "--top", "3"]  # fmt: skip
    done = CliRunner().invoke(report, words, catch_exceptions=False)
    figures = msgspec.json.decode(done.stdout, type=Figures)
    page = target.read_text()
    assert f"<td>{figures.total.sums.messages:,}</td>" in page
    assert f"<td>{figures.keys[0].messages:,}</td>" in page
    assert "EUR a month" in page
    assert (figures.now_ms, figures.currency) == (past.now_ms, "EUR")
    assert figures.prices == {"hot": 8e6, "warm": 4e6, "cold": 2e6}
    assert figures.archives["cold"] == len(list(past.cold.rglob("*.kvarc")))
    assert figures.total.sums.messages == len(past.messages)
    assert figures.topics_count == len({m.topic for m in past.messages})
    assert [topic.topic is None for topic in figures.topics] == [False, False, False, True]
    costs = [topic.sums.cost_per_month for topic in figures.topics[:3]]
    assert costs == sorted(costs, reverse=True)
    dead = sum(m.topic.startswith("%DLQ%") for m in past.messages)
    assert figures.dead_letters_count == dead > 0
    assert sum(one.messages for one in figures.dead_letters) == dead
    assert sum(n for one in figures.dead_letters for _, n in one.days) == dead
    keys = Counter((m.topic, k) for m in past.messages if m.topic[0] != "%" for k in m.keys)
    assert figures.keys_count == len(keys)
    assert [one.messages for one in figures.keys] == [n for _, n in keys.most_common(3)]
    named = [topic.topic for topic in figures.topics if topic.topic is not None]
    assert {one.topic for one in figures.delays} == {None, *named}
    everything = next(one for one in figures.delays if one.topic is None)
    mine = [m.stored_at - m.born_at for m in past.messages if m.topic in named]
    assert (everything.messages, everything.max) == (len(mine), max(mine))
    create_views(spark, str(past.folder), prices=PRICES, now_ms=past.now_ms, only=["retention"])
    asked = {(r.topic, r.kept_days): r for r in rows(spark, "SELECT * FROM retention")}
    assert asked
    for one in figures.retention:
        if one.topic is not None:
            row = asked[one.topic, one.kept_days]
            assert one.sums.messages == row.messages
            assert one.sums.cost_per_month == pytest.approx(row.cost_per_month)


def test_archives_alone_have_views_and_an_empty_store_has_a_report_of_nothing(
    spark: SparkSession, past: Past, tmp_path: Path
) -> None:
    create_views(spark, str(past.cold), only=["volume", "archives"])
    found = rows(spark, "SELECT tier, stored_bytes FROM volume")
    # A folder of archives is taken for a disk's.
    assert {row.tier for row in found} == {"warm"}
    archives = list(past.cold.rglob("*.kvarc"))
    stored = sum(path.stat().st_size for path in archives)
    assert sum(row.stored_bytes for row in found) == pytest.approx(stored, abs=len(found))
    assert len(rows(spark, "SELECT key FROM archives")) == len(archives)
    kvstore.open(tmp_path / "empty").close()
    nothing = gather(spark, str(tmp_path / "empty"))
    assert (nothing.total.sums, nothing.days, nothing.delays, nothing.keys) == (Sums(), [], [], [])
    assert spark.read.format("kvmq").load(str(tmp_path / "empty")).collect() == []


def test_a_page_that_could_not_be_written_is_refused_before_anything_is_read() -> None:
    done = CliRunner().invoke(report, ["data", "-o", "/no/such/folder/page.html"])
    assert done.exit_code == 2
    assert "no folder" in done.output


def test_a_question_may_be_about_any_view(spark: SparkSession, past: Past) -> None:
    query = "SELECT sum(messages) AS n FROM Volume"
    done = CliRunner().invoke(sql, [str(past.folder), query, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout) == {"n": len(past.messages)}


def test_prices_that_are_none_are_refused(spark: SparkSession) -> None:
    with pytest.raises(PolicyIllegal, match=r"prices\.hot"):
        create_views(spark, "data", prices=Prices(hot=TierPrice(-1.0)))
