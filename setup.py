"""The compiled modules of the core, for setuptools; all else that it asks is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            path.with_suffix("").as_posix().replace("/", "."),
            [path.as_posix()],
            extra_compile_args=["-O3"],
        )
        for path in sorted(Path("kvstore/core").rglob("*.pyx"))
    ]
)
