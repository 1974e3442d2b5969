"""The in-flight table: a group's lock rows of a topic, and the pops that wait for one.

Begin with `table`; `tables` keeps those of a store, `lock_rows` is the rows as bytes.
"""
