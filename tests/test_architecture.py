"""Holds rules for the whole source: imports, seams, sizes, stray addresses.

The rules are read off the syntax tree, so an import inside a function or under TYPE_CHECKING
counts like any other. Each rule is a plain function from modules to the places that break it; the
last section feeds each of them a small module that does, so that a rule gone blind fails here.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
CORE: Final = ROOT / "kvstore/core"

MODULE_LINES_MAX: Final = 600
FUNCTION_LINES_MAX: Final = 80
LINE_WIDTH_MAX: Final = 100
ROOM_FILES_MAX: Final = 15

# From low to high: a room imports rooms of lower layers. A part is a room or a module directly in
# the package.
KVSTORE: Final = (
    ("errors", "clock"),
    ("core",),
    ("process",),
    ("files",),
    ("config",),
    ("record",),
    ("message",),
    ("log", "index"),
    ("meta",),
    ("read",),
    ("pop", "timing"),
    ("consume",),
    ("rocketmq",),
    ("opening",),
    ("engine",),
    ("api",),
    ("wire",),
    ("tracing",),
    ("client",),
    ("sharding",),
    ("serve",),
    ("aio",),
    ("cli",),
    ("__main__",),
)
TIERING: Final = (
    ("errors",),
    ("keys",),
    ("archive",),
    ("places",),
    ("catalog",),
    ("policy",),
    ("executor",),
    ("merge",),
    ("worker",),
    ("operations",),
    ("spark",),
)
LEVELS: Final = {
    (package, part): level
    for package, layers in (("kvstore", KVSTORE), ("tiering", TIERING))
    for level, parts in enumerate(layers)
    for part in parts
}
# The package itself, kvstore/__init__.py.
PUBLIC: Final = "__init__"
# Modules directly in a package: what callers see, and the seams.
BESIDE_ROOMS: Final = {
    "kvstore": frozenset(
        {
            "__init__",
            "__main__",
            "errors",
            "config",
            "message",
            "files",
            "clock",
            "aio",
            "tracing",
        }
    ),
    "tiering": frozenset({"__init__", "errors"}),
}

CODECS: Final = frozenset({"zlib_ng", "xxhash", "lz4", "zstandard", "msgspec", "numpy"})
RECORD_MAY_IMPORT: Final = sys.stdlib_module_names | CODECS
RECORD_MAY_IMPORT_OF_KVSTORE: Final = frozenset({"record", "core", "errors"})
# The only modules that a compiled one may name.
CORE_MAY_IMPORT: Final = (
    "kvstore.core", "kvstore.errors", "numpy", "cpython", "libc", "cython", "collections", "enum",
    "types",
)  # fmt: skip
# Decision 0014 says why, for each.
TIERING_MAY_IMPORT: Final = (
    "kvstore.config",
    "kvstore.index.archived",
    "kvstore.opening.restoring",
    "kvstore.opening.viewing",
    "kvstore.record",
    "kvstore.core",
    "kvstore.index.keys",
    "kvstore.errors",
    "kvstore.files",
    "kvstore.process",
    "kvstore.clock",
)
# Where the store meets its archives, and the verbs that run the worker.
MAY_IMPORT_TIERING: Final = ("kvstore.api.store", "kvstore.cli")

# A forked child calls what its parent's objects asked for, as with `os.register_at_fork`.
MAY_KEEP_CALLS: Final = frozenset({"kvstore.process.forking"})

# `is_url` and `is_remote` are here, so that every room means the same by a URL.
KNOWS_URLS: Final = "tiering.places.settings"

SEAMS: Final = frozenset({"kvstore.files", "kvstore.clock"})
OF_OS: Final = ("open", "fdopen", "fsync", "fdatasync", "sync", "posix_fallocate", "truncate")
OF_OS_TOO: Final = ("ftruncate", "rename", "replace", "remove", "unlink", "link")
OF_TIME: Final = ("time", "monotonic", "perf_counter", "clock_gettime")
OF_DATETIME: Final = ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")
PAST_THE_SEAMS: Final = frozenset(
    {"open", "builtins.open", "io.open", "mmap.mmap", "time.sleep"}
    | {f"os.{name}" for name in OF_OS + OF_OS_TOO}
    | {f"time.{name}{unit}" for name in OF_TIME for unit in ("", "_ns")}
    | {f"datetime.{name}" for name in OF_DATETIME}
)
# A class, so it may be named as a type; of the functions no use is harmless, called or not.
TYPES: Final = frozenset({"mmap.mmap"})
# The command puts the null device in the place of a pipe that broke.
# A folder's descriptor makes a short name for a socket.
EXCEPTIONS: Final = frozenset({("cli", "os.open"), ("wire", "os.open")})

# The command's main thread handles signals itself, and Spark's threads get none.
HAVE_NO_CALLER: Final = ("kvstore.cli.", "tiering.spark.")

# Names by which the modules call their loggers.
LOGGERS: Final = (["_log"], ["logging"])

# Joined here, so that this file doesn't hold what it looks for.
STRAY: Final = ("/wo" + "rk/", "pypi" + ".org", "files." + "pythonhosted", "Co-" + "Authored")


@dataclass(frozen=True, slots=True)
class Module:
    """One source file, parsed. `name` is dotted; a package's is its folder's."""

    name: str
    is_package: bool
    tree: ast.Module
    line_count: int

    @property
    def part(self) -> str:
        """The folder or module of its package it belongs to; PUBLIC for the package itself."""
        return part_of(self.name)


@dataclass(frozen=True, slots=True)
class Import:
    """`module` names `target`, which is as deep a module as is known to exist."""

    module: Module
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.module.name}:{self.line} imports {self.target}"


# -- reading the source


def read_modules(root: Path, package: str) -> list[Module]:
    """Every module of `package` below `root`, sorted by path; none if it isn't there. A compiled
    one by what it says of itself (`.pyi`).
    """
    return [
        parse(path.read_text(encoding="utf-8"), path.relative_to(root))
        for path in sorted((root / package).rglob("*.py*"))
        if path.suffix in (".py", ".pyi")
    ]


def parse(source: str, path: Path) -> Module:
    parts = path.with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return Module(name, is_package, ast.parse(source, str(path)), len(source.splitlines()))


def part_of(name: str) -> str:
    return name.split(".")[1] if "." in name else PUBLIC


def imports(modules: Iterable[Module], known: frozenset[str]) -> Iterator[Import]:
    """Every import; `from p import n` is one of `p.n` if that is a known module, else of `p`."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(module, alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                base = absolute_base(module, node)
                names = (f"{base}.{alias.name}" for alias in node.names)
                for target in {name if name in known else base for name in names}:
                    yield Import(module, target, node.lineno)


