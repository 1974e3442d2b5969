"""Bodies that fit a schema, those that don't and why, and how a schema stays what it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kvstore.errors import ConfigError
from tests.tiering.spark.export.batches import frame, read, row
from tiering.errors import ExportBroken, SchemaContradicts, SchemaIllegal
from tiering.spark.export import Exporter, ExportForm
from tiering.spark.export.hadoop import Folders
from tiering.spark.export.schemas import Schemas, broken, misfit, parse, read_schemas

SCHEMA = "id BIGINT, note STRING, paid BOOLEAN, at TIMESTAMP, more STRUCT<n: INT, all: ARRAY<INT>>"
FIT = [
    b'{"id": 1, "note": "x", "paid": true, "at": "2026-11-01T10:00:00Z", "more": {"n": 2}}',
    b'{"other": 1}',
    b'{"id": null, "note": 5}',
    '{"note": "grüß"}'.encode(),
]
UNFIT = {
    b"": "empty",
    b"null": "not an object",
    b"[1]": "not an object",
    b"plain": "not JSON",
    b'{"id": 1} {"id": 2}': "not JSON",
    b"{'id': 1}": "not JSON",
    b'{"note": "\xff"}': "not UTF-8: invalid start byte at byte 10",
    b'{"id": "one"}': "^id: Expected `int`, got `str`$",
    b'{"id": 1.5}': "^id: Expected `int`, got `float`$",
    b'{"id": 9223372036854775808}': "^id: Expected `int`",
    b'{"paid": 1}': "^paid: Expected `bool`, got `int`$",
    b'{"at": "soon"}': "^at: Invalid RFC3339 encoded datetime$",
    b'{"at": "2026-11-01T10:00:00Z", "more": {"n": "x"}}': "^more.n: Expected `int`, got `str`$",
    b'{"more": {"n": 3000000000}}': "^more.n: Expected `int`",
    b'{"more": {"all": [1, 2, "x"]}}': r"^more.all\[2\]: Expected `int`, got `str`$",
    b'{"more": [1]}': "^more: Expected `object`, got `array`$",
    # A message at which a parser itself fails ends only its own way.
    b'{"more": ' + b"[" * 5000 + b"]" * 5000 + b"}": "too deep",
    b'{"id": 1e999999999}': "^id: Number out of range$",
    b'{"note": "\\ud800"}': "not JSON",
    b'{"note": ' + b"1" * 2000 + b"}": "does not fit",
}


def test_each_body_goes_one_way_and_those_set_aside_say_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    bodies = [*FIT, *UNFIT]
    rows = [row(n, body=body) for n, body in enumerate(bodies)] + [row(0, "plain", b"as it was")]
    exporter = Exporter(spark, str(tmp_path), ExportForm(schemas={"orders": SCHEMA}))
    exporter.export_batch(frame(spark, rows), 0)
    typed = [one for one in read(tmp_path, "topic=orders") if one["topic"] == "orders"]
    assert [one["offset"] for one in typed] == list(range(len(FIT)))
    assert "body" not in typed[0]
    value = typed[0]["value"]
    assert (value["id"], value["paid"], value["more"]) == (1, True, {"n": 2, "all": None})
    assert [one["value"]["note"] for one in typed] == ["x", None, "5", "grüß"]
    assert [one["body"] for one in read(tmp_path, "topic=plain")] == [b"as it was"]
    aside = {one["body"]: one for one in read(tmp_path / "_kvmq_rejected")}
    assert aside.keys() == UNFIT.keys()
    for body, why in UNFIT.items():
        assert re.search(why, aside[body]["reason"])
        assert aside[body]["message_id"] == f"orders-{bodies.index(body)}"
    counted = exporter.report.topics
    assert (counted["orders"].messages, counted["orders"].rejected) == (len(FIT), len(UNFIT))
    assert (counted["plain"].messages, counted["plain"].rejected) == (1, 0)


@pytest.mark.parametrize("number", range(len(UNFIT)))
@pytest.mark.usefixtures("spark")  # which reads the DDL
def test_the_reason_is_the_parsers_or_names_the_first_field(number: int) -> None:
    body, why = list(UNFIT.items())[number]
    assert re.search(why, broken(body) or misfit(body, parse("orders", SCHEMA)))


def test_a_body_that_is_an_object_is_not_broken() -> None:
    assert [broken(body) for body in FIT] == [None] * len(FIT)


def test_an_inferred_schema_is_pinned_and_later_bodies_are_held_against_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = [row(0, body=b'{"n": 1}'), row(1, body=b'{"s": "x"}'), row(2, body=b"plain")]
    exporter = Exporter(spark, str(tmp_path), ExportForm(infer=["orders", "none"], keep_body=True))
    exporter.export_batch(frame(spark, first), 0)
    again = Exporter(spark, str(tmp_path))
    again.export_batch(frame(spark, [row(3, body=b'{"n": "x"}'), row(4, body=b'{"n": 2}')]), 1)
    found = {one["offset"]: one for one in read(tmp_path)}
    assert {n: one["value"] for n, one in found.items()} == {
        0: {"n": 1, "s": None}, 1: {"n": None, "s": "x"}, 4: {"n": 2, "s": None},
    }  # fmt: skip
    assert found[0]["body"] == b'{"n": 1}'
    assert {one["offset"] for one in read(tmp_path / "_kvmq_rejected")} == {2, 3}
    with pytest.raises(SchemaContradicts, match=r"n string.*n bigint, s string"):
        Exporter(spark, str(tmp_path), ExportForm(schemas={"orders": "n STRING"}))
    Exporter(
        spark, str(tmp_path), ExportForm(schemas={"orders": "n BIGINT, s STRING"}, infer=["more"])
    )


def test_a_topic_without_objects_has_no_schema_to_infer(
    spark: SparkSession, tmp_path: Path
) -> None:
    schemas = Schemas(Folders(spark, str(tmp_path)), infer=["orders"])
    for bodies in ([b"plain", b"[1]", b"\xff"], [b"{}"], []):
        with pytest.raises(SchemaIllegal, match="leave the topic out"):
            schemas.infer(spark, "orders", bodies)
    assert schemas.known("orders") is None


@pytest.mark.parametrize(
    "body", [b'{"a": 1, "a": "x"}', b'{"id": 1, "Id": 2}', b'{"n": 1, "_kvmq_unfit": 2}'],
    ids=["twice", "case", "reserved"],
)  # fmt: skip
def test_a_schema_that_could_not_be_written_is_not_pinned(
    spark: SparkSession, tmp_path: Path, body: bytes
) -> None:
    schemas = Schemas(Folders(spark, str(tmp_path)), infer=["orders"])
    with pytest.raises(SchemaIllegal, match="give its schema"):
        schemas.infer(spark, "orders", [body])
    assert list(tmp_path.rglob("*.json")) == []


@pytest.mark.parametrize(
    "schema",
    ["", "no type", "INT", {"type": "struct"}, {"fields": 1}, "_kvmq_unfit INT", 5, "a TIME",
     "m MAP<INT, INT>", "v VARCHAR(3)", "a ARRAY<STRUCT<n: INTERVAL DAY>>", "s STRUCT<>",
     "id INT, ID INT"],
    ids=["empty", "no DDL", "no struct", "no fields", "no list", "reserved", "number", "no JSON",
         "keys", "length", "nested", "nothing", "case"],
)  # fmt: skip
def test_a_schema_that_is_none_is_refused(spark: SparkSession, tmp_path: Path, schema: Any) -> None:
    with pytest.raises(SchemaIllegal, match="topic orders"):
        Schemas(Folders(spark, str(tmp_path)), {"orders": schema})
    assert list(tmp_path.rglob("*.json")) == []


def test_schemas_are_read_as_ddl_or_as_sparks_json(spark: SparkSession, tmp_path: Path) -> None:
    as_json = StructType.fromDDL("id BIGINT").json()
    given = read_schemas(f'{{"a": "id BIGINT", "b/%c": {as_json}}}', "schemas.json")
    schemas = Schemas(Folders(spark, str(tmp_path)), given)
    assert schemas.known("a") == schemas.known("b/%c")
    assert Schemas(Folders(spark, str(tmp_path))).known("b/%c") == schemas.known("a")
    for text in ("{", "[]", '{"a": 1}'):
        with pytest.raises(SchemaIllegal, match=r"schemas\.json"):
            read_schemas(text, "schemas.json")
    with pytest.raises(ConfigError, match="say one"):
        Schemas(Folders(spark, str(tmp_path)), {"a": "id BIGINT"}, ["a"])


def test_a_pin_that_can_not_be_read_is_told(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(spark, str(tmp_path))
    folders.write("_kvmq/schemas/a.json", b"{")
    with pytest.raises(ExportBroken, match="no pinned schema"):
        Schemas(folders)
