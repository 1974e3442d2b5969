"""Schemas: topics whose bodies become columns; bodies that don't fit theirs are set aside.

The idea: a topic's schema is given, in Spark's DDL or its JSON, or found in a sample of its bodies.
Either way it is pinned: written beside the export, and from then on the schema of that topic, so
that all files of a topic have the same columns. Spark parses the bodies, in the JVM. A stricter
parser checks whether a body is JSON to its last byte, as Spark's stops where an object ends. Only
for a body that does not fit the reason is worked out, by walking it beside the schema.

Invariants: a pinned schema does not change; a given one that contradicts it is refused before
anything is read. A schema that no file could be written with is refused and not pinned, because a
pinned one stays. Each row goes one way, whole; every row that is set aside has a reason. A field
that a body lacks is null; one that the schema lacks is not exported.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kvstore.errors import ConfigError, shown
from tiering.errors import ExportBroken, SchemaContradicts, SchemaIllegal
from tiering.spark.export.commit import SCHEMAS, schema_name
from tiering.spark.export.hadoop import Folders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLED: Final = 10_000
"""The messages of a topic from which its schema is inferred."""
UNFIT: Final = "_kvmq_unfit"
"""A field that no schema may have: there Spark says what it could not parse."""
_SIMPLE: Final = (
    StringType, BooleanType, IntegralType, FractionalType, DecimalType, BinaryType, DateType,
    TimestampType, TimestampNTZType,
)  # fmt: skip
Given = Mapping[str, "str | Mapping[str, Any] | StructType"]
"""By topic, a schema: Spark's DDL, its JSON as an object, or Spark's own value."""


class _Pin(msgspec.Struct, frozen=True):
    """A topic's schema as a file has it; `ddl` is for people, `of` says where it is from."""

    topic: str
    ddl: str
    fields: dict[str, Any]
    of: str
    version: int = 1


class Schemas:
    """The schemas of an export's topics: those that were pinned before, and those given now, which
    are pinned with this. Raises SchemaIllegal, SchemaContradicts, ExportBroken.
    """

    def __init__(self, folders: Folders, given: Given | None = None, infer: Collection[str] = ())\
            -> None:  # fmt: skip
        self._folders = folders
        self._pinned: dict[str, StructType] = {}
        for file in folders.names(SCHEMAS):
            pin = _decoded(folders, f"{SCHEMAS}/{file}")
            self._pinned[pin.topic] = StructType.fromJson(pin.fields)
        parsed = {topic: parse(topic, schema) for topic, schema in (given or {}).items()}
        both = sorted(set(parsed) & set(infer))
        if both:
            raise ConfigError(
                f"topic {both[0]} has a schema that is given, and is to be inferred as well: say "
                "one of these"
            )
        for topic, schema in parsed.items():
            self._agree(topic, schema)
        for topic, schema in parsed.items():
            if topic not in self._pinned:
                self._pin(topic, schema, "given")
        self._infer = set(infer)

    @property
    def topics(self) -> Collection[str]:
        """The topics whose bodies are to be typed."""
        return self._pinned.keys() | self._infer

    def known(self, topic: str) -> StructType | None:
        """A topic's schema; None if it is to be inferred yet, or there is none."""
        return self._pinned.get(topic)

    def infer(self, spark: SparkSession, topic: str, bodies: Sequence[bytes]) -> StructType:
        """Infers a topic's schema from some bodies, and pins it. Raises SchemaIllegal if none of
        them is an object of JSON with something in it.
        """
        objects = [body.decode() for body in bodies if _is_object(body)]
        found = StructType()
        if objects:
            rows = spark.createDataFrame([(one,) for one in objects], "value STRING")
            found = spark.read.json(rows).schema
        if not found.fields:
            raise SchemaIllegal(
                f"no schema for topic {topic} is in its bodies: of {len(bodies)} that were looked "
                "at none is an object of JSON with a field; leave the topic out of those to "
                "infer, or give its schema"
            )
        wrong = _unfit_for_bodies(found, "")
        if wrong is not None:
            raise SchemaIllegal(
                f"the schema in the bodies of topic {topic} is {ddl(found)}, where {wrong}; "
                "leave the topic out of those to infer, or give its schema"
            )
        self._pin(topic, found, f"inferred from {len(objects)} messages")
        return found

    def _agree(self, topic: str, schema: StructType) -> None:
        pinned = self._pinned.get(topic)
        if pinned is not None and _plain(pinned) != _plain(schema):
            raise SchemaContradicts(
                f"topic {topic} is given the schema {ddl(schema)}, and was exported with "
                f"{ddl(pinned)}, which stays; leave the schema out, or export the topic to "
                f"another folder than {self._folders.root}"
            )

    def _pin(self, topic: str, schema: StructType, of: str) -> None:
        pin = _Pin(topic, ddl(schema), schema.jsonValue(), of)
        self._folders.write(schema_name(topic), msgspec.json.format(msgspec.json.encode(pin)))
        self._pinned[topic] = schema


