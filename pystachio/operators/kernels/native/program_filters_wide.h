/* Loops of program_filters.h with instructions that compilers do not find, for AVX-512 and for AVX2. */
#ifndef PYSTACHIO_PROGRAM_FILTERS_WIDE_H
#define PYSTACHIO_PROGRAM_FILTERS_WIDE_H

#include <string.h>

#include "clones.h"
#include "key_sets.h"
#include "program_loops.h"
#include "wide.h"

/* Positions from row i on, behind `count` others. */
PS_INLINE void kept_one_by_one(int32_t i, int32_t n, const uint8_t *restrict mask, uint16_t *restrict kept,
                               int32_t count) {
    for (; i < n; i++) {
        kept[count] = (uint16_t)i;
        count += mask[i];
    }
}

#if PS_HAS_WIDE

/* 32 rows at a time; up to 31 behind them are written too. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt"))) static void
kept_positions_avx512(int32_t n, const uint8_t *restrict mask, uint16_t *restrict kept) {
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
bits_avx512(int32_t n, const void *column, int32_t kind, const uint32_t *words, uint32_t low, uint32_t span,
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
member_bytes_avx512(int32_t n, const uint8_t *restrict column, const uint8_t *restrict table, uint8_t low, uint8_t span,
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
bloom_avx512(int32_t n, const int64_t *restrict values, const uint64_t *restrict words, int64_t shift,
             uint8_t *restrict out) {
    const __m512i first = _mm512_set1_epi64((int64_t)PS_BLOOM_FIRST);
    const __m512i second = _mm512_set1_epi64((int64_t)PS_BLOOM_SECOND);
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

/* Of each of the 256 masks of eight rows: the rows that are in it, a byte each, from the first. */
#define ROWS_BEFORE(MASK, ROW)                                                                                         \
    ((((MASK) & 1) && (ROW) > 0) + (((MASK) & 2) && (ROW) > 1) + (((MASK) & 4) && (ROW) > 2) +                         \
     (((MASK) & 8) && (ROW) > 3) + (((MASK) & 16) && (ROW) > 4) + (((MASK) & 32) && (ROW) > 5) +                       \
     (((MASK) & 64) && (ROW) > 6))
#define ROW_OF(MASK, ROW) ((MASK) & (1 << (ROW)) ? (uint64_t)(ROW) << (8 * ROWS_BEFORE(MASK, ROW)) : 0)
#define ROWS_OF(MASK)                                                                                                  \
    (ROW_OF(MASK, 1) | ROW_OF(MASK, 2) | ROW_OF(MASK, 3) | ROW_OF(MASK, 4) | ROW_OF(MASK, 5) | ROW_OF(MASK, 6) |       \
     ROW_OF(MASK, 7))
#define ROWS_OF_4(MASK) ROWS_OF(MASK), ROWS_OF((MASK) + 1), ROWS_OF((MASK) + 2), ROWS_OF((MASK) + 3)
#define ROWS_OF_16(MASK) ROWS_OF_4(MASK), ROWS_OF_4((MASK) + 4), ROWS_OF_4((MASK) + 8), ROWS_OF_4((MASK) + 12)
#define ROWS_OF_64(MASK) ROWS_OF_16(MASK), ROWS_OF_16((MASK) + 16), ROWS_OF_16((MASK) + 32), ROWS_OF_16((MASK) + 48)
static const uint64_t rows_of_eight[256] = {ROWS_OF_64(0), ROWS_OF_64(64), ROWS_OF_64(128), ROWS_OF_64(192)};

/* 32 rows at a time; up to 7 behind them are written too. */
__attribute__((target("avx2,popcnt"))) static void
kept_positions_avx2(int32_t n, const uint8_t *restrict mask, uint16_t *restrict kept) {
    int32_t count = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i flags = _mm256_loadu_si256((const __m256i *)(mask + i));
        uint32_t set = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(flags, 7));
        for (int32_t part = 0; part < 32; part += 8) {
            uint32_t eight = set >> part & 0xFF;
            __m128i rows = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(rows_of_eight + eight)));
            rows = _mm_add_epi16(rows, _mm_set1_epi16((int16_t)(i + part)));
            _mm_storeu_si128((__m128i *)(kept + count), rows);
            count += __builtin_popcount(eight);
        }
    }
    kept_one_by_one(i, n, mask, kept, count);
}

