# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Receipts: the texts that prove deliveries, and the messages that are handed out with them.

The idea: all messages of a lock row share the first part of their receipts, its head, in which are
the row's key and the delivery's nonce; behind it come a message's bit in the row, and a tag.

    head: group 4 | topic 4 | due 8 | queue 4 | first offset 8 | nonce 8 || bit 1 | tag 6

All tags of a row are slices of one SHAKE-128 over the store's secret and the head, so one hash
makes or checks many receipts. A `Popped` knows its delivery and bit, and its receipt is made when
somebody looks. An ack takes many receipts apart at once, and gives rows and bitmaps.

Invariants: a text that was changed anywhere, or made by another store, is `ReceiptIllegal`; the
same delivery always has the same receipts; nothing here knows whether a delivery is over.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from kvstore.core.buffers cimport grown, load_be32, load_be64, store_be32, store_be64
from kvstore.core.messages cimport StoredMessage
from kvstore.core.put_values cimport fields_of, replaced, shown

from kvstore.errors import ReceiptIllegal
from kvstore.errors import shown as shortened

cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 highest)
    void *PyUnicode_DATA(object text)
    bint PyUnicode_IS_ASCII(object text)

cdef extern from *:
    """
    /* FIPS 202: Keccak-f[1600]. */
    static const uint64_t KECCAK_ROUNDS[24] = {
        0x1u, 0x8082u, 0x800000000000808Au, 0x8000000080008000u, 0x808Bu, 0x80000001u,
        0x8000000080008081u, 0x8000000000008009u, 0x8Au, 0x88u, 0x80008009u, 0x8000000Au,
        0x8000808Bu, 0x800000000000008Bu, 0x8000000000008089u, 0x8000000000008003u,
        0x8000000000008002u, 0x8000000000000080u, 0x800Au, 0x800000008000000Au,
        0x8000000080008081u, 0x8000000000008080u, 0x80000001u, 0x8000000080008008u,
    };
    #define KECCAK_TURN(lane, by) ((lane) << (by) | (lane) >> (64 - (by)))
    #define KECCAK_MOVE(to, by) lane = a[to]; a[to] = KECCAK_TURN(moved, by); moved = lane;
    static void keccak_permute(uint64_t *a) {
        uint64_t sums[5], lane, moved;
        for (int n = 0; n < 24; n++) {
            for (int i = 0; i < 5; i++)
                sums[i] = a[i] ^ a[i + 5] ^ a[i + 10] ^ a[i + 15] ^ a[i + 20];
            for (int i = 0; i < 5; i++) {
                lane = sums[(i + 4) % 5] ^ KECCAK_TURN(sums[(i + 1) % 5], 1);
                for (int j = 0; j < 25; j += 5) a[j + i] ^= lane;
            }
            moved = a[1];
            KECCAK_MOVE(10, 1) KECCAK_MOVE(7, 3) KECCAK_MOVE(11, 6) KECCAK_MOVE(17, 10)
            KECCAK_MOVE(18, 15) KECCAK_MOVE(3, 21) KECCAK_MOVE(5, 28) KECCAK_MOVE(16, 36)
            KECCAK_MOVE(8, 45) KECCAK_MOVE(21, 55) KECCAK_MOVE(24, 2) KECCAK_MOVE(4, 14)
            KECCAK_MOVE(15, 27) KECCAK_MOVE(23, 41) KECCAK_MOVE(19, 56) KECCAK_MOVE(13, 8)
            KECCAK_MOVE(12, 25) KECCAK_MOVE(2, 43) KECCAK_MOVE(20, 62) KECCAK_MOVE(14, 18)
            KECCAK_MOVE(22, 39) KECCAK_MOVE(9, 61) KECCAK_MOVE(6, 20) KECCAK_MOVE(1, 44)
            for (int j = 0; j < 25; j += 5) {
                for (int i = 0; i < 5; i++) sums[i] = a[j + i];
                for (int i = 0; i < 5; i++)
                    a[j + i] = sums[i] ^ (~sums[(i + 1) % 5] & sums[(i + 2) % 5]);
            }
            a[0] ^= KECCAK_ROUNDS[n];
        }
    }
    """
    uint64_t bswap64 "__builtin_bswap64"(uint64_t word) noexcept nogil
    void keccak_permute(uint64_t *lanes) noexcept nogil

