# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""CRC: CRC-32, the checksum of a record's body and of whole records.

The idea: where the processor multiplies without carries, 64 bytes are folded at once: a remainder
that stands 64 bytes further on is the old one times a constant (Gopal and others, Fast CRC
Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel 2009). Elsewhere, and for
the last bytes, eight tables take eight bytes a step. The polynomial is zlib's, 0xEDB88320, in its
reflected form.

Invariant: both ways give the same number, which is zlib's.
"""

from libc.stdint cimport uint8_t, uint32_t

from kvstore.core.buffers cimport View, view_of

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    static uint32_t crc_tables[8][256];

    static void crc_begin(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t word = byte;
            for (int bit = 0; bit < 8; bit++)
                word = word >> 1 ^ (0xEDB88320u & (0u - (word & 1)));
            crc_tables[0][byte] = word;
        }
        for (int table = 1; table < 8; table++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t word = crc_tables[table - 1][byte];
                crc_tables[table][byte] = word >> 8 ^ crc_tables[0][word & 0xFF];
            }
    }

    static uint32_t crc_by_tables(uint32_t crc, const uint8_t *at, size_t size) {
        for (; size >= 8; size -= 8, at += 8) {
            uint32_t low = crc ^ (at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16
                                  | (uint32_t)at[3] << 24);
            crc = crc_tables[7][low & 0xFF] ^ crc_tables[6][low >> 8 & 0xFF]
                ^ crc_tables[5][low >> 16 & 0xFF] ^ crc_tables[4][low >> 24]
                ^ crc_tables[3][at[4]] ^ crc_tables[2][at[5]]
                ^ crc_tables[1][at[6]] ^ crc_tables[0][at[7]];
        }
        for (; size; size--)
            crc = crc >> 8 ^ crc_tables[0][(crc ^ *at++) & 0xFF];
        return crc;
    }

    #if defined(__x86_64__)
    #include <immintrin.h>
    #define CRC_TARGET __attribute__((target("pclmul,sse4.1")))

    static inline CRC_TARGET __m128i crc_load(const uint8_t *at) {
        return _mm_loadu_si128((const __m128i *)at);
    }

    static inline CRC_TARGET __m128i crc_fold(__m128i word, __m128i by, __m128i next) {
        __m128i low = _mm_clmulepi64_si128(word, by, 0x00);
        __m128i high = _mm_clmulepi64_si128(word, by, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    /* Of 64 bytes or more, and whole blocks of 16. The constants are powers of x modulo the
       polynomial: 4 * 128 +- 32 bits further on, then 128 +- 32, then 64. */
    static CRC_TARGET uint32_t crc_by_folding(uint32_t crc, const uint8_t *at, size_t size) {
        const __m128i by_four = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4);
        const __m128i by_one = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
        const __m128i to_word = _mm_set_epi64x(0, 0x0163CD6124);
        const __m128i barrett = _mm_set_epi64x(0x01F7011641, 0x01DB710641);
        const __m128i lower = _mm_setr_epi32(-1, 0, -1, 0);
        __m128i a = _mm_xor_si128(crc_load(at), _mm_cvtsi32_si128((int)crc));
        __m128i b = crc_load(at + 16), c = crc_load(at + 32), d = crc_load(at + 48);
        for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
            a = crc_fold(a, by_four, crc_load(at));
            b = crc_fold(b, by_four, crc_load(at + 16));
            c = crc_fold(c, by_four, crc_load(at + 32));
            d = crc_fold(d, by_four, crc_load(at + 48));
        }
        a = crc_fold(crc_fold(crc_fold(a, by_one, b), by_one, c), by_one, d);
        for (; size; at += 16, size -= 16)
            a = crc_fold(a, by_one, crc_load(at));
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_one, 0x10));
        b = _mm_srli_si128(a, 4);
        a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, lower), to_word, 0x00), b);
        b = _mm_clmulepi64_si128(_mm_and_si128(a, lower), barrett, 0x10);
        b = _mm_clmulepi64_si128(_mm_and_si128(b, lower), barrett, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
    }

    static int crc_can_fold(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #else
    static uint32_t crc_by_folding(uint32_t crc, const uint8_t *at, size_t size) {
        return crc_by_tables(crc, at, size);
    }
    static int crc_can_fold(void) { return 0; }
    #endif
    """
    void crc_begin() noexcept nogil
    uint32_t crc_by_tables(uint32_t crc, const uint8_t *at, size_t size) noexcept nogil
    uint32_t crc_by_folding(uint32_t crc, const uint8_t *at, size_t size) noexcept nogil
    int crc_can_fold() noexcept nogil

crc_begin()
cdef bint _can_fold = crc_can_fold()


cdef uint32_t crc32_of(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef uint32_t crc = 0xFFFFFFFF
    cdef Py_ssize_t folded = 0
    if _can_fold and size >= 64:
        folded = size & ~<Py_ssize_t>15
        crc = crc_by_folding(crc, at, folded)
    return ~crc_by_tables(crc, at + folded, size - folded)


def crc32(data):
    cdef View view = view_of(data)
    cdef uint32_t found
    with nogil:
        found = crc32_of(view.bytes, view.size)
    return found
