"""Columns: the fields of many records, packed by kind.

In here: a group's fields <-> bytes, uncompressed. Not in here: compression and encryption
(`archive.coder`) and the cutting into blocks (`archive.block_writer`). Begin with `header_fields`
and `properties`; both are built on `integers` and `text_columns`. May import every room that
`archive` may.
"""
