"""The archive: its format (docs/archive.md), its writer, its reader and its check.

In here: the bytes of one archive, whatever keeps them. Not in here: where archives are kept
(`places`), which archives a store has (`catalog`), and when one is made (`policy`, `worker`). Begin
with `layout`, then `archive_reader`; `writer` with `block_writer` is the other direction.
`external_sort` and `tail_columns` keep a writer's memory small.
`columns` packs the fields of records; `directory` and `indexes` find a block, a position or a key.
`archive_check` goes through a whole archive. May import `keys`.
"""
