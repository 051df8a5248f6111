/* The loops of program.c that add rows up. */
#ifndef PYSTACHIO_PROGRAM_FOLDS_H
#define PYSTACHIO_PROGRAM_FOLDS_H

#include "program_loops.h"
#include "wide.h"

/* In FOLD the slot of row i is `slot`; with few slots, in the copy of its way. */
#define FOLD(STATEMENT)                                                                                                \
    {                                                                                                                  \
        if (slots <= PS_FEW_SLOTS)                                                                                     \
            for (int32_t i = 0; i < n; i++) {                                                                          \
                int64_t slot = (i % PS_WAYS) * slots + (codes != NULL ? codes[i] : 0);                                 \
                STATEMENT                                                                                              \
            }                                                                                                          \
        else                                                                                                           \
            for (int32_t i = 0; i < n; i++) {                                                                          \
                int64_t slot = codes[i];                                                                               \
                STATEMENT                                                                                              \
            }                                                                                                          \
    }

/* With so few slots one pass over the vector for each, without a store per row, is faster. */
#define TINY_SLOTS 8

#if PS_HAS_WIDE
#define PS_FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

/* What OF_SLOTS does, in one pass: the sums of so many slots in registers. Without `values` each row counts 1. */
PS_FOR_AVX512 PS_INLINE void slots_avx512(int32_t n, const int64_t *restrict codes, int32_t slots,
                                         const uint8_t *restrict mask, const uint64_t *restrict values,
                                         uint64_t *restrict into) {
    __m512i sums[TINY_SLOTS];
    for (int32_t slot = 0; slot < slots; slot++) sums[slot] = _mm512_setzero_si512();
    for (int32_t i = 0; i < n; i += 8) {
        __mmask8 there = n - i >= 8 ? (__mmask8)0xFF : (__mmask8)((1 << (n - i)) - 1);
        __m512i of = _mm512_maskz_loadu_epi64(there, codes + i);
        __m512i added = values == NULL ? _mm512_set1_epi64(1) : _mm512_maskz_loadu_epi64(there, values + i);
        if (mask != NULL) {
            __m128i flags = _mm_maskz_loadu_epi8(there, mask + i);
            there = (__mmask8)_mm_test_epi8_mask(flags, flags);
        }
        for (int32_t slot = 0; slot < slots; slot++) {
            __mmask8 its = _mm512_mask_cmpeq_epi64_mask(there, of, _mm512_set1_epi64(slot));
            sums[slot] = _mm512_mask_add_epi64(sums[slot], its, sums[slot], added);
        }
    }
    for (int32_t slot = 0; slot < slots; slot++) {
        uint64_t lanes[8];
        _mm512_storeu_si512(lanes, sums[slot]);
        for (int32_t lane = 0; lane < 8; lane++) into[slot] += lanes[lane];
    }
}

#define PS_FOR_AVX2 __attribute__((target("avx2")))

/* The same, four rows at a time. */
PS_FOR_AVX2 PS_INLINE void slots_avx2(int32_t n, const int64_t *restrict codes, int32_t slots,
                                               const uint8_t *restrict mask, const uint64_t *restrict values,
                                               uint64_t *restrict into) {
    __m256i sums[TINY_SLOTS];
    int32_t i = 0;
    for (int32_t slot = 0; slot < slots; slot++) sums[slot] = _mm256_setzero_si256();
    for (; i + 4 <= n; i += 4) {
        __m256i of = _mm256_loadu_si256((const __m256i *)(codes + i));
        __m256i added = values == NULL ? _mm256_set1_epi64x(1) : _mm256_loadu_si256((const __m256i *)(values + i));
        if (mask != NULL) {
            int32_t four;
            memcpy(&four, mask + i, 4);
            __m256i flags = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
            added = _mm256_and_si256(added, _mm256_sub_epi64(_mm256_setzero_si256(), flags));
        }
        for (int32_t slot = 0; slot < slots; slot++) {
            __m256i its = _mm256_cmpeq_epi64(of, _mm256_set1_epi64x(slot));
            sums[slot] = _mm256_add_epi64(sums[slot], _mm256_and_si256(its, added));
        }
    }
    for (int32_t slot = 0; slot < slots; slot++) {
        uint64_t lanes[4];
        _mm256_storeu_si256((__m256i *)lanes, sums[slot]);
        into[slot] += lanes[0] + lanes[1] + lanes[2] + lanes[3];
    }
    for (; i < n; i++) into[codes[i]] += mask != NULL && !mask[i] ? 0 : values == NULL ? 1 : values[i];
}

/* Into so many sums at least as there are slots: those behind them are 0. */
#define OF_MASKS(FUNCTION, SLOTS)                                                                                      \
    if (mask == NULL)                                                                                                  \
        FUNCTION(n, codes, SLOTS, NULL, values, sums);                                                                 \
    else                                                                                                               \
        FUNCTION(n, codes, SLOTS, mask, values, sums);