/* 8 rows at a time. */
__attribute__((target("avx2"))) static void
bits_avx2(int32_t n, const void *column, int32_t kind, const uint32_t *words, uint32_t low, uint32_t span,
          uint8_t *restrict out) {
    const __m256i first = _mm256_set1_epi32((int32_t)low), width = _mm256_set1_epi32((int32_t)span);
    const __m256i one = _mm256_set1_epi32(1), low_bits = _mm256_set1_epi32(31), none = _mm256_setzero_si256();
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i at;
        if (kind == PS_INT32)
            at = _mm256_loadu_si256((const __m256i *)((const int32_t *)column + i));
        else if (kind == PS_INT16)
            at = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)((const int16_t *)column + i)));
        else
            at = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)((const int8_t *)column + i)));
        at = _mm256_sub_epi32(at, first);
        /* Without a sign: those at least as large as the span are not in it. */
        __m256i outside = _mm256_cmpeq_epi32(_mm256_max_epu32(at, width), at);
        __m256i inside = _mm256_cmpeq_epi32(outside, none);
        __m256i found = _mm256_mask_i32gather_epi32(none, (const int *)words, _mm256_srli_epi32(at, 5), inside, 4);
        __m256i set = _mm256_and_si256(_mm256_srlv_epi32(found, _mm256_and_si256(at, low_bits)), one);
        __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(set), _mm256_extracti128_si256(set, 1));
        _mm_storel_epi64((__m128i *)(out + i), _mm_packs_epi16(narrow, narrow));
    }
    int64_t rest[8];
    vector behind = {i, n - i, 1, NULL};
    load_integer(behind, column, kind, rest);
    bit(n - i, rest, (const uint8_t *)words, (int32_t)low, span, out + i);
}

/* The lower 64 bits of products, which AVX2 has only of 32 bits. */
__attribute__((target("avx2"))) PS_INLINE __m256i product(__m256i a, __m256i b, __m256i high_b) {
    __m256i across = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b), _mm256_mul_epu32(a, high_b));
    return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(across, 32));
}

/* `bloom` of program_loops.h, 4 rows at a time. */
__attribute__((target("avx2"))) static void
bloom_avx2(int32_t n, const int64_t *restrict values, const uint64_t *restrict words, int64_t shift,
           uint8_t *restrict out) {
    const __m256i first = _mm256_set1_epi64x((int64_t)PS_BLOOM_FIRST), high_first = _mm256_srli_epi64(first, 32);
    const __m256i second = _mm256_set1_epi64x((int64_t)PS_BLOOM_SECOND), high_second = _mm256_srli_epi64(second, 32);
    const __m256i one = _mm256_set1_epi64x(1), low_bits = _mm256_set1_epi64x(63);
    const __m128i to_word = _mm_cvtsi64_si128(shift);
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256i hash = product(_mm256_loadu_si256((const __m256i *)(values + i)), first, high_first);
        hash = product(_mm256_xor_si256(hash, _mm256_srli_epi64(hash, 32)), second, high_second);
        __m256i bits = _mm256_sllv_epi64(one, _mm256_and_si256(hash, low_bits));
        bits = _mm256_or_si256(bits, _mm256_sllv_epi64(one, _mm256_and_si256(_mm256_srli_epi64(hash, 6), low_bits)));
        bits = _mm256_or_si256(bits, _mm256_sllv_epi64(one, _mm256_and_si256(_mm256_srli_epi64(hash, 12), low_bits)));
        __m256i found = _mm256_i64gather_epi64((const long long *)words, _mm256_srl_epi64(hash, to_word), 8);
        __m256i set = _mm256_cmpeq_epi64(_mm256_and_si256(found, bits), bits);
        int32_t four = _mm256_movemask_pd(_mm256_castsi256_pd(set));
        for (int32_t j = 0; j < 4; j++) out[i + j] = four >> j & 1;
    }
    bloom(n - i, values + i, words, shift, out + i);
}
#endif

#endif
