/* The loops of program.c that choose rows. */
#ifndef PYSTACHIO_PROGRAM_FILTERS_H
#define PYSTACHIO_PROGRAM_FILTERS_H

#include <string.h>

#include "program_filters_wide.h"
#include "program_loops.h"

/* Of at most PS_VECTOR rows. */
PS_INLINE int32_t count_kept(int32_t n, const uint8_t *restrict mask) {
    int32_t kept = 0, whole = n & ~7;
    uint64_t counts = 0; /* eight, side by side: of at most 128 rows each */
    for (int32_t i = 0; i < whole; i += 8) {
        uint64_t eight;
        memcpy(&eight, mask + i, 8);
        counts += eight;
    }
    for (int32_t i = whole; i < n; i++) kept += mask[i];
    counts = (counts & 0x00FF00FF00FF00FF) + (counts >> 8 & 0x00FF00FF00FF00FF);
    return kept + (int32_t)(counts * 0x0001000100010001 >> 48);
}

/* Positions in the vector of the rows of `mask`; up to 31 behind them are written too. */
PS_INLINE void kept_positions(int32_t n, const uint8_t *restrict mask, uint16_t *restrict kept) {
#if PS_HAS_WIDE
    if (has_avx512()) {
        kept_positions_avx512(n, mask, kept);
        return;
    }
    if (has_avx2()) {
        kept_positions_avx2(n, mask, kept);
        return;
    }
#endif
    int32_t count = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight;
        memcpy(&eight, mask + i, 8);
        if (eight == 0) continue;
        for (int32_t j = 0; j < 8; j++) {
            kept[count] = (uint16_t)(i + j);
            count += mask[i + j];
        }
    }
    kept_one_by_one(i, n, mask, kept, count);
}

PS_INLINE void may_have(int32_t n, const int64_t *restrict values, const uint64_t *restrict words, int64_t shift,
                        uint8_t *restrict out) {
#if PS_HAS_WIDE
    if (has_avx512()) {
        bloom_avx512(n, values, words, shift, out);
        return;
    }
    if (has_avx2()) {
        bloom_avx2(n, values, words, shift, out);
        return;
    }
#endif
    bloom(n, values, words, shift, out);
}

PS_INLINE void input_is_member(vector v, const void *input, int32_t kind, const uint8_t *table, int64_t low,
                               int64_t span, uint8_t *restrict out) {
#if PS_HAS_WIDE
    if (v.whole && kind == PS_INT8 && low >= INT8_MIN && low <= INT8_MAX && span > 0 && span <= 2 * BYTES_AT_ONCE &&
        low + span <= INT8_MAX + 1 && has_avx512()) {
        member_bytes_avx512(v.n, (const uint8_t *)input + v.base, table, (uint8_t)low, (uint8_t)span, out);
        return;
    }
#endif
    input_member(v, input, kind, table, low, span, out);
}

/* `kind` is of at most 32 bits, and low + span below 2^31. */
PS_INLINE void input_bit(vector v, const void *input, int32_t kind, const void *table, int64_t low, int64_t span,
                         uint8_t *restrict out) {
    int64_t values[PS_VECTOR];
#if PS_HAS_WIDE
    if (has_avx2()) {
        int32_t chosen[PS_VECTOR], n = v.n, width = kind == PS_INT32 ? 4 : kind == PS_INT16 ? 2 : 1;
        const void *column = (const uint8_t *)input + v.base * width;
        if (!v.whole) {
            if (kind == PS_INT32)
                EACH_APART(chosen[i] = ((const int32_t *)input)[alone(v.rows[i])];)
            else if (kind == PS_INT16)
                EACH_APART(chosen[i] = ((const int16_t *)input)[alone(v.rows[i])];)
            else
                EACH_APART(chosen[i] = ((const int8_t *)input)[alone(v.rows[i])];)
            column = chosen;
            kind = PS_INT32;
        }
        if (has_avx512())
            bits_avx512(n, column, kind, table, (uint32_t)low, (uint32_t)span, out);
        else
            bits_avx2(n, column, kind, table, (uint32_t)low, (uint32_t)span, out);
        return;
    }
#endif
    load_integer(v, input, kind, values);
    bit(v.n, values, table, low, span, out);
}

#endif
