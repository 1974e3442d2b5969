"""The suite h2spec finds no fault in the server, with TLS and without.

It is a Go program. Where `h2spec` is on the PATH it is used; else, where `go` is, it is built from
the Go module proxy, once, into build/h2spec. On a machine without both, `go install
github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible` elsewhere makes a binary that needs
nothing else; put it on the PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from kvstore.serve.http2.h2_server import server_tls
from tests.support.certificates import make_certificate
from tests.support.grpc_serving import ECHO, serving

_BUILT: Final = Path(__file__).resolve().parents[3] / "build/h2spec"
_SOURCE: Final = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
_SUMMARY: Final = re.compile(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed")


@pytest.fixture(scope="module")
def h2spec() -> str:
    found = shutil.which("h2spec") or shutil.which("h2spec", path=_BUILT)
    if found is None:
        go = shutil.which("go")
        if go is None:
            pytest.skip("needs h2spec on the PATH, or go to build it")
        into = {**os.environ, "GOBIN": str(_BUILT), "GOFLAGS": "-mod=mod"}
        built = subprocess.run(
            [go, "install", _SOURCE],
            env=into,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        if built.returncode:
            pytest.skip(f"go can't build h2spec: {built.stderr[-300:]}")
        found = str(_BUILT / "h2spec")
    return found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("words", [(), ("--tls", "--insecure")], ids=["plaintext", "tls"])
def test_every_test_of_h2spec_passes(h2spec: str, words: tuple[str, ...], tmp_path: Path) -> None:
    tls = server_tls(*make_certificate(tmp_path))
    with serving(ECHO, tls=tls) as made:
        ran = subprocess.run(
            # So many seconds a test may take on a machine that is busy otherwise.
            [h2spec, "--strict", "--timeout", "20", "--port", str(made.port), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    found = _SUMMARY.search(ran.stdout)
    assert found is not None, ran.stdout + ran.stderr
    total, passed, skipped, failed = map(int, found.groups())
    assert (passed, skipped, failed) == (total, 0, 0), ran.stdout[-5000:]
    assert total > 140
