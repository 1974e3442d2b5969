"""Schemas: topics whose bodies become columns; bodies that don't fit theirs are set aside.

The idea: a topic's schema is given, in Spark's DDL or its JSON, or found in a sample of its bodies.
Either way it is pinned: written beside the export, and from then on the schema of that topic, so
that all files of a topic have the same columns. Spark parses the bodies, in the JVM. A stricter
parser checks whether a body is JSON to its last byte, as Spark's stops where an object ends. Only
for a body that does not fit the reason is worked out: msgspec decodes it as the schema's types.

Invariants: a pinned schema does not change; a given one that contradicts it is refused before
anything is read. A schema that no file could be written with is refused and not pinned, because a
pinned one stays. Each row goes one way, whole; every row that is set aside has a reason. A field
that a body lacks is null; one that the schema lacks is not exported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

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
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SIMPLE: Final[Mapping[type[DataType], tuple[Any, Any]]] = {
    StringType: (Any, Any), BooleanType: (bool, bool), FloatType: (float, float),
    DoubleType: (float, float), DecimalType: (Any, Decimal), BinaryType: (Any, bytes),
    DateType: (Any, date), TimestampType: (Any, datetime), TimestampNTZType: (Any, datetime),
}  # fmt: skip
"""The type of all values that Spark takes for one of its types, and of those that most programs
write."""
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
        objects = [body.decode() for body in bodies if broken(body) is None]
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
        try:
            python_type(found)
        except SchemaIllegal as e:
            raise SchemaIllegal(
                f"the schema in the bodies of topic {topic} is {ddl(found)}, where {e}; "
                "leave the topic out of those to infer, or give its schema"
            ) from e
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
    try:
        python_type(found)
    except SchemaIllegal as e:
        raise SchemaIllegal(f"the schema of topic {topic} is {shown(schema)}, where {e}") from e
    return found


def python_type(kind: DataType, path: str = "", *, as_usual: bool = False) -> Any:
    """The type as which msgspec decodes all values that Spark takes for its type, or those that
    most programs write (`as_usual`). Raises SchemaIllegal, with the part that JSON or Parquet can't
    have, or that readers can't tell apart.
    """
    at = path or "it"
    if isinstance(kind, StructType):
        if not kind.fields:
            raise SchemaIllegal(f"{at} has no field; it must have one or more")
        if not path and UNFIT in kind.names:
            raise SchemaIllegal(f"a field is named {UNFIT}, which is the export's own")
        folded = [name.casefold() for name in kind.names]
        twice = next((n for n in kind.names if folded.count(n.casefold()) > 1), None)
        if twice is not None:
            raise SchemaIllegal(
                f"{at} has field {twice!r} twice, but for case, which Spark could not read"
            )
        types = [
            python_type(one.dataType, f"{path}.{one.name}".lstrip("."), as_usual=as_usual)
            for one in kind.fields
        ]
        # A field's name need not be one of Python's.
        names = {f"field_{number}": name for number, name in enumerate(kind.names)}
        fields = [(name, one | None, None) for name, one in zip(names, types, strict=True)]
        return msgspec.defstruct("Body", fields, rename=names)
    if isinstance(kind, ArrayType):
        return list[python_type(kind.elementType, f"{path}[]", as_usual=as_usual) | None]  # type: ignore[misc] # made here
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise SchemaIllegal(
                f"{at} has keys of type {kind.keyType.simpleString()}; JSON has texts alone"
            )
        return dict[str, python_type(kind.valueType, f"{path}[]", as_usual=as_usual) | None]  # type: ignore[misc] # made here
    if isinstance(kind, IntegralType):
        most = 1 << _BITS[kind.simpleString()] - 1
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if type(kind) not in _SIMPLE:
        raise SchemaIllegal(
            f"{at} is of type {kind.simpleString()}, which bodies can't be; say STRING"
        )
    return _SIMPLE[type(kind)][as_usual]


def read_schemas(text: str, where: str) -> dict[str, Any]:
    """The schemas in a file: an object of JSON, by topic. Raises SchemaIllegal."""
    try:
        return msgspec.json.decode(text, type=dict[str, str | dict[str, Any]])
    except msgspec.DecodeError as e:
        raise SchemaIllegal(
            f"{where} must have an object of JSON, of a schema for each topic: a text in Spark's "
            f"DDL, or the JSON of a struct; {e}"
        ) from e


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


class FittedRows(NamedTuple):
    """Rows whose body fits, with the column `value`; and those that don't, with `reason`."""

    fit: DataFrame
    unfit: DataFrame


def fitted(rows: DataFrame, schema: StructType, *, keep_body: bool = False) -> FittedRows:
    """Sorts a topic's rows by whether their body fits. `keep_body`: fitting rows keep it."""
    asked = StructType([*schema.fields, StructField(UNFIT, StringType())])
    text = fn.col("body").cast("string")
    told = {"columnNameOfCorruptRecord": UNFIT, "mode": "PERMISSIVE"}
    parsed = rows.withColumn(_BROKEN, _function(broken)(fn.col("body"))).withColumn(
        VALUE, fn.from_json(text, asked, told)
    )
    fits = (
        fn.col(_BROKEN).isNull() & fn.col(VALUE).isNotNull() & fn.col(f"{VALUE}.{UNFIT}").isNull()
    )
    fit = parsed.where(fits).drop(_BROKEN).withColumn(VALUE, fn.col(VALUE).dropFields(UNFIT))
    if not keep_body:
        fit = fit.drop("body")
    reasons = _function(lambda body: broken(body) or misfit(body or b"", schema))
    unfit = parsed.where(~fits).withColumn(REASON, reasons(fn.col("body"))).drop(_BROKEN, VALUE)
    return FittedRows(fit, unfit)


def _function(judge: Callable[[bytes | None], str | None]) -> Any:
    """A function of Spark: of each body the reason why it does not fit, or null."""

    def judged(bodies: pa.Array) -> pa.Array:
        return pa.array(map(judge, bodies.to_pylist()), pa.string())

    # Spark tells the kind of a function by its types, which are texts in this module.
    judged.__annotations__ = {"bodies": pa.Array, "return": pa.Array}
    made: Any = arrow_udf
    return made(judged, StringType())


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
    # A field that surely does not fit goes before one of which only Spark can tell.
    for as_usual in (False, True):
        try:
            _decoder(schema, as_usual).decode(body)
        except msgspec.ValidationError as e:
            said, _, path = str(e).replace(" | null", "").partition(" - at `$.")
            return f"{path.rstrip('`')}: {said}"
        except (msgspec.DecodeError, RecursionError):
            # For example a number that no Python float can hold; Spark would not take it either.
            break
    return f"does not fit {schema.simpleString()}"


@lru_cache(maxsize=64)
def _decoder(schema: StructType, as_usual: bool) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(python_type(schema, as_usual=as_usual))
