"""Job errors: says in one line what went wrong in a job of Spark.

The idea: an error of ours comes back from a task as text, in the midst of tracebacks of two
languages. It is looked for there, and raised alone; of other errors the first line says most.

Invariant: Spark's whole text is the cause of the raised error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tiering.errors import SparkFailed

_OURS: Final = re.compile(r"^(?:\w+\.)*(?:kvstore|tiering)\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
_JVM: Final = re.compile(r"(?:[\w$]+\.)+([\w$]+(?:Exception|Error)): (.+)")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raises `SparkFailed`, with one line, for any error of Spark in the block."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 # only where Spark is there
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError) as e:
        raise SparkFailed(error_line(str(e))) from e


def error_line(text: str) -> str:
    """The most telling line of an error's text."""
    ours = _OURS.findall(text)
    if ours:
        kind, said = ours[-1]
        return f"{said.strip()} ({kind})"
    first = next((line for line in text.splitlines() if line.strip()), "Spark failed")
    jvm = _JVM.findall(text)
    if jvm and first.startswith("An error occurred while calling"):
        kind, said = jvm[-1]
        return f"{said.strip()} ({kind})"
    return first.strip()
