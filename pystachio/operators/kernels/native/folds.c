/* Folds of one number per row into one per group. */
#include "folds.h"

#include <string.h>

#define FEW 256
#define WAYS 4

/* Few groups: consecutive rows often have the same one, so that each addition would wait for the one before. */
#define DEFINE_SUMS(NAME, VALUE, CODE)                                                                                 \
    static void NAME(const VALUE *restrict values, const CODE *restrict codes, int64_t rows, int64_t slots,            \
                     uint64_t *restrict sums) {                                                                        \
        int64_t row = 0;                                                                                               \
        if (slots <= FEW) {                                                                                            \
            uint64_t ways[WAYS][FEW];                                                                                  \
            for (int way = 0; way < WAYS; way++) memset(ways[way], 0, (size_t)slots * sizeof **ways);                  \
            for (; row + WAYS <= rows; row += WAYS)                                                                    \
                for (int way = 0; way < WAYS; way++)                                                                   \
                    ways[way][codes[row + way]] += (uint64_t)(int64_t)values[row + way];                               \
            for (int way = 0; way < WAYS; way++)                                                                       \
                for (int64_t slot = 0; slot < slots; slot++) sums[slot] += ways[way][slot];                            \
        }                                                                                                              \
        for (; row < rows; row++) sums[codes[row]] += (uint64_t)(int64_t)values[row];                                  \
    }

#define DEFINE_CODED(WIDTH, VALUE)                                                                                     \
    DEFINE_SUMS(sums_##WIDTH##_1, VALUE, int8_t)                                                                       \
    DEFINE_SUMS(sums_##WIDTH##_2, VALUE, int16_t)                                                                      \
    DEFINE_SUMS(sums_##WIDTH##_4, VALUE, int32_t)                                                                      \
    DEFINE_SUMS(sums_##WIDTH##_8, VALUE, int64_t)

DEFINE_CODED(1, int8_t)
DEFINE_CODED(2, int16_t)
DEFINE_CODED(4, int32_t)
DEFINE_CODED(8, int64_t)

#define CALL(WIDTH, VALUE)                                                                                             \
    switch (code_width) {                                                                                              \
    case 1: sums_##WIDTH##_1(values, codes, rows, slots, out); return PS_OK;                                           \
    case 2: sums_##WIDTH##_2(values, codes, rows, slots, out); return PS_OK;                                           \
    case 4: sums_##WIDTH##_4(values, codes, rows, slots, out); return PS_OK;                                           \
    case 8: sums_##WIDTH##_8(values, codes, rows, slots, out); return PS_OK;                                           \
    default: return PS_NOT_HANDLED;                                                                                    \
    }

int32_t pystachio_group_sums(const void *values, int32_t width, const void *codes, int32_t code_width, int64_t rows,
                             int64_t slots, int64_t *sums) {
    uint64_t *out = (uint64_t *)sums; /* wraps, where a signed overflow would be undefined */
    switch (width) {
    case 1: CALL(1, int8_t)
    case 2: CALL(2, int16_t)
    case 4: CALL(4, int32_t)
    case 8: CALL(8, int64_t)
    default: return PS_NOT_HANDLED;
    }
}

#define DEFINE_ROWS(NAME, CODE)                                                                                        \
    static void NAME(const CODE *restrict codes, int64_t rows, int64_t slots, int64_t *restrict counts,                \
                     int64_t *restrict last) {                                                                         \
        int64_t row = 0;                                                                                               \
        if (slots <= FEW) {                                                                                            \
            uint32_t ways[WAYS][FEW];                                                                                  \
            for (int way = 0; way < WAYS; way++) memset(ways[way], 0, (size_t)slots * sizeof **ways);                  \
            for (; row + WAYS <= rows && row < UINT32_MAX - WAYS; row += WAYS)                                         \
                for (int way = 0; way < WAYS; way++) {                                                                 \
                    ways[way][codes[row + way]]++;                                                                     \
                    last[codes[row + way]] = row + way + 1;                                                            \
                }                                                                                                      \
            for (int way = 0; way < WAYS; way++)                                                                       \
                for (int64_t slot = 0; slot < slots; slot++) counts[slot] += ways[way][slot];                          \
        }                                                                                                              \
        for (; row < rows; row++) {                                                                                    \
            counts[codes[row]]++;                                                                                      \
            last[codes[row]] = row + 1;                                                                                \
        }                                                                                                              \
    }

DEFINE_ROWS(rows_1, int8_t)
DEFINE_ROWS(rows_2, int16_t)
DEFINE_ROWS(rows_4, int32_t)
DEFINE_ROWS(rows_8, int64_t)

int32_t pystachio_group_rows(const void *codes, int32_t code_width, int64_t rows, int64_t slots, int64_t *counts,
                             int64_t *last) {
    switch (code_width) {
    case 1: rows_1(codes, rows, slots, counts, last); return PS_OK;
    case 2: rows_2(codes, rows, slots, counts, last); return PS_OK;
    case 4: rows_4(codes, rows, slots, counts, last); return PS_OK;
    case 8: rows_8(codes, rows, slots, counts, last); return PS_OK;
    default: return PS_NOT_HANDLED;
    }
}
