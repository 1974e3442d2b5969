"""`kvmq stats`, `verify`, `rebuild`, `import`: the verbs that look at a whole store."""

from __future__ import annotations

import shutil
from pathlib import Path

import kvstore
from tests.cli.conftest import SMALL, Kvmq


def damage(folder: Path, needle: bytes) -> None:
    """Change one byte of the log, in a body."""
    path = min((folder / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[data.index(needle)] ^= 1
    path.write_bytes(data)


def test_stats_are_a_table_for_people_and_json_for_machines(kvmq: Kvmq, folder: Path) -> None:
    assert isinstance(kvmq("stats", folder, "--json").json, dict)
    assert "value" in kvmq("stats", folder).out


def test_a_sound_store_verifies(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("verify", folder)
    assert ran.code == 0
    assert "no problem found" in ran.out
    found = kvmq("verify", folder, "--json").json
    assert (found["problems"], found["records"]) == ([], 41)


def test_damage_is_shown_and_is_exit_code_1(kvmq: Kvmq, folder: Path) -> None:
    damage(folder, b"order 17")
    ran = kvmq("verify", folder, "--json")
    assert ran.code == 1
    assert len(ran.json["problems"]) >= 1
    plain = kvmq("verify", folder)
    assert plain.code == 1
    assert "problems" in plain.out
    assert "no problem" not in plain.out


def test_rebuild_brings_back_a_lost_index(kvmq: Kvmq, folder: Path) -> None:
    before = kvmq("pull", folder, "orders", "--all", "--json").lines
    ran = kvmq("rebuild", folder, "--json")
    assert ran.code == 0, ran.err
    assert isinstance(ran.json, dict)
    assert kvmq("pull", folder, "orders", "--all", "--json").lines == before
    assert len(kvmq("query", folder, "orders", "c-4", "--json").lines) == 5
    assert kvmq("rebuild", folder).code == 0


def test_verify_and_rebuild_want_a_store(kvmq: Kvmq, tmp_path: Path) -> None:
    for verb in ("stats", "verify", "rebuild"):
        ran = kvmq(verb, tmp_path / "no", "--json")
        assert (ran.code, ran.error["error"]) == (1, "StoreNotFound"), verb
    assert kvmq("import", tmp_path / "no", tmp_path / "new", "--json").code == 1
    assert not (tmp_path / "no").exists()


def test_import_adopts_a_folder_that_holds_only_a_log(
    kvmq: Kvmq, folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "rocketmq"
    shutil.copytree(folder / "commitlog", source / "commitlog")
    ran = kvmq("import", source, tmp_path / "adopted", "--json")
    assert ran.code == 0, ran.err
    assert any("topic 'orders' was not known" in p for p in ran.json["recovery"]["problems"])
    found = kvmq("pull", tmp_path / "adopted", "orders", "--all", "--json").lines
    assert len(found) == 41


def test_a_target_that_cannot_be_made_is_said_with_its_name(
    kvmq: Kvmq, folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "rocketmq"
    shutil.copytree(folder / "commitlog", source / "commitlog")
    (tmp_path / "file").write_bytes(b"x")
    for target in (tmp_path / "file" / "new", Path("/proc/no/such/place")):
        ran = kvmq("import", source, target, "--json")
        assert (ran.code, ran.error["error"]) == (1, "CallerError")
        assert ran.error["message"].startswith(f"{target} can't be made: ")


def test_a_store_that_is_held_is_an_error_that_names_the_holder(kvmq: Kvmq, folder: Path) -> None:
    with kvstore.open(folder, config=SMALL):
        ran = kvmq("put", folder, "orders", "--body", "x", "--json")
        assert (ran.code, ran.error["error"]) == (1, "StoreLocked")


def test_a_store_that_is_held_can_be_read(kvmq: Kvmq, folder: Path) -> None:
    with kvstore.open(folder, config=SMALL):
        assert kvmq("pull", folder, "orders", "--json").json["status"] == "FOUND"
