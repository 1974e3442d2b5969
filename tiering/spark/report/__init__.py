"""Report: the figures of archives and stores that operators ask for, as SQL views and as a page.

Begin with `views`.

- `counting`: messages and bytes by topic, tier and day, without reading bodies.
- `tables`: these counts, and the list of archives, as tables of Spark.
- `views`: the views, made by `create_views`.
- `figures`, `gather`: a report's figures, as values, and Spark asked for them.
- `page`, `plots`, `texts`: the same as a page of HTML (of `templates/`), its plots, its numbers.
"""

from __future__ import annotations

from tiering.spark.report.views import VIEWS, create_views

__all__ = ["VIEWS", "create_views"]