def _decoded(folders: Folders, name: str) -> _Pin:
    try:
        return msgspec.json.decode(folders.read(name) or b"", type=_Pin)
    except msgspec.DecodeError as e:
        raise ExportBroken(f"{folders.at(name)} is no pinned schema ({e}); put it back") from e


def _is_object(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=dict[str, Any])
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def parse(topic: str, schema: str | Mapping[str, Any] | StructType) -> StructType:
    """A topic's schema, whichever way it is given. Raises SchemaIllegal."""
    found: DataType
    try:
        if isinstance(schema, StructType):
            found = schema
        elif isinstance(schema, str):
            found = StructType.fromDDL(schema)
        else:
            found = StructType.fromJson(dict(schema))
    except (PySparkException, KeyError, TypeError, ValueError, AttributeError) as e:
        said = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise SchemaIllegal(
            f"the schema of topic {topic} is {shown(schema)}, which is none ({said}); say it as "
            "Spark's DDL, such as 'id BIGINT, note STRING', or as the JSON of a struct"
        ) from e
    if not isinstance(found, StructType):
        raise SchemaIllegal(
            f"the schema of topic {topic} is {shown(schema)}; it must be a struct, such as "
            "'id BIGINT, note STRING'"
        )
    wrong = _unfit_for_bodies(found, "")
    if wrong is not None:
        raise SchemaIllegal(f"the schema of topic {topic} is {shown(schema)}, where {wrong}")
    return found


def _unfit_for_bodies(kind: DataType, path: str) -> str | None:
    """The part of a type that JSON or Parquet can't have, or that readers can't tell apart; None if
    all of it is fine.
    """
    at = path or "it"
    parts: list[tuple[DataType, str]] = []
    if isinstance(kind, StructType):
        if not kind.fields:
            return f"{at} has no field; it must have one or more"
        if not path and UNFIT in kind.names:
            return f"a field is named {UNFIT}, which is the export's own"
        folded = [name.casefold() for name in kind.names]
        twice = next((n for n in kind.names if folded.count(n.casefold()) > 1), None)
        if twice is not None:
            return f"{at} has field {twice!r} twice, but for case, which Spark could not read"
        parts = [(one.dataType, f"{path}.{one.name}".lstrip(".")) for one in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [(kind.elementType, f"{path}[]")]
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            return f"{at} has keys of type {kind.keyType.simpleString()}; JSON has texts alone"
        parts = [(kind.valueType, f"{path}[]")]
    elif not isinstance(kind, _SIMPLE):
        return f"{at} is of type {kind.simpleString()}, which bodies can't be; say STRING"
    found = (_unfit_for_bodies(*part) for part in parts)
    return next((one for one in found if one is not None), None)


def read_schemas(text: str, where: str) -> dict[str, Any]:
    """The schemas in a file: an object of JSON, by topic. Raises SchemaIllegal."""
    try:
        found = json.loads(text)
    except ValueError as e:
        raise SchemaIllegal(f"{where} is no JSON: {e}") from e
    if not isinstance(found, dict) or not all(isinstance(v, str | dict) for v in found.values()):
        raise SchemaIllegal(
            f"{where} must have an object, of a schema for each topic: a text in Spark's DDL, or "
            "the JSON of a struct"
        )
    return found


def ddl(schema: StructType) -> str:
    """A schema for people."""
    return ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in schema.fields)


def _plain(schema: StructType) -> str:
    """A text that is the same for two schemas of the same names and types, in order. Whether a
    field may be null does not count: a body may lack any field.
    """
    return schema.simpleString()


# --- fitting bodies -------------------------------------------------------------------------------


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
