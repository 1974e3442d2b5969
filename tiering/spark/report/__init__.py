"""Report: the figures of archives and stores that operators ask for, as SQL views and as a page.

Begin with `views`.

- `tables`: messages and bytes by topic, tier and day, and the list of archives, as tables of Spark.
- `views`: the views, made by `create_views`.
- `figures`, `gather`: a report's figures, as values, and Spark asked for them.
- `page`, `texts`: the same as a page of HTML (of `templates/`), and how its numbers are written.

Not in here: the verb that asks for a report (`kvstore.cli.spark`). May import the modules of
`spark`, `spark.source`, and the rooms below `spark`.
"""

from __future__ import annotations

from tiering.spark.report.views import VIEWS, create_views

__all__ = ["VIEWS", "create_views"]
