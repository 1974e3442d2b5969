"""See buffers.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef class View:
    cdef Py_buffer _buffer
    # Its bytes, and how many.
    cdef uint8_t *bytes
    cdef Py_ssize_t size
    # The bytes as numbers of 64 bits, and how many.
    cdef int64_t *numbers
    cdef Py_ssize_t count


cdef View view_of(object buffer)
cdef View numbers_of(object array)
cdef View room_of(object array)
cdef void *grown(void *old, Py_ssize_t count, Py_ssize_t width) except NULL nogil


cdef inline Py_ssize_t lower_bound(
    const int64_t *rising, Py_ssize_t count, int64_t number
) noexcept nogil:
    # How many of the rising numbers are below one.
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if rising[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline Py_ssize_t index_of(int64_t position, int64_t base) noexcept nogil:
    # How far a position is behind another one; less than 0 if it is before it, or 2**63 and more
    # behind. Without a sign, so that no difference of two numbers overflows.
    return <Py_ssize_t>(<uint64_t>position - <uint64_t>base) if position >= base else -1


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Ask the memory for bytes that will be read soon. GCC takes a function that does nothing else
       for one without effect, and leaves out the calls; but for the empty statement. */
    static inline void fetch_ahead(const uint8_t *at, Py_ssize_t size) {
        for (Py_ssize_t line = 0; line < size; line += 64) {
            __builtin_prefetch(at + line);
            __asm__ volatile("");
        }
    }
    /* Big-endian numbers at any address, each one load or store. */
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define CORE_SWAPPED(bits, word) (word)
    #else
    #define CORE_SWAPPED(bits, word) __builtin_bswap##bits(word)
    #endif
    static inline uint64_t load_be64(const uint8_t *at) {
        uint64_t word; memcpy(&word, at, 8); return CORE_SWAPPED(64, word);
    }
    static inline uint32_t load_be32(const uint8_t *at) {
        uint32_t word; memcpy(&word, at, 4); return CORE_SWAPPED(32, word);
    }
    static inline void store_be64(uint8_t *at, uint64_t word) {
        word = CORE_SWAPPED(64, word); memcpy(at, &word, 8);
    }
    static inline void store_be32(uint8_t *at, uint32_t word) {
        word = CORE_SWAPPED(32, word); memcpy(at, &word, 4);
    }
    """
    void fetch_ahead(const uint8_t *at, Py_ssize_t size) noexcept nogil
    uint64_t load_be64(const uint8_t *at) noexcept nogil
    uint32_t load_be32(const uint8_t *at) noexcept nogil
    void store_be64(uint8_t *at, uint64_t word) noexcept nogil
    void store_be32(uint8_t *at, uint32_t word) noexcept nogil
