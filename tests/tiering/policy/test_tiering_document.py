"""docs/tiering.md says what the code does: fields, defaults, prices, classes, its example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.tiering.policy.givens import DAY_MS
from tiering.policy.plan import RATIOS
from tiering.policy.policy import Policy, Prices
from tiering.policy.retention_classes import TopicTraits, life_of, read_class

TEXT: Final = (Path(__file__).parents[3] / "docs" / "tiering.md").read_text(encoding="utf-8")


def default_of(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if value is msgspec.NODEFAULT or isinstance(value, Prices):
        return "Prices()"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def test_every_field_of_a_policy_is_documented_with_its_default_and_no_other() -> None:
    fields = msgspec.structs.fields(Policy)
    documented = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", TEXT, re.MULTILINE)
    assert documented == [(field.name, default_of(field)) for field in fields]
    for field in fields:
        assert f"`{field.name}`" in (Policy.__doc__ or "")


def test_the_example_is_a_policy_and_its_ages_are_those_told() -> None:
    found = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    kind = life_of(Policy.from_toml(found[1]), TopicTraits(name="t")).kind
    assert kind is not None
    assert (kind.leaves_warm, kind.ends) == (17 * DAY_MS, 197 * DAY_MS)
    told = "goes cold when it is 17 days old, and is deleted when it is 197"
    assert told in " ".join(TEXT.split())


@pytest.mark.parametrize("price", ["gb_month", "requests", "transfer"])
def test_the_prices_are_those_of_the_code(price: str) -> None:
    prices = Prices()
    cells = [f"{getattr(getattr(prices, tier), price):g}" for tier in ("hot", "warm", "cold")]
    assert re.search(rf"^\| `{price}`.* \| {' . '.join(cells)} \|$", TEXT, re.MULTILINE)


def test_the_classes_shown_are_classes() -> None:
    shown = re.findall(r"^\| `((?:warm|cold)\d\S+)` \|", TEXT, re.MULTILINE)
    assert len(shown) == 4
    assert [read_class(name).name for name in shown] == shown


def test_the_assumed_ratios_are_those_of_the_code() -> None:
    for ratio in RATIOS.values():
        assert f"{ratio:g}" in TEXT