cdef enum:
    KEY = RECEIPT_KEY
    HEAD = RECEIPT_HEAD
    TAG = 6
    BITS = 256
    # Those that hold them.
    WORDS = 4
    HEAD_CHARS = RECEIPT_HEAD_CHARS
    TAG_AT = HEAD_CHARS + 2
    CHARS = TAG_AT + 2 * TAG
    LANES = 25
    # SHAKE-128: bytes of a block, of which the secret, the head and the padding take one.
    RATE = 168
    SECRET_MAX = 128
    # Tags that one block has.
    OF_BLOCK = 28

cdef const char *_DIGITS = b"0123456789abcdef"
RECEIPT_CHARS = CHARS


cdef inline void _write_hex(const uint8_t *raw, Py_ssize_t size, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        out[2 * i] = <uint8_t>_DIGITS[raw[i] >> 4]
        out[2 * i + 1] = <uint8_t>_DIGITS[raw[i] & 15]


cdef inline int _digit(uint8_t char) noexcept nogil:
    # Lower case alone, as it is written; -1 for any other.
    if c'0' <= char <= c'9':
        return char - c'0'
    return char - c'a' + 10 if c'a' <= char <= c'f' else -1


cdef bint _read_hex(const uint8_t *text, Py_ssize_t size, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    cdef int high, low
    for i in range(size):
        high, low = _digit(text[2 * i]), _digit(text[2 * i + 1])
        if high < 0 or low < 0:
            return False
        out[i] = <uint8_t>(high << 4 | low)
    return True


cdef tuple _key_of(const uint8_t *head):
    return (
        load_be32(head), load_be32(head + 4), load_be64(head + 8), load_be32(head + 16),
        load_be64(head + 20),
    )


cdef tuple _row_of(const uint8_t *last):
    # The key and the nonce. Of a copy: making a tuple may collect garbage, and so let other threads
    # turn to another head.
    cdef uint8_t head[HEAD]
    memcpy(head, last, HEAD)
    return _key_of(head), load_be64(head + KEY)


@cython.no_gc
@cython.auto_pickle(False)
cdef class Receipts:
    def __cinit__(self, bytes secret not None):
        if not 0 < len(secret) <= SECRET_MAX:
            raise ValueError(f"a secret takes 1 to {SECRET_MAX} bytes, not {len(secret)}")
        self._secret = secret
        self._last.count = self._last.heads = 0

    cdef void _sign(self, const uint8_t *head, int count, uint8_t *tags) noexcept:
        cdef uint64_t state[LANES]
        cdef uint8_t block[RATE]
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._secret), i, wanted = count * TAG
        memset(state, 0, sizeof(state))
        memset(block, 0, RATE)
        memcpy(block, PyBytes_AS_STRING(self._secret), size)
        memcpy(block + size, head, HEAD)
        block[size + HEAD] = 0x1F
        block[RATE - 1] |= 0x80
        # Lanes are little-endian.
        for i in range(RATE // 8):
            state[i] = bswap64(load_be64(block + 8 * i))
        while wanted > 0:
            keccak_permute(state)
            for i in range(RATE // 8):
                store_be64(block + 8 * i, bswap64(state[i]))
            memcpy(tags, block, min(wanted, RATE))
            tags += RATE
            wanted -= RATE

    cdef uint8_t *_tags_of(self, int count) noexcept:
        # The tags of the first bits of the last head.
        if count > self._last.count:
            self._last.count = min((count + OF_BLOCK - 1) // OF_BLOCK * OF_BLOCK, BITS)
            self._sign(self._last.head, self._last.count, self._last.tags)
        return self._last.tags

    cdef void _turn_to(self, const uint8_t *head) noexcept:
        if not self._last.heads or memcmp(self._last.head, head, HEAD):
            self._last.count = 0
            self._last.heads += 1
            memcpy(self._last.head, head, HEAD)
            _write_hex(head, HEAD, self._last.text)

    cdef object _fault(self, object text, uint8_t *bit):
        # Checks a receipt: None, with its head as the last one, and its bit; or why it is none.
        cdef const uint8_t *at
        cdef uint8_t head[HEAD]
        cdef uint8_t tag[TAG]
        if type(text) is not str:
            return f"the receipt is {shortened(text)}; it must be the text that pop gave"
        if len(<str>text) != CHARS:
            return (
                f"the receipt has {len(<str>text)} characters, not {CHARS}; pass it on as pop "
                "gave it"
            )
        if PyUnicode_IS_ASCII(text):
            at = <const uint8_t *>PyUnicode_DATA(text)
            if not self._last.heads or memcmp(at, self._last.text, HEAD_CHARS):
                if not _read_hex(at, HEAD, head):
                    return self._changed(text)
                self._turn_to(head)
            if _read_hex(at + HEAD_CHARS, 1, bit) and _read_hex(at + TAG_AT, TAG, tag):
                if memcmp(tag, self._tags_of(bit[0] + 1) + bit[0] * TAG, TAG) == 0:
                    return None
        return self._changed(text)

    cdef str _changed(self, str text):
        return (
            f"the receipt {text[:16]}... was not made by this store, or was changed; pass it on as "
            "pop gave it"
        )

    def read(self, text):
        cdef uint8_t bit = 0
        fault = self._fault(text, &bit)
        if fault is not None:
            raise ReceiptIllegal(fault)
        key, nonce = _row_of(self._last.head)
        return key, nonce, bit

    def sort(self, list receipts not None):
        cdef Asked asked = Asked.__new__(Asked)
        cdef dict numbers = {}
        cdef uint8_t bit = 0
        cdef uint64_t bits[WORDS]
        cdef Py_ssize_t i, number = -1, heads = -1
        # Nobody changes it meanwhile.
        cdef tuple texts = tuple(receipts)
        asked._reserve(len(texts))
        memset(bits, 0, sizeof(bits))
        for i in range(len(texts)):
            fault = self._fault(texts[i], &bit)
            if self._last.heads != heads:
                asked._add(number, bits)
                number, heads = -1, self._last.heads
            if fault is not None:
                asked.errors.append((i, ReceiptIllegal(fault)))
                continue
            if number < 0:
                row = _row_of(self._last.head)
                number = numbers.setdefault(row, len(numbers))
                if number == len(asked.rows):
                    asked.rows.append(row)
                    asked.bits.append(0)
                    pair = row[0][0], row[0][1]
                    asked.tables.setdefault(pair, []).append(number)
            asked._numbers[i] = number
            asked._bit_of[i] = bit
            bits[bit >> 6] |= <uint64_t>1 << (bit & 63)
        asked._add(number, bits)
        return asked


cdef class Asked:
    def __dealloc__(self):
        free(self._numbers)
        free(self._bit_of)

    cdef int _reserve(self, Py_ssize_t count) except -1:
        self.rows, self.bits, self.errors, self.tables = [], [], [], {}
        self._numbers = <Py_ssize_t *>grown(NULL, max(count, 1), sizeof(Py_ssize_t))
        self._bit_of = <uint8_t *>grown(NULL, max(count, 1), 1)
        memset(self._numbers, 0xFF, count * sizeof(Py_ssize_t))
        self.count = count
        return 0

    cdef int _add(self, Py_ssize_t number, uint64_t *bits) except -1:
        cdef object found = bits[0]
        cdef int i
        if number < 0:
            return 0
        for i in range(1, WORDS):
            if bits[i]:
                found |= <object>bits[i] << (64 * i)
        self.bits[number] |= found
        memset(bits, 0, 8 * WORDS)
        return 0

    def indices(self, dict refused not None):
        cdef Py_ssize_t i
        return [
            i for i in range(self.count)
            if self._numbers[i] >= 0
            and refused.get(self._numbers[i], 0) >> self._bit_of[i] & 1
        ]


@cython.no_gc
@cython.auto_pickle(False)
cdef class Delivery:
    def __init__(
        self, Receipts by not None, uint32_t group, uint32_t topic, uint64_t due, uint32_t queue,
        uint64_t first, uint64_t nonce,
    ):
        self._by = by
        store_be32(self._head, group)
        store_be32(self._head + 4, topic)
        store_be64(self._head + 8, due)
        store_be32(self._head + 16, queue)
        store_be64(self._head + 20, first)
        store_be64(self._head + KEY, nonce)
        self._count = 0

    cdef str _receipt(self, Py_ssize_t bit):
        cdef str text = PyUnicode_New(CHARS, 127)
        cdef uint8_t *out = <uint8_t *>PyUnicode_DATA(text)
        cdef uint8_t raw = <uint8_t>bit
        self._by._turn_to(self._head)
        memcpy(out, self._by._last.text, HEAD_CHARS)
        _write_hex(&raw, 1, out + HEAD_CHARS)
        _write_hex(self._by._tags_of(<int>self._count) + bit * TAG, TAG, out + TAG_AT)
        return text

    cdef int _expect(self, object locked) except -1:
        cdef Py_ssize_t count = locked.bit_length()
        if self._by is None:
            raise TypeError("the delivery was not made of receipts")
        if count > BITS or locked < 0:
            raise ValueError(f"a row has {BITS} bits, not {count}")
        self._count = max(self._count, count)
        return 0

    def receipts(self, locked):
        cdef Py_ssize_t bit
        self._expect(locked)
        return [self._receipt(bit) for bit in range(self._count) if locked >> bit & 1]

    def popped(self, list messages not None, locked, attempt, due_at):
        return self.hand_out(messages, locked, attempt, due_at)

    cdef list hand_out(self, list messages, object locked, object attempt, object due_at):
        cdef Popped one
        cdef list out = []
        cdef Py_ssize_t bit = 0
        cdef bint has_gaps = locked & (locked + 1)
        self._expect(locked)
        # Nobody changes it meanwhile.
        cdef tuple given = tuple(messages)
        if locked.bit_count() != len(given):
            raise ValueError(f"{len(given)} messages are not those of {locked.bit_count()} bits")
        for message in given:
            while has_gaps and not locked >> bit & 1:
                bit += 1
            one = Popped.__new__(Popped)
            one.message, one._receipt, one._bit = message, self, <uint8_t>bit
            one.attempt, one.due_at = attempt, due_at
            out.append(one)
            bit += 1
        return out


cdef Delivery delivery_of(Receipts by, const uint8_t *key, uint64_t nonce):
    cdef Delivery found = Delivery.__new__(Delivery)
    found._by = by
    memcpy(found._head, key, KEY)
    store_be64(found._head + KEY, nonce)
    return found


@cython.no_gc
@cython.freelist(256)
cdef class Popped:
    """A message under lock. `receipt` acks it or changes its lock; `attempt` says how often the
    group got it, this time included; `due_at` is when the lock ends, ms since the epoch.
    """

    __match_args__ = ("message", "receipt", "attempt", "due_at")

    def __init__(self, message, receipt, attempt, due_at):
        self.message = message
        self._receipt = receipt
        self.attempt = attempt
        self.due_at = due_at

    @property
    def receipt(self):
        if type(self._receipt) is Delivery:
            self._receipt = (<Delivery>self._receipt)._receipt(self._bit)
        return self._receipt

    def __eq__(self, other):
        return fields_of(self) == fields_of(other) if type(self) is type(other) else NotImplemented

    def __hash__(self):
        return hash(fields_of(self))

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return type(self), fields_of(self)

    def __replace__(self, **changes):
        return replaced(self, changes)


def body_bytes(list found not None):
    cdef Py_ssize_t total = 0
    for one in found:
        message = (<Popped>one).message if isinstance(one, Popped) else one
        total += len((<StoredMessage?>message).body)
    return total
