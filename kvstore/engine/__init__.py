"""The engine of an open store: writing, checkpoints, retention, verification, figures.

In here: what a store does whether or not it is asked. Which messages a group gets is `pop`; how an
index is made is `opening`. Begin with `writer`, then `upkeep` and `housekeeper`; `segment_handover`
is what a tiering worker asks for. May import `opening` and the rooms below it.
"""
