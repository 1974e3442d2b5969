"""The verbs `tier key ...`: the key file of topics whose archives are encrypted."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.terminal.paths import LocalPath


@click.group()
def key() -> None:
    """Keys of topics whose archives are encrypted, in a key file."""


@key.command()
@click.argument("file", type=LocalPath(dir_okay=False))
@click.argument("topic")
@output_option
def make(out: Output, file: Path, topic: str) -> None:
    """Give TOPIC a key in FILE, if it has none; the file is made if it is not there.

    From then on what is archived of the topic with this file is encrypted; `kvmq tier reencrypt`
    sees to what was archived before. Who loses the file loses what is encrypted; keep copies of it
    somewhere else than the archives. The key itself is not shown.
    """
    from tiering.keys.key_file import KeyFile

    keys = KeyFile(file)
    is_new = topic not in keys.topics()
    made = keys.make(topic)
    if out.json:
        out.document({"topic": topic, "key_id": made.key_id, "made": is_new})
    elif is_new:
        out.text(f"{topic} has the key {made.key_id} now", fg="green")
    else:
        out.text(f"{topic} had the key {made.key_id}, and keeps it")


@key.command(name="list")
@click.argument("file", type=LocalPath(exists=True, dir_okay=False))
@output_option
def list_(out: Output, file: Path) -> None:
    """List the topics that have a key in FILE."""
    from tiering.keys.key_file import KeyFile

    topics = KeyFile(file).topics()
    if out.json:
        out.document(topics)
    else:
        out.table(("topic",), [(topic,) for topic in topics])