#define SUMS_WIDE(NAME, FUNCTION)                                                                                      \
    static void NAME(int32_t n, const int64_t *restrict codes, int64_t slots, const uint8_t *restrict mask,            \
                     const uint64_t *restrict values, uint64_t *restrict state) {                                      \
        uint64_t sums[TINY_SLOTS] = {0};                                                                               \
        if (slots <= 4) {                                                                                              \
            OF_MASKS(FUNCTION, 4)                                                                                      \
        } else if (slots <= 6) {                                                                                       \
            OF_MASKS(FUNCTION, 6)                                                                                      \
        } else {                                                                                                       \
            OF_MASKS(FUNCTION, 8)                                                                                      \
        }                                                                                                              \
        for (int64_t slot = 0; slot < slots; slot++) state[slot] += sums[slot];                                        \
    }
PS_FOR_AVX512 SUMS_WIDE(sums_avx512, slots_avx512)
PS_FOR_AVX2 SUMS_WIDE(sums_avx2, slots_avx2)
#undef SUMS_WIDE
#undef OF_MASKS

PS_INLINE void sums_wide(int32_t n, const int64_t *restrict codes, int64_t slots, const uint8_t *restrict mask,
                         const uint64_t *restrict values, uint64_t *restrict state) {
    if (has_avx512())
        sums_avx512(n, codes, slots, mask, values, state);
    else
        sums_avx2(n, codes, slots, mask, values, state);
}
#endif

#define OF_SLOTS(TERM)                                                                                                 \
    for (int64_t slot = 0; slot < slots; slot++) {                                                                     \
        uint64_t total = 0;                                                                                            \
        EACH(total += codes[i] == slot ? (TERM) : 0;)                                                                  \
        state[slot] += total;                                                                                          \
    }

PS_INLINE void fold_count(int32_t n, const int64_t *restrict codes, int64_t slots, const uint8_t *restrict mask,
                          uint64_t *restrict state) {
    if (mask == NULL && codes == NULL) {
        state[0] += (uint64_t)n;
    } else if (slots <= TINY_SLOTS && codes != NULL) {
#if PS_HAS_WIDE
        if (slots > 2 && has_avx2()) {
            sums_wide(n, codes, slots, mask, NULL, state);
            return;
        }
#endif
        if (mask == NULL)
            OF_SLOTS((uint64_t)1)
        else
            OF_SLOTS((uint64_t)mask[i])
    } else if (mask == NULL) {
        FOLD(state[slot] += 1;)
    } else if (codes == NULL) {
        uint64_t total = 0;
        EACH(total += mask[i];)
        state[0] += total;
    } else {
        FOLD(state[slot] += mask[i];)
    }
}

PS_INLINE void fold_sum(int32_t n, const int64_t *restrict codes, int64_t slots, const uint8_t *restrict mask,
                        const uint64_t *restrict values, uint64_t *restrict state) {
    if (codes == NULL) {
        uint64_t total = 0;
        if (mask == NULL)
            EACH(total += values[i];)
        else
            EACH(total += values[i] & (0 - (uint64_t)mask[i]);)
        state[0] += total;
    } else if (slots <= TINY_SLOTS) {
#if PS_HAS_WIDE
        if (slots > 2 && has_avx2()) {
            sums_wide(n, codes, slots, mask, values, state);
            return;
        }
#endif
        if (mask == NULL)
            OF_SLOTS(values[i])
        else
            OF_SLOTS(values[i] & (0 - (uint64_t)mask[i]))
    } else if (mask == NULL) {
        FOLD(state[slot] += values[i];)
    } else {
        FOLD(state[slot] += values[i] & (0 - (uint64_t)mask[i]);)
    }
}

PS_INLINE void fold_extreme(int32_t n, const int64_t *restrict codes, int64_t slots, const uint8_t *restrict mask,
                            const int64_t *restrict values, int64_t *restrict state, int largest) {
#define BETTER(VALUE, HELD) (largest ? (VALUE) > (HELD) : (VALUE) < (HELD))
    if (mask == NULL) {
        FOLD(if (BETTER(values[i], state[slot])) state[slot] = values[i];)
    } else {
        FOLD(if (mask[i] && BETTER(values[i], state[slot])) state[slot] = values[i];)
    }
#undef BETTER
}

PS_INLINE void fold_sum_floats(int32_t n, const int64_t *restrict codes, int64_t slots, const uint8_t *restrict mask,
                               const double *restrict values, double *restrict state) {
    if (codes == NULL) {
        /* Side by side: one addition need not wait for the other. */
        double totals[8] = {0};
        int32_t whole = n & ~7;
        if (mask == NULL) {
            for (int32_t i = 0; i < whole; i += 8)
                for (int32_t j = 0; j < 8; j++) totals[j] += values[i + j];
            for (int32_t i = whole; i < n; i++) totals[0] += values[i];
        } else {
            for (int32_t i = 0; i < whole; i += 8)
                for (int32_t j = 0; j < 8; j++) totals[j] += mask[i + j] ? values[i + j] : 0.0;
            for (int32_t i = whole; i < n; i++) totals[0] += mask[i] ? values[i] : 0.0;
        }
        for (int32_t j = 1; j < 8; j++) totals[0] += totals[j];
        state[0] += totals[0];
    } else if (mask == NULL) {
        FOLD(state[slot] += values[i];)
    } else {
        FOLD(state[slot] += mask[i] ? values[i] : 0.0;)
    }
}

#endif
