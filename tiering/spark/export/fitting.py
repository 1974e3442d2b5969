"""Fits bodies into columns of their topic's schema; rows that don't fit are set aside.

The idea: Spark parses the JSON, in the JVM. A stricter parser checks whether a body is JSON to its
last byte, as Spark's stops where an object ends. Only for a body that does not fit the reason is
worked out, by walking it beside the schema.

Invariants: each row goes one way, whole; every row that is set aside has a reason. A field that a
body lacks is null; one that the schema lacks is not exported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tiering.spark.export.schemas import UNFIT

VALUE: Final = "value"
"""The column that a typed topic has instead of `body`: a struct of its schema's fields."""
REASON: Final = "reason"
_BROKEN: Final = "_kvmq_broken"
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_JUDGED: Final = (BooleanType, IntegralType, FloatType, DoubleType)
"""Simple types whose values are told by looking at the JSON."""
_SHOWN: Final = 60


class FittedRows(NamedTuple):
    """Rows whose body fits, with the column `value`; and those that don't, with `reason`."""

    fit: DataFrame
    unfit: DataFrame


def fitted(rows: DataFrame, schema: StructType, *, keep_body: bool = False) -> FittedRows:
    """Sorts a topic's rows by whether their body fits. `keep_body`: fitting rows keep it."""
    asked = StructType([*schema.fields, StructField(UNFIT, StringType())])
    text = fn.col("body").cast("string")
    told = {"columnNameOfCorruptRecord": UNFIT, "mode": "PERMISSIVE"}
    parsed = rows.withColumn(_BROKEN, _broken()(fn.col("body"))).withColumn(
        VALUE, fn.from_json(text, asked, told)
    )
    fits = (
        fn.col(_BROKEN).isNull() & fn.col(VALUE).isNotNull() & fn.col(f"{VALUE}.{UNFIT}").isNull()
    )
    fit = parsed.where(fits).drop(_BROKEN).withColumn(VALUE, fn.col(VALUE).dropFields(UNFIT))
    if not keep_body:
        fit = fit.drop("body")
    unfit = (
        parsed.where(~fits)
        .withColumn(REASON, _reasons(schema)(fn.col("body")))
        .drop(_BROKEN, VALUE)
    )
    return FittedRows(fit, unfit)


def _broken() -> Any:
    """A function of Spark: the reason why a body is no JSON object; null if it is one."""

    def judge(bodies: pa.Array) -> pa.Array:
        return pa.array([broken(body) for body in bodies.to_pylist()], pa.string())

    return _function(judge)


def _reasons(schema: StructType) -> Any:
    """A function of Spark: the reason why a body that does not fit does not."""

    def judge(bodies: pa.Array) -> pa.Array:
        said = [broken(body) or misfit(body, schema) for body in bodies.to_pylist()]
        return pa.array(said, pa.string())

    return _function(judge)


def _function(judge: Any) -> Any:
    # Spark tells the kind of a function by its types, which are texts in this module.
    judge.__annotations__ = {"bodies": pa.Array, "return": pa.Array}
    made: Any = arrow_udf
    return made(judge, StringType())


def broken(body: bytes | None) -> str | None:
    """The reason why a body is no JSON object; None if it is one."""
    if not body:
        return "empty"
    try:
        body.decode()
    except UnicodeDecodeError as e:
        return f"not UTF-8: {e.reason} at byte {e.start}"
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return "JSON, but not an object"
    except msgspec.DecodeError as e:
        return f"not JSON: {e}"
    except RecursionError:
        return "JSON that is nested too deep"
    return None


def misfit(body: bytes, schema: StructType) -> str:
    """The reason why an object (see `broken`) does not fit: its first field that doesn't."""
    try:
        found = list(_misfits_of(msgspec.json.decode(body), schema, ""))
    except (msgspec.DecodeError, RecursionError):
        # For example a number that no Python float can hold; Spark would not take it either.
        found = []
    if found:
        # The first field that surely does not fit, or else the first that may not.
        return min(found, key=lambda one: not one.sure).text
    return f"does not fit {schema.simpleString()}"


class _Misfit(NamedTuple):
    """A field that does not fit; not `sure` where only Spark can tell, as of times."""

    sure: bool
    text: str


def _misfits_of(value: Any, kind: DataType, path: str) -> Iterator[_Misfit]:
    """Yields the fields of a value that are not of the schema's type."""
    if value is None:
        return
    parts: list[tuple[Any, DataType, str]] = []
    right = sure = True
    if isinstance(kind, StructType):
        right = isinstance(value, dict)
        if right:
            at = f"{path}." if path else ""
            parts = [
                (value[f.name], f.dataType, at + f.name) for f in kind.fields if f.name in value
            ]
    elif isinstance(kind, ArrayType):
        right = isinstance(value, list)
        if right:
            parts = [(one, kind.elementType, f"{path}[{i}]") for i, one in enumerate(value)]
    elif isinstance(kind, MapType):
        right = isinstance(value, dict)
        if right:
            parts = [(one, kind.valueType, f"{path}[{name!r}]") for name, one in value.items()]
    else:
        right = _is_one(value, kind)
        sure = isinstance(kind, _JUDGED)
    if not right:
        text = msgspec.json.encode(value).decode()
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        yield _Misfit(sure, f"{path} is {shown}, not {kind.simpleString()}")
    for part in parts:
        yield from _misfits_of(*part)


def _is_one(value: Any, kind: DataType) -> bool:
    """Whether Spark takes a value for one of a simple type, as far as can be told here."""
    if isinstance(kind, StringType):
        return True
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, IntegralType):
        most = 1 << _BITS[kind.simpleString()] - 1
        return isinstance(value, int) and not isinstance(value, bool) and -most <= value < most
    if isinstance(kind, FloatType | DoubleType | DecimalType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return False
