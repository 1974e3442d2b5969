"""Messages that are put: checked, and turned into record bytes but for position and offset.

Begin with `prepare`; `batch` encodes, `single` does the same for one ordinary message, `explain`
says which message of a refused batch is wrong.
"""