def absolute_base(module: Module, node: ast.ImportFrom) -> str:
    """The module after `from`, with leading dots resolved."""
    if node.level == 0:
        assert node.module is not None, "the grammar asks for a name where there are no dots"
        return node.module
    parts = module.name.split(".")
    up = node.level - 1 if module.is_package else node.level
    anchor = parts[: len(parts) - up]
    return ".".join([*anchor, node.module] if node.module else anchor)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def names_of(modules: Iterable[Module]) -> frozenset[str]:
    return frozenset(module.name for module in modules)


# -- the rules: each gives the places that break it


def may_import(package: str, importer: str, imported: str) -> bool:
    """Whether the part `importer` of a package may import its part `imported`."""
    if importer == imported:
        return True
    if importer == PUBLIC:
        return imported != "cli"
    if imported == PUBLIC:
        return importer in ("cli", "__main__")
    below, above = LEVELS.get((package, imported)), LEVELS.get((package, importer))
    return below is not None and above is not None and below < above


def upward_imports(modules: list[Module]) -> list[str]:
    return [
        str(found)
        for found in imports(modules, names_of(modules))
        if (package := found.module.name.partition(".")[0]) == found.target.partition(".")[0]
        and not may_import(package, found.module.part, part_of(found.target))
    ]


def import_cycles(modules: list[Module]) -> list[str]:
    """Modules that reach themselves through others; the packages are doors, and left out."""
    known = names_of(modules)
    packages = {module.name for module in modules if module.is_package}
    edges: dict[str, set[str]] = {}
    for found in imports(modules, known):
        if found.module.name not in packages and found.target in known - packages:
            edges.setdefault(found.module.name, set()).add(found.target)
    return sorted(name for name in edges if name in reachable(edges, edges[name] - {name}, name))


