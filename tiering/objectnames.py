"""How archives are called in a place: the store's id, then first position, number and class.

The idea: a name says whose an archive is and which, so that many stores may share a place, and what
a place lists can be sorted without reading it.

Invariant: no two archives of any store have the same name.
"""

from __future__ import annotations

import re
from typing import Final

SUFFIX: Final = ".kvarc"
NAME: Final = re.compile(rf"([0-9a-f]{{32}})/(\d{{20}})-(\d{{8,}})-([^/]*){re.escape(SUFFIX)}")
"""An archive's name: store id, first position, number, class."""


def object_key(store_id: bytes, first_position: int, number: int, class_name: str) -> str:
    """An archive's name in its place."""
    return f"{store_id.hex()}/{first_position:020d}-{number:08d}-{class_name}{SUFFIX}"
