"""Advice: the calls in an error's advice become the verbs of the command line.

The idea: the store's errors name the calls that help. A user of the command line gets the verbs
instead; all errors pass here on their way out.

Invariant: text that is not advice stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

VERBS: Final = {
    "create_topic": "kvmq topic create",
    "alter_topic": "kvmq topic alter",
    "create_group": "kvmq group create",
    "alter_group": "kvmq group alter",
    "reset_offset": "kvmq offset reset",
    "namespaces": "kvmq namespace list",
}
"""Calls that errors advise, and the verb that does it."""

PHRASES: Final = (
    (", or open with auto_create_topics=True", ""),
    ("exist_ok=True", "--exist-ok"),
    ("or open it here with read_only=True", "or use a verb that only reads"),
    (
        "open it without read_only=True to create or adopt one",
        "`kvmq topic create` and `kvmq put --create` make one",
    ),
)
"""Advice that is no call's name, and the verb for it."""

_CALL: Final = re.compile(rf"(with|use) ({'|'.join(VERBS)})(?=$|[ ,;.])|`({'|'.join(VERBS)})`")
_VIEW: Final = re.compile(r"use store\.namespace\('([^']*)'\)")


def in_verbs(text: str) -> str:
    """An error's text with the verbs of the command line in the place of calls."""
    for phrase, instead in PHRASES:
        text = text.replace(phrase, instead)
    text = _VIEW.sub(r"use --namespace \1", text)
    return _CALL.sub(_verb, text)


def _verb(found: re.Match[str]) -> str:
    word, call, quoted = found.groups()
    return f"{word} `{VERBS[call]}`" if call else f"`{VERBS[quoted]}`"
