"""The files in `deploy/` start the server that they say: by verbs and options that there are, of an
install that has what these take.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests.cli.conftest import Kvmq

ROOT: Final = Path(__file__).resolve().parents[2]
UNIT: Final = ROOT / "deploy" / "kvmq.service"
CONTAINERFILE: Final = ROOT / "deploy" / "Containerfile"
INSTALLED: Final = "/opt/kvmq/bin/kvmq"

LIMITED: Final = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

HIDDEN = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, NotInstalled())
from kvstore.cli import main
main()
"""
"""The command, in a Python that lacks some modules."""


def started(path: Path) -> list[str]:
    """The words of the command that a file starts."""
    text = path.read_text()
    if path == UNIT:
        (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        return shlex.split(line)
    (line,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    words: list[str] = json.loads(line)
    return words


def extras(path: Path) -> set[str]:
    """The extras with which a file installs kvmq."""
    installs = [
        shlex.split(line.partition("pip install")[2])[-1]
        for line in path.read_text().splitlines()
        if "pip install" in line
    ]
    assert len(installs) == 1
    return set(Requirement(re.sub("^[^[]*", "kvmq", installs[0])).extras)


def packages(name: str, extras: set[str]) -> set[str]:
    """The packages that an install of one brings."""
    found = {name}
    for line in importlib.metadata.requires(name) or ():
        one = Requirement(line)
        mark = one.marker
        is_asked = mark is None or any(mark.evaluate({"extra": e}) for e in extras or {""})
        if is_asked and one.name.lower() not in found:
            found |= packages(one.name.lower(), one.extras)
    return found


def hidden(extras: set[str]) -> str:
    """The modules that an install with these extras does not have, joined by commas."""
    there = {one.replace("_", "-") for one in packages("kvmq", extras) | packages("kvmq", set())}
    tops = importlib.metadata.packages_distributions().items()
    return ",".join(
        top for top, names in tops if not {n.lower().replace("_", "-") for n in names} & there
    )


@pytest.mark.parametrize("path", [UNIT, CONTAINERFILE], ids=lambda path: path.name)
def test_the_command_of_a_file_is_there_and_so_are_its_options(path: Path, kvmq: Kvmq) -> None:
    program, verb, folder, *options = started(path)

    assert program == INSTALLED
    assert folder.startswith("/")
    ran = kvmq(verb, "--help")
    assert ran.code == 0
    named = [option for option in options if option.startswith("--")]
    assert named
    assert [option for option in named if f"{option} " not in ran.out] == []


@pytest.mark.parametrize("path", [UNIT, CONTAINERFILE], ids=lambda path: path.name)
def test_an_install_as_a_file_does_it_opens_all_doors(path: Path, tmp_path: Path) -> None:
    options = started(path)[3:]
    doors = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-c", LIMITED, hidden(extras(path)), "serve", tmp_path / "s",
         *options, *doors],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            said = [server.stdout.readline() for _ in range(3)]
        finally:
            server.terminate()
        assert server.wait(30) == 0, server.stderr.read()
    assert all(said), said


@pytest.mark.parametrize(("door", "package"), [("--grpc", "protobuf"), ("--http", "h11")])
def test_without_the_extra_a_door_names_the_package_and_the_install(
    door: str, package: str, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, hidden(set()), "serve", tmp_path / "s", "--create",
         door, "127.0.0.1:0"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode != 0
    assert f"{door} takes the package {package}" in ran.stderr
    assert "pip install 'kvmq[serve]'" in ran.stderr


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("there is no systemd-analyze")
    own = tmp_path / UNIT.name
    own.write_text(UNIT.read_text().replace(INSTALLED, sys.executable))
    ran = subprocess.run(
        [systemd, "verify", own], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.long
def test_the_container_is_built(tmp_path: Path) -> None:
    engine = next((e for e in map(shutil.which, ("podman", "docker")) if e is not None), None)
    if (
        engine is None
        or subprocess.run([engine, "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no container engine answers")
    tag = f"kvmq-test-{tmp_path.name}"
    build = [engine, "build", "--file", str(CONTAINERFILE), "--tag", tag, str(ROOT)]
    ran = subprocess.run(build, capture_output=True, text=True, check=False, timeout=1800)
    assert ran.returncode == 0, ran.stderr[-2000:]
    doors = [engine, "run", "--rm", "--entrypoint", INSTALLED, tag, "serve", "--help"]
    assert "--grpc" in subprocess.run(doors, capture_output=True, text=True, check=True).stdout
    subprocess.run([engine, "rmi", tag], capture_output=True, check=True)
