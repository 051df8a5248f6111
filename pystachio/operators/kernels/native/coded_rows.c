/* See kernels/coded_rows.py. */
#include "coded_rows.h"

#include "program_filters.h"

#define DEFINE_CODED_ROWS(NAME, CODE, NUMBER)                                                                          \
    static int64_t NAME(const CODE *restrict codes, int64_t count, const uint8_t *restrict table, uint64_t entries,    \
                        int64_t *restrict rows, int64_t capacity) {                                                    \
        uint8_t mask[PS_VECTOR];                                                                                       \
        uint16_t kept[PS_VECTOR + 32];                                                                                 \
        int64_t found = 0;                                                                                             \
        for (int64_t base = 0; base < count; base += PS_VECTOR) {                                                      \
            int32_t n = count - base < PS_VECTOR ? (int32_t)(count - base) : PS_VECTOR;                                \
            for (int32_t i = 0; i < n; i++) {                                                                          \
                uint64_t code = (NUMBER)codes[base + i];                                                               \
                mask[i] = code < entries ? table[code] : 0;                                                            \
            }                                                                                                          \
            int32_t left = count_kept(n, mask);                                                                        \
            if (left == 0) continue;                                                                                   \
            if (found + left <= capacity) {                                                                            \
                kept_positions(n, mask, kept);                                                                         \
                for (int32_t i = 0; i < left; i++) rows[found + i] = base + kept[i];                                   \
            }                                                                                                          \
            found += left;                                                                                             \
        }                                                                                                              \
        return found;                                                                                                  \
    }

DEFINE_CODED_ROWS(coded_rows_1, int8_t, uint8_t)
DEFINE_CODED_ROWS(coded_rows_2, int16_t, uint16_t)
DEFINE_CODED_ROWS(coded_rows_4, int32_t, uint32_t)

int64_t pystachio_coded_rows(const void *codes, int32_t width, int64_t count, const uint8_t *table, int64_t entries,
                             int64_t *rows, int64_t capacity) {
    if (width == 1) return coded_rows_1(codes, count, table, (uint64_t)entries, rows, capacity);
    if (width == 2) return coded_rows_2(codes, count, table, (uint64_t)entries, rows, capacity);
    if (width == 4) return coded_rows_4(codes, count, table, (uint64_t)entries, rows, capacity);
    return -1;
}