def room_circles(modules: list[Module]) -> list[str]:
    """Rooms that import from a room inside them which imports from them in turn. The packages
    themselves are no rooms of their own.
    """
    known = names_of(modules)
    packages = {module.name for module in modules if module.is_package}

    def room(name: str) -> str:
        return name if name in packages else name.rpartition(".")[0]

    edges = {(room(i.module.name), room(i.target)) for i in imports(modules, known)
             if i.target in known}  # fmt: skip
    return sorted(
        f"{outer} <-> {inner}"
        for outer, inner in edges
        if "." in outer and inner.startswith(outer + ".") and (inner, outer) in edges
    )


def reachable(edges: dict[str, set[str]], start: set[str], but: str) -> set[str]:
    """The nodes that can be reached from `start`, going on from all of them except `but`."""
    seen: set[str] = set()
    ahead = set(start)
    while ahead:
        part = ahead.pop()
        seen.add(part)
        if part != but:
            ahead |= edges.get(part, set()) - seen
    return seen


def beside_rooms(modules: list[Module]) -> list[str]:
    """Modules that are in no room, and should be."""
    return [
        module.name
        for module in modules
        if not module.is_package
        and module.name.count(".") == 1
        and module.part not in BESIDE_ROOMS[module.name.partition(".")[0]]
    ]


def crowded_rooms(modules: list[Module]) -> list[str]:
    files = Counter(
        module.name if module.is_package else module.name.rpartition(".")[0] for module in modules
    )
    return [f"{room} has {n} files" for room, n in sorted(files.items()) if n > ROOM_FILES_MAX]


def shared_names(modules: list[Module]) -> list[str]:
    """Modules, rooms and classes that have the name of another in their package. A room's first
    module may have the room's name. `aio` has the API's classes again.
    """
    counted = [m for m in modules if m.part != "aio"]
    names = Counter(
        (
            m.name.partition(".")[0],
            "rooms" if m.is_package else "modules",
            m.name.rpartition(".")[2],
        )
        for m in counted
    )
    classes = Counter(
        (m.name.partition(".")[0], "classes", node.name)
        for m in counted
        for node in ast.walk(m.tree)
        if isinstance(node, ast.ClassDef)
    )
    return [
        f"{package} has {n} {kind} {name}"
        for found in (names, classes)
        for (package, kind, name), n in sorted(found.items())
        if n > 1
    ]


def foreign_imports_of_record(kvstore: list[Module]) -> list[str]:
    return [
        str(found)
        for found in imports(kvstore, names_of(kvstore))
        if found.module.part == "record" and not record_may_import(found.target)
    ]


def record_may_import(target: str) -> bool:
    if is_within(target, "kvstore"):
        return part_of(target) in RECORD_MAY_IMPORT_OF_KVSTORE
    return target.partition(".")[0] in RECORD_MAY_IMPORT


def misplaced_imports_of_tiering(kvstore: list[Module]) -> list[str]:
    return [
        str(found)
        for found in imports(kvstore, names_of(kvstore))
        if is_within(found.target, "tiering")
        and not any(is_within(found.module.name, allowed) for allowed in MAY_IMPORT_TIERING)
    ]


def misplaced_imports_by_tiering(tiering: list[Module], kvstore: list[Module]) -> list[str]:
    return [
        str(found)
        for found in imports(tiering, names_of([*kvstore, *tiering]))
        if is_within(found.target, "kvstore")
        and not any(is_within(found.target, allowed) for allowed in TIERING_MAY_IMPORT)
    ]


