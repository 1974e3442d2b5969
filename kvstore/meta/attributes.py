"""Attributes: the caller's own texts, kept with a topic or a group.

Invariant: attributes that pass `attributes_of` can be written to a row and read from it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvstore.errors import CallerError, shown


def attributes_of(given: object) -> dict[str, str]:
    """The caller's attributes as a dict; `CallerError` if they are no mapping of texts to texts."""
    if not isinstance(given, Mapping):
        raise CallerError(
            f"attributes are {shown(given)}; they must be a mapping of texts to texts"
        )
    for item in given.items():
        for text in item:
            if not isinstance(text, str) or not _is_unicode(text):
                raise CallerError(
                    f"the attributes have {shown(text)}; names and values must be "
                    "texts, without lone surrogates"
                )
    return dict(given)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
