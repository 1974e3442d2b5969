"""The verbs `spark tier`, `merge`, `compact`, `reencrypt`, `verify` and `erase`: `tier run`, those
of the same name under `tier`, and `erase`, done by Spark's tasks.

The idea: each is the verb itself, whose job gets another executor.
"""

from __future__ import annotations

import inspect
from typing import Any

import click

from kvstore.cli.spark.spark_options import Spark, spark_options
from kvstore.cli.tier import archives, erasing, rewriting

_PLACES = "The places of archives must be seen by all of Spark's workers."
_FOLDER = "The store's folder, and the places of archives, must be seen by all of Spark's workers."


def _by_spark(verb: click.Command, name: str, how: str, *, without: str = "") -> click.Command:
    """A verb whose job is done by Spark's tasks, which `how` adds to its help; its parameter
    `without` keeps its default.
    """
    assert verb.callback is not None, "it is no group"
    call = verb.callback

    @spark_options
    def by_spark(spark: Spark, **given: Any) -> None:
        call(executor=spark.executor, **given)

    params = [param for param in verb.params if param.name != without]
    first = inspect.cleandoc(verb.help or "").partition("\n\n")[0]
    return click.command(name, params=params, help=f"{first}\n\n{how}")(by_spark)


tier = _by_spark(
    rewriting.run, "tier",
    "As `kvmq tier run`, with several segments and archives at once; the result is the same, byte "
    f"for byte. The store is opened here. {_FOLDER}",
)  # fmt: skip
merge = _by_spark(rewriting.merge, "merge", f"As `kvmq tier merge`. {_PLACES}")
compact = _by_spark(rewriting.compact, "compact", f"As `kvmq tier compact`. {_PLACES}")
reencrypt = _by_spark(
    rewriting.reencrypt, "reencrypt",
    f"As `kvmq tier reencrypt`. {_PLACES} Keys go along with the tasks.",
)  # fmt: skip
verify = _by_spark(
    archives.verify, "verify", f"As `kvmq tier verify`, with an archive for each task. {_PLACES}"
)


@click.group()
def erase() -> None:
    """Erase messages from log and archives, and prove it.

    As `kvmq erase`, with several segments and archives at once. The store's folder, and the places
    of archives, must be seen by all of Spark's workers.
    """


for _verb in (erasing.topic, erasing.key, erasing.before):
    assert _verb.name is not None, "click names it"
    _how = f"As `kvmq erase {_verb.name}`."
    erase.add_command(_by_spark(_verb, _verb.name, _how, without="by_key"))
