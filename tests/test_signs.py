"""Each room has a sign, the docstring of its `__init__.py`, and the signs are true.

A sign names what is there, and says which rooms its modules may import. That sentence is held
against the imports that are there and against the order of the rooms. It has a grammar:

    May import `log`, `index` and the rooms below them.
    May import every room but `cli`; more about it, which nothing reads.

Each rule is fed a sign that breaks it, so that a rule gone blind fails here.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from kvstore.index.keys import FAMILIES
from tests.test_architecture import (
    CORE,
    CORE_MAY_IMPORT,
    KVSTORE,
    MAY_IMPORT_TIERING,
    PUBLIC,
    TIERING,
    TIERING_MAY_IMPORT,
    Module,
    imports,
    is_within,
    may_import,
    names_of,
    parse,
    part_of,
    read_modules,
)

ROOT: Final = Path(__file__).resolve().parent.parent


def missing_parts(sign: str) -> list[str]:
    """The parts that the sign of a room lacks."""
    folded = " ".join(sign.split())
    return [part for part in ("ot in here", "egin with", "ay import") if part not in folded]


def test_the_sign_of_each_room_says_its_limits_its_beginning_and_its_imports() -> None:
    signs = {
        str(path.relative_to(ROOT)): ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        for package in ("kvstore", "tiering")
        for path in sorted((ROOT / package).glob("*/**/__init__.py"))
    }
    assert len(signs) > 30
    assert {name: parts for name, sign in signs.items() if (parts := missing_parts(sign))} == {}


def test_a_sign_without_a_part_is_found() -> None:
    whole = "Doors. Not in here: windows. Begin with `hinge`. May import `wood`."
    assert missing_parts(whole) == []
    assert missing_parts(whole.replace("Begin", "Start")) == ["egin with"]
    assert missing_parts("Doors.") == ["ot in here", "egin with", "ay import"]


def _defines(module: Path, name: str) -> bool:
    """Whether a module, or any of a room, has a function, class or value of the name."""
    files = module.glob("*.py*") if module.is_dir() else module.parent.glob(f"{module.name}.py*")
    wanted = re.compile(rf"(?m)^(?:async def |def |class )?{name}\b|^from .*\b{name}\b")
    return any(wanted.search(file.read_text("utf-8")) for file in files if file.suffix != ".pyc")


def is_known(name: str, room: Path) -> bool:
    """Whether a sign may give a name: a module that is found from the room or a room around it, a
    name defined there, or a family of RocksDB.
    """
    *owner, last = name.split(".")
    bases = [room, *room.parents[: len(room.relative_to(ROOT).parts)]]
    for base in (*bases, ROOT / "kvstore", ROOT / "tiering"):
        place = base.joinpath(*owner)
        if (place / last).is_dir() or list(place.glob(f"{last}.py*")):
            return True
        if (owner or base == room) and place != ROOT and _defines(place, last):
            return True
    return name in FAMILIES


def unknown_names(sign: str, room: Path) -> list[str]:
    """The names in lower case that a sign gives and that are not there."""
    names = re.findall(r"`([a-z_]\w*(?:\.\w+)*)`", sign)
    return [name for name in names if not is_known(name, room)]


def test_the_signs_of_rooms_name_what_is_there() -> None:
    found = {
        str(path.relative_to(ROOT)): unknown
        for package in ("kvstore", "tiering")
        for path in sorted((ROOT / package).rglob("__init__.py"))
        if (sign := ast.get_docstring(ast.parse(path.read_text("utf-8"))))
        and (unknown := unknown_names(sign, path.parent))
    }
    assert found == {}


def test_a_name_that_no_room_has_is_found_in_a_sign() -> None:
    sign = "Begin with `reader`, then `readers`; `core.tail`, `core.tails`, `pull.pulls`."
    assert unknown_names(sign, ROOT / "kvstore" / "read") == [
        "readers",
        "core.tails",
        "pull.pulls",
    ]


# -- the imports that a sign allows

LAYERS: Final = {"kvstore": KVSTORE, "tiering": TIERING}
# Modules that have layers of their own and are no rooms: only programs import them.
PROGRAMS: Final = {"aio", "__main__"}
_MAY_IMPORT: Final = re.compile(r"May import (.*?)(?:;.*?)?\.(?= |$)")
_ITEM: Final = re.compile(
    r"""every\ room\ that\ `(?P<like>[\w.]+)`\ may
    | every\ room(?P<both>\ of\ both\ packages)?(?:\ but\ `(?P<but>\w+)`)?
    | the\ rooms\ below\ (?:it|them|`(?P<below>\w+)`)
    | the\ modules\ of\ `(?P<modules>\w+)`
    | `(?P<name>[\w.]+)`
    | codecs | numpy""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Granted:
    """The imports that a sign allows: rooms and modules by `within`, a room's modules but not the
    rooms in it by `directly`.
    """

    within: frozenset[str]
    directly: frozenset[str] = frozenset()

    def __or__(self, other: Granted) -> Granted:
        return Granted(self.within | other.within, self.directly | other.directly)

    def allows(self, target: str) -> bool:
        return any(is_within(target, room) for room in self.within) or (
            target in self.directly or target.rpartition(".")[0] in self.directly
        )


