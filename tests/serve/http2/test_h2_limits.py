"""docs/http2.md gives each limit with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import pytest

from kvstore.serve.http2.h2_limits import H2Limits

PAGE: Final = Path(__file__).resolve().parents[3] / "docs/http2.md"


def written(value: int | float) -> str:
    """A default as the page writes it."""
    if isinstance(value, float):
        return f"{value:g} s"
    for unit, bits in (("MiB", 20), ("KiB", 10)):
        if value >= 1 << bits and value % (1 << bits) == 0 and value != 4096:
            return f"{value >> bits} {unit}"
    return f"{value:,}"


@pytest.mark.parametrize("field", msgspec.structs.fields(H2Limits), ids=lambda field: field.name)
def test_a_limit_is_documented_with_its_default(field: msgspec.structs.FieldInfo) -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if f"| `{field.name}` |" in line]
    assert len(rows) == 1
    assert rows[0].split("|")[2].strip().startswith(written(field.default))
