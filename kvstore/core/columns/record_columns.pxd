"""See record_columns.pyx."""

cdef enum:
    # The rows of a table of records' numbers, in this order.
    QUEUE = 0
    FLAGS = 1
    OFFSET = 2
    POSITION = 3
    SYSTEM_FLAGS = 4
    BORN_AT = 5
    BORN_HOST = 6
    STORED_AT = 7
    STORE_HOST = 8
    RECONSUME_TIMES = 9
    PREPARED_POSITION = 10
    VERSION = 11
    NUMBERS = 12