def registries(modules: list[Module]) -> list[str]:
    """Module-level lists, dicts and sets that begin empty, and weak ones: something is put there
    from elsewhere, which then does not arrive by an argument.
    """
    return [
        f"{module.name}:{node.lineno}"
        for module in modules
        for node in module.tree.body
        if module.name not in MAY_KEEP_CALLS
        and isinstance(node, ast.AnnAssign | ast.Assign)
        and not (isinstance(node, ast.AnnAssign) and "Mapping" in ast.dump(node.annotation))
        and (
            (isinstance(node.value, ast.List) and not node.value.elts)
            or (isinstance(node.value, ast.Dict) and not node.value.keys)
            or (isinstance(node.value, ast.Call) and _makes_collection(node.value))
        )
    ]


def _makes_collection(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2].partition("[")[0]
    return name.startswith("Weak") or (name in ("dict", "list", "set") and not call.args)


def urls_looked_for(modules: list[Module]) -> list[str]:
    """Looks for `://` in a text: whether a place is a URL is asked of the places' settings."""
    return [
        f"{module.name}:{node.lineno}"
        for module in modules
        if module.name != KNOWS_URLS
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.In | ast.NotIn)
        and isinstance(node.left, ast.Constant)
        and node.left.value == "://"
    ]


def ways_past_the_seams(modules: list[Module]) -> list[str]:
    outside = [module for module in modules if module.name not in SEAMS]
    uses = [
        f"{module.name}:{line} uses {name}"
        for module in outside
        for name, line, is_called in outside_names(module.tree)
        if name in PAST_THE_SEAMS
        and (is_called or name not in TYPES)
        and (module.part, name) not in EXCEPTIONS
    ]
    return uses + [str(i) for i in imports(outside, frozenset()) if is_within(i.target, "random")]


def spoiled_waits(modules: list[Module]) -> list[str]:
    """Waits of `threading` that an interrupt spoils: `process.locks` says how, and has another."""
    return [
        f"{module.name}:{line} uses {name}"
        for module in modules
        if module.name != "kvstore.process.locks" and not module.name.startswith(HAVE_NO_CALLER)
        for name, line, is_called in outside_names(module.tree)
        if is_called and name in ("threading.Event", "threading.Condition")
    ]


