/* The loops of program.c that choose rows: a few with instructions that compilers do not find. */
#ifndef PYSTACHIO_PROGRAM_FILTERS_H
#define PYSTACHIO_PROGRAM_FILTERS_H

#include <string.h>

#include "program_loops.h"
#include "wide.h"

#if PS_HAS_WIDE

/* 32 rows at a time; up to 31 behind them are written too. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt"))) static void
kept_positions_wide(int32_t n, const uint8_t *restrict mask, uint16_t *restrict kept) {
    __m512i positions = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12,
                                         11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i step = _mm512_set1_epi16(32);
    int32_t count = 0;
    for (int32_t i = 0; i < n; i += 32) {
        int32_t rest = n - i;
        __mmask32 there = rest >= 32 ? 0xFFFFFFFFu : ((__mmask32)1 << rest) - 1;
        __m256i flags = _mm256_maskz_loadu_epi8(there, mask + i);
        __mmask32 set = _mm256_test_epi8_mask(flags, flags);
        _mm512_storeu_si512(kept + count, _mm512_maskz_compress_epi16(set, positions));
        count += __builtin_popcount(set);
        positions = _mm512_add_epi16(positions, step);
    }
}

/* 16 rows at a time. */
__attribute__((target("avx512f,avx512bw,avx512vl"))) static void
bits_wide(int32_t n, const void *column, int32_t kind, const uint32_t *words, uint32_t low, uint32_t span,
          uint8_t *restrict out) {
    const __m512i first = _mm512_set1_epi32((int32_t)low), width = _mm512_set1_epi32((int32_t)span);
    const __m512i one = _mm512_set1_epi32(1), low_bits = _mm512_set1_epi32(31);
    for (int32_t i = 0; i < n; i += 16) {
        int32_t rest = n - i;
        __mmask16 there = rest >= 16 ? (__mmask16)0xFFFF : (__mmask16)((1 << rest) - 1);
        __m512i at;
        if (kind == PS_INT32)
            at = _mm512_maskz_loadu_epi32(there, (const int32_t *)column + i);
        else if (kind == PS_INT16)
            at = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(there, (const int16_t *)column + i));
        else
            at = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(there, (const int8_t *)column + i));
        at = _mm512_sub_epi32(at, first);
        __mmask16 inside = _mm512_mask_cmplt_epu32_mask(there, at, width);
        __m512i found = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), inside, _mm512_srli_epi32(at, 5), words, 4);
        __mmask16 set = _mm512_test_epi32_mask(_mm512_srlv_epi32(found, _mm512_and_si512(at, low_bits)), one);
        _mm_mask_storeu_epi8(out + i, there, _mm_maskz_set1_epi8(set, 1));
    }
}

#define BYTES_AT_ONCE 64

/* 64 rows at a time, by a table of at most 128 bytes, which two registers hold. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))) static void
member_bytes_wide(int32_t n, const uint8_t *restrict column, const uint8_t *restrict table, uint8_t low, uint8_t span,
                  uint8_t *restrict out) {
    const __m512i first = _mm512_set1_epi8((char)low), width = _mm512_set1_epi8((char)span);
    int32_t upper = span > BYTES_AT_ONCE ? span - BYTES_AT_ONCE : 0;
#define LEADING(COUNT) ((COUNT) >= BYTES_AT_ONCE ? ~(__mmask64)0 : ((__mmask64)1 << (COUNT)) - 1)
    __m512i near = _mm512_maskz_loadu_epi8(LEADING(span), table);
    __m512i far = _mm512_maskz_loadu_epi8(LEADING(upper), table + (upper ? BYTES_AT_ONCE : 0));
    for (int32_t i = 0; i < n; i += BYTES_AT_ONCE) {
        __mmask64 there = LEADING(n - i);
        __m512i at = _mm512_sub_epi8(_mm512_maskz_loadu_epi8(there, column + i), first);
        __mmask64 inside = _mm512_cmplt_epu8_mask(at, width);
        _mm512_mask_storeu_epi8(out + i, there, _mm512_maskz_permutex2var_epi8(inside, near, at, far));
    }
#undef LEADING
}

/* `bloom` of program_loops.h, 8 rows at a time. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static void
bloom_wide(int32_t n, const int64_t *restrict values, const uint64_t *restrict words, int64_t shift,
           uint8_t *restrict out) {
    const __m512i first = _mm512_set1_epi64((int64_t)PS_BLOOM_FIRST), second = _mm512_set1_epi64((int64_t)PS_BLOOM_SECOND);
    const __m512i one = _mm512_set1_epi64(1), low_bits = _mm512_set1_epi64(63);
    const __m128i to_word = _mm_cvtsi64_si128(shift);
    for (int32_t i = 0; i < n; i += 8) {
        __mmask8 there = n - i >= 8 ? (__mmask8)0xFF : (__mmask8)((1 << (n - i)) - 1);
        __m512i hash = _mm512_mullo_epi64(_mm512_maskz_loadu_epi64(there, values + i), first);
        hash = _mm512_mullo_epi64(_mm512_xor_si512(hash, _mm512_srli_epi64(hash, 32)), second);
        __m512i bits = _mm512_sllv_epi64(one, _mm512_and_si512(hash, low_bits));
        bits = _mm512_or_si512(bits, _mm512_sllv_epi64(one, _mm512_and_si512(_mm512_srli_epi64(hash, 6), low_bits)));
        bits = _mm512_or_si512(bits, _mm512_sllv_epi64(one, _mm512_and_si512(_mm512_srli_epi64(hash, 12), low_bits)));
        __m512i found = _mm512_i64gather_epi64(_mm512_srl_epi64(hash, to_word), words, 8);
        __mmask8 set = _mm512_cmpeq_epi64_mask(_mm512_and_si512(found, bits), bits);
        _mm_mask_storeu_epi8(out + i, there, _mm_maskz_set1_epi8(set, 1));
    }
}
#endif

/* Positions in the vector of the rows of `mask`; up to 31 behind them are written too. */
PS_INLINE void kept_positions(int32_t n, const uint8_t *restrict mask, uint16_t *restrict kept) {
#if PS_HAS_WIDE
    if (has_wide_loops()) {
        kept_positions_wide(n, mask, kept);
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
    for (; i < n; i++) {
        kept[count] = (uint16_t)i;
        count += mask[i];
    }
}

PS_INLINE void may_have(int32_t n, const int64_t *restrict values, const uint64_t *restrict words, int64_t shift,
                        uint8_t *restrict out) {
#if PS_HAS_WIDE
    if (has_wide_loops()) {
        bloom_wide(n, values, words, shift, out);
        return;
    }
#endif
    bloom(n, values, words, shift, out);
}

PS_INLINE void input_is_member(vector v, const void *input, int32_t kind, const uint8_t *table, int64_t low,
                               int64_t span, uint8_t *restrict out) {
#if PS_HAS_WIDE
    if (v.whole && kind == PS_INT8 && low >= INT8_MIN && low <= INT8_MAX && span > 0 && span <= 2 * BYTES_AT_ONCE &&
        low + span <= INT8_MAX + 1 && has_wide_loops()) {
        member_bytes_wide(v.n, (const uint8_t *)input + v.base, table, (uint8_t)low, (uint8_t)span, out);
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
    if (has_wide_loops()) {
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
        bits_wide(n, column, kind, table, (uint32_t)low, (uint32_t)span, out);
        return;
    }
#endif
    load_integer(v, input, kind, values);
    bit(v.n, values, table, low, span, out);
}

#endif
