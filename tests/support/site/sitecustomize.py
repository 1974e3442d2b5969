"""Python runs this first in the processes that tests start: their disks are half full as well.

Most of them never import kvmq, and importing it takes longer than all else that they do; so the
change waits until a process imports `kvstore.files`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_CHANGED = "kvstore.files"


class _OnImport:
    """Finds `kvstore.files` as Python would, and changes it once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _CHANGED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_change(module: ModuleType) -> None:
                load(module)
                from tests.support.disk import half_full

                half_full(module.LocalFiles)

            spec.loader.exec_module = load_and_change  # type: ignore[method-assign]  # its own one
        return spec


sys.path.append(str(Path(__file__).parents[3]))
sys.meta_path.insert(0, _OnImport())