def rooms_below(package: str, parts: set[str]) -> frozenset[str]:
    """The rooms, and the modules beside them, in layers below the highest of these parts."""
    layers = LAYERS[package]
    highest = max(level for level, layer in enumerate(layers) if parts & set(layer))
    return frozenset(f"{package}.{part}" for layer in layers[:highest] for part in layer)


def granted(room: str, signs: dict[str, str]) -> Granted:
    """The imports that the sign of a room allows; ValueError for a sentence outside the grammar."""
    package, _, inside = room.partition(".")
    own_part = inside.partition(".")[0]
    found = _MAY_IMPORT.search(" ".join(signs[room].split()))
    if found is None:
        raise ValueError(f"{room} does not say what it may import")
    text = re.sub(r" \([^)]*\)", "", found[1])
    answer = Granted(frozenset())
    named: set[str] = set()
    for words in re.split(r",? and |, ", text):
        item = _ITEM.fullmatch(words)
        if item is None:
            raise ValueError(f"{room} may import {words!r}, which no rule reads")
        if item["name"]:
            named.add(item["name"].partition(".")[0])
            answer |= Granted(frozenset({f"{package}.{item['name']}"}))
        elif item["like"]:
            answer |= granted(f"{package}.{item['like']}", signs)
        elif item["modules"]:
            answer |= Granted(frozenset(), frozenset({f"{package}.{item['modules']}"}))
        elif words.startswith("every room"):
            parts = {part for layer in LAYERS[package] for part in layer}
            rooms = {f"{package}.{part}" for part in parts - PROGRAMS - {own_part, item["but"]}}
            if item["both"]:
                answer |= Granted(frozenset({"tiering"}), frozenset(LAYERS))
            answer |= Granted(frozenset(rooms))
        elif words.startswith("the rooms below"):
            answer |= Granted(rooms_below(package, {item["below"]} if item["below"] else named))
    return answer


def room_of(module: Module) -> str:
    return module.name if module.is_package else module.name.rpartition(".")[0]


def unsigned_imports(modules: list[Module], signs: dict[str, str]) -> list[str]:
    """The imports that the sign of the importer's room does not allow. The sign of tiering itself
    speaks for its rooms of kvstore.
    """
    return [
        str(found)
        for found in imports(modules, names_of(modules))
        if (room := room_of(found.module)) in signs
        and found.target.partition(".")[0] in LAYERS
        and not is_within(found.target, room)
        and not (is_within(room, "tiering") and is_within(found.target, "kvstore"))
        and not (is_within(found.target, "tiering") and found.module.name in MAY_IMPORT_TIERING)
        and not granted(room, signs).allows(found.target)
    ]


def forbidden_rooms(signs: dict[str, str]) -> list[str]:
    """The rooms that a sign allows against the order of the rooms."""
    return [
        f"{room} may import {target}"
        for room in signs
        for target in sorted(granted(room, signs).within)
        if (package := room.partition(".")[0]) == target.partition(".")[0]
        and not may_import(package, part_of(room), part_of(target))
        and not (is_within(room, "kvstore.core") and target in CORE_MAY_IMPORT)
    ]


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules(ROOT, "kvstore") + read_modules(ROOT, "tiering")


