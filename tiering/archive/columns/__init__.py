"""Columns: the fields of many records, packed by kind.

Begin with `header_fields` and `properties`; `integers` and `text_columns` are what they are made
of.
"""
