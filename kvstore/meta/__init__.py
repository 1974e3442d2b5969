"""Topics, groups and offsets as rows."""
