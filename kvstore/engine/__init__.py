"""The engine of an open store: writing, checkpoints, retention, verification, figures.

In here: the work that a store does whether or not a call asks for it. Not in here: choosing the
messages a group gets, which is `pop`, and making an index, which is `opening`. Begin with `writer`,
then `upkeep`, which has the housekeeper; `segment_handover` has the calls of a tiering worker. May
import `opening` and the rooms below it.
"""