def outside_names(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Every use of what is imported or built in: its full name, the line, whether it is called."""
    origins = {"open": "open"} | origins_of(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            first, *rest = dotted(node)
            if first in origins:
                yield ".".join([origins[first], *rest]), node.lineno, id(node) in called


def origins_of(tree: ast.Module) -> dict[str, str]:
    """The meaning of each imported name, and "here" for a name that the module itself defines."""
    origins = {
        node.name: "here"
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                origins[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{base}.{alias.name}"
    return origins


def dotted(node: ast.expr) -> list[str]:
    """`a.b.c` as its names; of anything else, such as `f().b`, a first name nothing has."""
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=value, attr=name):
            return [*dotted(value), name]
        case _:
            return [""]


def logged_errors(modules: list[Module]) -> list[str]:
    """Errors that are given to a logger themselves: a handler may keep them, and with them the
    frames of the store and all that these hold.
    """
    return sorted({
        f"{module.name}:{node.lineno}"
        for module in modules
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for errors in [frozenset(names_of_errors(function))]
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and dotted(node.func)[:1] in LOGGERS
        and (
            node.func.attr == "exception"
            or any(keyword.arg == "exc_info" for keyword in node.keywords)
            or any(isinstance(given, ast.Name) and given.id in errors for given in node.args)
        )
    })  # fmt: skip


def names_of_errors(function: ast.AST) -> Iterator[str]:
    """The names that a function binds to errors: caught ones, and those annotated so."""
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name is not None:
            yield node.name
        elif isinstance(node, ast.arg) and is_of_errors(node.annotation):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and is_of_errors(node.annotation):
            yield ast.unparse(node.target)


def is_of_errors(annotation: ast.expr | None) -> bool:
    said = "" if annotation is None else ast.unparse(annotation)
    return "Exception" in said or "Error" in said


def foreign_imports_of_core(name: str, source: str) -> list[str]:
    """The forbidden names in a compiled module; `ast` has no syntax for Cython's source."""
    named = re.findall(r"^\s*(?:from|c?import)\s+([\w.]+)", source, re.MULTILINE)
    return [
        f"{name} imports {target}"
        for target in named
        if not any(is_within(target, allowed) for allowed in CORE_MAY_IMPORT)
    ]


def without_docstring(modules: list[Module]) -> list[str]:
    return [module.name for module in modules if not ast.get_docstring(module.tree)]


def too_long(modules: list[Module]) -> list[str]:
    long_modules = [
        f"{module.name} has {module.line_count} lines"
        for module in modules
        if module.line_count > MODULE_LINES_MAX
    ]
    long_functions = [
        f"{module.name}:{node.lineno} {node.name} has {lines} lines"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    return long_modules + long_functions


def stray_strings(paths: Iterable[Path]) -> list[str]:
    needles = [(text, text.encode()) for text in STRAY]
    return [
        f"{path} holds {text}"
        for path in paths
        if path.is_file() and (data := path.read_bytes())
        for text, needle in needles
        if needle in data
    ]


# -- the rules, held against the source


@pytest.fixture(scope="module")
def kvstore() -> list[Module]:
    return read_modules(ROOT, "kvstore")


@pytest.fixture(scope="module")
def tiering() -> list[Module]:
    """Empty while there is no tiering/."""
    return read_modules(ROOT, "tiering")


def test_the_source_is_where_these_tests_look(kvstore: list[Module]) -> None:
    assert kvstore, "no module was found, so no rule below means anything"


def test_imports_point_down_the_layers(kvstore: list[Module], tiering: list[Module]) -> None:
    assert upward_imports(kvstore) == []
    assert upward_imports(tiering) == []


def test_no_module_imports_itself_through_others(
    kvstore: list[Module], tiering: list[Module]
) -> None:
    assert import_cycles(kvstore + tiering) == []


def test_no_room_imports_from_one_inside_it_that_imports_from_it(
    kvstore: list[Module], tiering: list[Module]
) -> None:
    assert room_circles(kvstore + tiering) == []


def test_every_module_is_in_a_room_and_no_room_is_crowded(
    kvstore: list[Module], tiering: list[Module]
) -> None:
    assert beside_rooms(kvstore + tiering) == []
    assert crowded_rooms(kvstore + tiering) == []


def test_no_two_modules_or_classes_of_a_package_share_a_name(
    kvstore: list[Module], tiering: list[Module]
) -> None:
    assert shared_names(kvstore + tiering) == []


def test_record_stands_on_codecs_and_errors_alone(kvstore: list[Module]) -> None:
    assert foreign_imports_of_record(kvstore) == []


def test_the_core_stands_on_errors_and_numbers_alone() -> None:
    sources = [path for path in CORE.rglob("*") if path.suffix in (".pyx", ".pxd")]
    assert sources
    for path in sources:
        assert foreign_imports_of_core(path.name, path.read_text(encoding="utf-8")) == []


def test_every_compiled_module_says_what_its_idea_is_and_is_short_enough_to_read() -> None:
    for path in CORE.rglob("*.pyx"):
        source = path.read_text(encoding="utf-8")
        assert re.search(r'^"""[^"]+\n\nThe idea: [^"]+\n\nInvariants?: ', source, re.MULTILINE), (
            path
        )
        assert len(source.splitlines()) <= MODULE_LINES_MAX, path


def test_no_line_of_a_compiled_module_is_wider_than_others_may_be() -> None:
    wide = [
        f"{path.name}:{number}"
        for path in sorted(CORE.rglob("*.p[yx]*"))
        if path.suffix in (".pyx", ".pxd", ".pyi")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LINE_WIDTH_MAX
    ]
    assert wide == []


def test_kvstore_meets_tiering_in_one_module_and_the_command_only(kvstore: list[Module]) -> None:
    assert misplaced_imports_of_tiering(kvstore) == []


def test_tiering_imports_formats_and_seams_of_kvstore_only(
    tiering: list[Module], kvstore: list[Module]
) -> None:
    assert misplaced_imports_by_tiering(tiering, kvstore) == []


def test_each_part_of_kvstore_that_tiering_imports_has_its_reason_in_the_decision() -> None:
    decision = ROOT / "docs/decisions/0014-rooms-that-the-drawing-lacks.md"
    section = decision.read_text(encoding="utf-8").partition("## Parts of kvstore")[2]
    assert set(re.findall(r"`(kvstore\.[a-z_.]+)`", section)) == set(TIERING_MAY_IMPORT)


def test_no_module_keeps_a_registry_for_others(
    kvstore: list[Module], tiering: list[Module]
) -> None:
    assert registries(kvstore + tiering) == []


def test_one_module_knows_whether_a_place_is_a_url(tiering: list[Module]) -> None:
    assert urls_looked_for(tiering) == []


def test_files_and_time_are_reached_through_the_seams_only(kvstore: list[Module]) -> None:
    assert ways_past_the_seams(kvstore) == []


def test_no_wait_is_spoiled_by_an_interrupt(kvstore: list[Module], tiering: list[Module]) -> None:
    assert spoiled_waits(kvstore + tiering) == []


def test_a_wait_that_an_interrupt_spoils_is_found() -> None:
    source = "from threading import Event\nstop = Event()"
    assert spoiled_waits([module("kvstore/pop/pop.py", source)])
    assert not spoiled_waits([module("kvstore/cli/tier/run.py", source)])


def test_no_error_itself_is_logged(kvstore: list[Module], tiering: list[Module]) -> None:
    assert logged_errors(kvstore + tiering) == []


def test_every_module_says_what_it_is(kvstore: list[Module], tiering: list[Module]) -> None:
    assert without_docstring(kvstore + tiering) == []


def test_no_module_or_function_is_too_long_to_read(
    kvstore: list[Module], tiering: list[Module]
) -> None:
    assert too_long(kvstore + tiering) == []


def test_no_file_names_a_machine_an_index_or_a_co_author() -> None:
    """Files not yet added count as well: they are about to be."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout to know which files are the project's")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    paths = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    assert stray_strings(paths) == []


# -- the rules, held against source that breaks them


def module(path: str, source: str) -> Module:
    return parse(source, Path(path))


STORE: Final = module("kvstore/api/store.py", "")
WRITER: Final = module("kvstore/engine/writer.py", "")
KEYS: Final = module("kvstore/index/keys.py", "")
INDEX: Final = module("kvstore/index/__init__.py", "")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kvstore/errors.py", "import kvstore.record.layout"),
        ("kvstore/log/flush.py", "from kvstore.index.keys import RUN"),
        ("kvstore/log/flush.py", "from ..index import keys"),
        ("kvstore/index/keys.py", "from kvstore.log import flush"),
        ("kvstore/meta/topics.py", "def f():\n    from kvstore.pop import take"),
        ("kvstore/pop/pop.py", "from kvstore.api import store"),
        ("kvstore/rocketmq/adopt.py", "from ..api.store import Store"),
        ("kvstore/engine/writer.py", "from ..api import store"),
        ("kvstore/api/store.py", "from kvstore.cli import main"),
        ("kvstore/api/store.py", "import kvstore"),
        ("kvstore/api/store.py", "from kvstore import open"),
        ("kvstore/__init__.py", "from .cli import main"),
        ("kvstore/other/new.py", "import kvstore.errors"),
        ("tiering/archive/block.py", "import tiering.places.place"),
    ],
)
def test_an_import_up_the_layers_is_found(path: str, source: str) -> None:
    assert len(upward_imports([module(path, source), STORE, KEYS, INDEX])) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kvstore/files.py", "from kvstore.errors import DiskFull"),
        ("kvstore/log/flush.py", "from kvstore.log import append"),
        ("kvstore/pop/pop.py", "from ..index import keys"),
        ("kvstore/api/store.py", "from kvstore.engine import writer"),
        ("kvstore/api/read_calls.py", "import kvstore.engine.writer"),
        ("kvstore/cli/demo.py", "import kvstore"),
        ("kvstore/__init__.py", "from kvstore.api.store import Store"),
        ("kvstore/engine/writer.py", "import os, kvstores"),
        ("tiering/merge/merge.py", "import tiering.archive.block, kvstore.errors"),
    ],
)
def test_an_import_down_the_layers_is_let_pass(path: str, source: str) -> None:
    assert upward_imports([module(path, source), STORE, WRITER, KEYS, INDEX]) == []


def test_a_cycle_within_a_room_is_found() -> None:
    pull = module("kvstore/read/pull.py", "from kvstore.read import cold")
    cold = module("kvstore/read/cold.py", "from kvstore.read import pull")
    assert import_cycles([pull, cold]) == ["kvstore.read.cold", "kvstore.read.pull"]
    assert import_cycles([pull]) == []


def test_a_module_beside_the_rooms_and_a_crowded_room_are_found() -> None:
    room = [module(f"tiering/merge/m{n}.py", "") for n in range(ROOM_FILES_MAX + 1)]
    assert beside_rooms([module("kvstore/writer.py", ""), *room]) == ["kvstore.writer"]
    assert crowded_rooms(room) == [f"tiering.merge has {ROOM_FILES_MAX + 1} files"]
    assert crowded_rooms(room[1:]) == []


def test_names_that_a_package_has_twice_are_found() -> None:
    twice = [module(f"tiering/{room}/plan.py", "class _Plan: ...") for room in ("merge", "policy")]
    assert shared_names(twice) == ["tiering has 2 modules plan", "tiering has 2 classes _Plan"]
    assert shared_names([twice[0], module("kvstore/read/plan.py", "class _Plan: ...")]) == []
    rooms = [module(f"tiering/{room}/__init__.py", "") for room in ("jobs", "spark/jobs")]
    assert shared_names([*rooms, module("tiering/jobs/jobs.py", "")]) == [
        "tiering has 2 rooms jobs"
    ]


@pytest.mark.parametrize("source", ["import rocksdict", "from kvstore.files import Files"])
def test_an_import_beyond_codecs_in_record_is_found(source: str) -> None:
    allowed = "import struct, numpy as np\nfrom kvstore.errors import FormatError\n"
    modules = [module("kvstore/record/layout.py", allowed + source)]
    assert len(foreign_imports_of_record(modules)) == 1


@pytest.mark.parametrize(
    "source", ["import rocksdict", "    from os cimport open", "from kvstore.record import layout"]
)
def test_an_import_beyond_errors_and_numbers_in_the_core_is_found(source: str) -> None:
    allowed = "from libc.stdint cimport int64_t\nfrom kvstore.core.buffers cimport View\n"
    assert len(foreign_imports_of_core("new.pyx", allowed + source)) == 1


@pytest.mark.parametrize(
    "source", ["import kvstore", "from kvstore.index import runs", "import kvstore.api.store"]
)
def test_an_import_of_the_engine_in_tiering_is_found(source: str) -> None:
    allowed = "from kvstore.index import keys\nfrom kvstore.record.layout import HEADER\n"
    modules = [module("tiering/operations/worker.py", allowed + source)]
    assert len(misplaced_imports_by_tiering(modules, [KEYS, INDEX, STORE])) == 1


def test_an_import_of_tiering_below_the_store_is_found() -> None:
    source = "import tiering.catalog.catalog"
    assert len(misplaced_imports_of_tiering([module("kvstore/read/reader.py", source)])) == 1
    assert len(misplaced_imports_of_tiering([module("kvstore/api/calls.py", source)])) == 1
    assert misplaced_imports_of_tiering([module("kvstore/api/store.py", source)]) == []


@pytest.mark.parametrize(
    "source",
    [
        "_viewers: list[int] = []",
        "_seen = {}",
        "_of: WeakSet[int] = WeakSet()",
        "_kept = set[int]()",
    ],
)
def test_a_registry_is_found(source: str) -> None:
    kept = "def f():\n    kept = []\nNAMES = ['a']\n"
    assert len(registries([module("kvstore/engine/writer.py", kept + source)])) == 1


@pytest.mark.parametrize(
    "source",
    [
        "open('f')",
        "from io import open\nopen('f')",
        "import os\nos.fsync(3)",
        "import os as o\no.fdatasync(3)",
        "from os import fsync as f\nf(3)",
        "import mmap\nmmap.mmap(3, 0)",
        "import time\ntime.time()",
        "from time import sleep\nsleep(1)",
        "import time\nnow = time.monotonic",
        "import datetime as d\nd.datetime.now()",
        "from random import random\nrandom()",
        "def f():\n    import random\n    return random.Random(1)",
    ],
)
def test_a_way_past_the_seams_is_found(source: str) -> None:
    assert len(ways_past_the_seams([module("kvstore/engine/writer.py", source)])) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def open(path): ...\nopen('d')",
        "from kvstore.api.store import open\nopen('d')",
        "files.open('f')",
        "import os\nos.path.join('a', 'b')",
        "import time\ntime.strftime('%H')",
        "clock.sleep(1)",
        "from mmap import mmap\nBuffer = mmap | bytes",
    ],
)
def test_what_only_looks_like_a_way_past_the_seams_is_let_pass(source: str) -> None:
    assert ways_past_the_seams([module("kvstore/engine/writer.py", source)]) == []


def test_the_seams_themselves_may_do_what_they_are_for() -> None:
    assert ways_past_the_seams([module("kvstore/files.py", "import os\nos.fsync(3)")]) == []


CATCHES: Final = """def f(why: Exception, found: int | OSError) -> None:
    try:
        g()
    except ValueError as e:
    """


@pytest.mark.parametrize(
    "source",
    [
        "    _log.warning('%s: %s', 1, e)",
        "    _log.warning('of %s', 1, exc_info=True)",
        "    _log.exception('it failed')",
        "    _log.error('%s', why)",
        "    logging.error(found)",
    ],
)
def test_an_error_that_is_logged_itself_is_found(source: str) -> None:
    found = logged_errors([module("tiering/worker/worker.py", CATCHES + source)])
    assert found == ["tiering.worker.worker:5"]


def test_a_room_that_imports_what_stands_on_it_is_found() -> None:
    package = module("kvstore/read/__init__.py", "")
    inner = module("kvstore/read/sql/__init__.py", "")
    low = module("kvstore/read/faults.py", "")
    high = module("kvstore/read/filters.py", "from kvstore.read.sql import grammar")
    up = module("kvstore/read/sql/grammar.py", "from kvstore.read import faults")
    assert room_circles([package, inner, low, high, up]) == ["kvstore.read <-> kvstore.read.sql"]
    assert room_circles([package, inner, low, up]) == []


def test_a_module_that_looks_for_urls_itself_is_found() -> None:
    source = "def f(where: str) -> bool:\n    return '://' not in where"
    assert urls_looked_for([module("tiering/spark/options.py", source)])
    assert not urls_looked_for([module("tiering/places/settings.py", source)])


def test_the_text_of_an_error_may_be_logged() -> None:
    source = "    _log.warning('%s: %s', e.errno, str(e))\ndef g(e: str):\n    _log.warning(e)"
    assert logged_errors([module("tiering/worker/worker.py", CATCHES + source)]) == []


def test_a_module_without_a_docstring_is_found() -> None:
    assert without_docstring([module("kvstore/a.py", "x = 1")]) == ["kvstore.a"]


def test_what_is_too_long_is_found() -> None:
    body = "    pass\n"
    longest = "def f():\n" + body * (FUNCTION_LINES_MAX - 1)
    assert too_long([module("kvstore/a.py", longest)]) == []
    assert len(too_long([module("kvstore/a.py", longest + body)])) == 1
    assert too_long([module("kvstore/a.py", "\n" * MODULE_LINES_MAX)]) == []
    assert len(too_long([module("kvstore/a.py", "\n" * (MODULE_LINES_MAX + 1))])) == 1


@pytest.mark.parametrize("text", STRAY)
def test_a_stray_string_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "clean").write_text("a work in progress")
    (tmp_path / "stray").write_text(f"see {text} for more")
    assert len(stray_strings(sorted(tmp_path.iterdir()))) == 1