@pytest.fixture(scope="module")
def signs(modules: list[Module]) -> dict[str, str]:
    """The signs of the rooms, without those of the packages."""
    return {
        module.name: ast.get_docstring(module.tree) or ""
        for module in modules
        if module.is_package and module.part != PUBLIC
    }


def test_each_import_of_another_room_is_allowed_by_the_sign(
    modules: list[Module], signs: dict[str, str]
) -> None:
    assert len(signs) > 30
    assert unsigned_imports(modules, signs) == []


def test_no_sign_allows_a_room_that_the_order_forbids(signs: dict[str, str]) -> None:
    assert forbidden_rooms(signs) == []


def test_the_sign_of_the_core_is_true_of_its_sources(signs: dict[str, str]) -> None:
    outside = {
        target
        for path in CORE.rglob("*.p[yx]*")
        if path.suffix in (".pyx", ".pxd")
        for target in re.findall(r"(?m)^\s*from (kvstore[\w.]*) c?import", path.read_text("utf-8"))
        if not is_within(target, "kvstore.core")
    }
    assert outside
    assert [t for t in outside if not granted("kvstore.core", signs).allows(t)] == []


def test_the_sign_of_tiering_names_the_parts_of_kvstore_that_it_may_import() -> None:
    sign = " ".join((ROOT / "tiering/__init__.py").read_text("utf-8").split())
    named = re.search(r"Its rooms may import ([^.;]*(?:\.\w[^.;]*)*) of `kvstore`", sign)
    assert named is not None
    parts = {f"kvstore.{name}" for name in re.findall(r"`([\w.]+)`", named[1])}
    assert parts == set(TIERING_MAY_IMPORT)


SIGNS: Final = {
    "kvstore.index": "May import `record` and the rooms below it.",
    "kvstore.log": "May import `record` (its layouts), `files` and numpy; nothing reads this.",
    "kvstore.read": "May import every room but `pop`.",
    "kvstore.read.sql": "May import the modules of `read` and the rooms below `meta`.",
    "kvstore.cli": "May import every room of both packages.",
    "kvstore.cli.tier": "May import `cli.terminal`, and every room that `cli` may.",
}


@pytest.mark.parametrize(
    ("path", "target", "is_signed"),
    [
        ("kvstore/index/runs.py", "kvstore.record.layout", True),
        ("kvstore/index/runs.py", "kvstore.core.scan", True),
        ("kvstore/index/runs.py", "kvstore.log.segments", False),
        ("kvstore/log/flush.py", "kvstore.core.scan", False),
        ("kvstore/log/flush.py", "kvstore.log.segments", True),
        ("kvstore/log/flush.py", "tiering.errors", False),
        ("kvstore/read/pull.py", "kvstore.pop.pop", False),
        ("kvstore/read/pull.py", "kvstore.meta.topics", True),
        ("kvstore/read/sql/sql.py", "kvstore.read.pull", True),
        ("kvstore/read/sql/sql.py", "kvstore.meta.topics", False),
        ("kvstore/cli/tier/plan.py", "kvstore.cli.terminal.output", True),
        ("kvstore/cli/tier/plan.py", "kvstore.cli.admin.top", False),
        ("kvstore/cli/tier/plan.py", "tiering.policy.plan", True),
        ("kvstore/cli/tier/plan.py", "kvstore", True),
    ],
)
def test_an_import_that_a_sign_does_not_allow_is_found(
    path: str, target: str, is_signed: bool
) -> None:
    importer = parse(f"import {target}", Path(path))
    assert (unsigned_imports([importer], SIGNS) == []) == is_signed


def test_a_room_that_the_order_forbids_is_found_in_a_sign() -> None:
    sign = {"kvstore.read": "May import `meta`, `pop` and the rooms below `log`."}
    assert forbidden_rooms(sign) == ["kvstore.read may import kvstore.pop"]
    core = {"kvstore.core": "May import `errors`, `core.names` and `record`."}
    assert forbidden_rooms(core) == ["kvstore.core may import kvstore.record"]


@pytest.mark.parametrize(
    "sign", ["Doors.", "May import whatever it likes.", "May import `meta`, but no other room."]
)
def test_a_sign_outside_the_grammar_is_refused(sign: str) -> None:
    with pytest.raises(ValueError, match="import"):
        granted("kvstore.read", {"kvstore.read": sign})
