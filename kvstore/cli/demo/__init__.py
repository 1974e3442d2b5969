"""The verb `demo`: the store's main job, on real input, with every answer checked.

- `sources`: what is put: Python's standard library, files, standard input; readable twice.
- `kinds`: what kind of line a line of Python is.
- `load`: puts a source, and remembers a fair sample.
- `checks`: reads everything back and compares it with the source, read a second time.
- `tiers`: puts the cold half into archives, and reads across tiers.
- `crash`, `writer`: a child process killed while it writes, and what is there afterwards.
- `showing`: the one screen that comes of it.
- `command`: the verb.
"""

from __future__ import annotations

from kvstore.cli.demo.command import demo

__all__ = ["demo"]
