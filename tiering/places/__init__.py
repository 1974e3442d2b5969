"""Places: folders and object stores that keep archives, and putting an archive into one.

In here: the seam `Place` and its two kinds, settings and errors of places, retries, and publishing
an object: announced before it is put, read back after. `commits` has the commits of Spark jobs. Not
in here: the bytes of an archive (`archive`), and which archives a store has (`catalog`). Begin with
`place`, then `local` and `object_store`; `publish` is the way of a new archive. May import
`archive` and `keys`.
"""
