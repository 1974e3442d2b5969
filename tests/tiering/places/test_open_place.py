"""The names of places, their settings, and the refusal of wrong ones."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

import pytest

from tests.tiering.places.buckets import SECRET
from tiering.errors import ExtraMissing, PlaceError, PlaceIllegal
from tiering.places.place import open_place

KEYS: Final = {"access_key_id": "tester", "secret_access_key": SECRET}


@pytest.mark.parametrize("address", ["{}/a b", "file://{}/a%20b", "file://localhost{}/a%20b"])
def test_a_path_and_a_file_url_name_a_folder(tmp_path: Path, address: str) -> None:
    place = open_place(address.format(tmp_path))
    place.check(create=True)
    place.put("a", b"x")
    assert (tmp_path / "a b" / "a").read_bytes() == b"x"
    assert place.name == str(tmp_path / "a b")


def test_a_relative_path_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = open_place(Path("archives"))
    monkeypatch.chdir("/")
    place.check(create=True)
    assert (tmp_path / "archives").is_dir()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket", KEYS),
        ("s3://bucket/a/b", KEYS),
        ("gs://bucket/a", {"skip_signature": True}),
        ("az://container/a", {"account_name": "name", "account_key": "c2VjcmV0"}),
    ],
)
def test_a_url_names_a_bucket_and_a_folder_in_it(url: str, options: dict[str, object]) -> None:
    pytest.importorskip("obstore")
    place = open_place(url + "/?timeout=3", options=options)
    assert place.name == url
    assert SECRET not in repr(place)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "a\0b",
        "s3://",
        "s3:///folder",
        "s3://b",
        "s3://bu cket",
        "s3://bucket/../other",
        "s3://bucket/a//b",
        "s3://bucket/.hidden",
        "s3://bucket:99/a",
        "s3://bucket#part",
        "s3://[bucket/a",
        "s3:/bucket",
        "http://host/bucket",
        "ftp://host",
        "file://host/path",
        "file://relative",
        f"s3://user:{SECRET}@bucket",
        f"s3://bucket?secret_access_key={SECRET}",
        f"s3://bucket?AWS_SECRET_ACCESS_KEY={SECRET}",
        f"s3://bucket?access_key_id={SECRET}",
        f"s3://bucket?session_token={SECRET}",
        f"az://bucket?sas_key={SECRET}",
        f"s3://bucket?endpoint=http://user:{SECRET}@host",
    ],
)
def test_what_names_no_place_is_refused_without_quoting_secrets(address: str) -> None:
    with pytest.raises(PlaceIllegal) as error:
        open_place(address)
    assert isinstance(error.value, PlaceError)
    assert isinstance(error.value, ValueError)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(("bucket", "count"), [("ab", 2), ("a" * 256, 256)])
def test_a_buckets_name_that_is_too_short_or_too_long_is_told_so(bucket: str, count: int) -> None:
    with pytest.raises(PlaceIllegal, match=rf"has {count} characters.* fewer than 3"):
        open_place(f"s3://{bucket}/folder")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", "soon"),
        ("timeout", -1),
        ("timeout", "nan"),
        ("retry_for", "inf"),
        ("upload_timeout", None),
        ("connect_timeout", True),
        ("whole_put_bytes", 1 << 40),
        ("endpoint", "host:9000"),
        ("endpoint", "http://["),
        ("endpoint", "http://"),
        ("endpoint", "http://host:port"),
        ("endpoint", 3),
        ("no_such_setting", "1"),
        ("virtual_hosted_style_request", SECRET),
        ("allow_http", SECRET),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_named(name: str, value: Any) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(PlaceIllegal, match=name) as error:
        open_place("s3://bucket", options={**KEYS, name: value})
    assert SECRET not in str(error.value)


def test_a_folder_has_no_settings_of_buckets(tmp_path: Path) -> None:
    open_place(tmp_path, options={"retry_for": 3})
    with pytest.raises(PlaceIllegal, match="not endpoint"):
        open_place(tmp_path, options={"endpoint": "http://host"})
    with pytest.raises(PlaceIllegal, match="retry_for is a number"):
        open_place(f"file://{tmp_path}?retry_for=long")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_in_the_environment_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv(name, f"http://{SECRET}@[")
    with pytest.raises(PlaceIllegal, match="endpoint") as error:
        open_place("s3://bucket", options=KEYS)
    assert SECRET not in str(error.value)


def test_without_the_client_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ExtraMissing, match=r"kvmq\[cloud\]"):
        open_place("s3://bucket")
    open_place(tmp_path).check()
