/* See kernels/floats.py. */
#include "floats.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "clones.h"

/* The nearest whole number, halves to even. What is as large has no fraction, and what is added leaves none. */
PS_INLINE double nearest(double value) {
    double large = value < 0.0 ? -0x1p52 : 0x1p52;
    double whole = (value + large) - large;
    return value < 0x1p52 && value > -0x1p52 ? whole : value;
}

#define DEFINE_WHOLE_FLOATS(NAME, FLOAT)                                                                               \
    PS_CLONES static bool NAME(const FLOAT *restrict values, const uint8_t *restrict valid, int64_t rows,              \
                               int64_t *restrict integers, double *lowest, double *highest) {                          \
        bool outside = false;                                                                                          \
        double low = 0x1p63, high = -0x1p63;                                                                           \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            bool counts = !valid || valid[i];                                                                          \
            double whole = nearest((double)values[i]);                                                                 \
            /* Written so that NaN is outside too. */                                                                  \
            bool inside = whole < 0x1p63 && whole > -0x1p63;                                                           \
            outside |= counts & !inside;                                                                               \
            whole = counts & inside ? whole : 0.0;                                                                     \
            low = counts && whole < low ? whole : low;                                                                 \
            high = counts && whole > high ? whole : high;                                                              \
            integers[i] = (int64_t)whole;                                                                              \
        }                                                                                                              \
        *lowest = low;                                                                                                 \
        *highest = high;                                                                                               \
        return !outside;                                                                                               \
    }

DEFINE_WHOLE_FLOATS(whole_floats_4, float)
DEFINE_WHOLE_FLOATS(whole_floats_8, double)

int32_t pystachio_whole_floats(const void *values, int32_t width, const uint8_t *valid, int64_t rows, int64_t *integers,
                               int64_t *range) {
    double low, high;
    bool fits;
    if (width == 4) {
        fits = whole_floats_4(values, valid, rows, integers, &low, &high);
    } else if (width == 8) {
        fits = whole_floats_8(values, valid, rows, integers, &low, &high);
    } else {
        return PS_NOT_HANDLED;
    }
    if (!fits) return PS_NOT_HANDLED;
    range[0] = low <= high ? (int64_t)low : 0;
    range[1] = low <= high ? (int64_t)high : 0;
    return PS_OK;
}

/* LOOP with the code of row i, for whichever width codes have; OTHERWISE for another one. */
#define FOR_CODES(LOOP, CODES, WIDTH, OTHERWISE)                                                                       \
    switch (WIDTH) {                                                                                                   \
    case 1: LOOP(((const int8_t *)(CODES))[i]) break;                                                                  \
    case 2: LOOP(((const int16_t *)(CODES))[i]) break;                                                                 \
    case 4: LOOP(((const int32_t *)(CODES))[i]) break;                                                                 \
    case 8: LOOP(((const int64_t *)(CODES))[i]) break;                                                                 \
    default: OTHERWISE;                                                                                                \
    }

/* Rows that follow each other go to different sums of their slot: they need not wait for each other. */
enum { LANES = 4, MOST_FEW = 2048 };

typedef struct {
    double sum;
    double other;
} ps_sums;

PS_INLINE ps_sums added_up(const ps_sums *lane, int64_t lanes) {
    ps_sums all = lane[0];
    for (int64_t i = 1; i < lanes; i++) {
        all.sum += lane[i].sum;
        all.other += lane[i].other;
    }
    return all;
}

/* CODE is that of row i. */
#define SUM_MOMENTS(CODE)                                                                                              \
    for (int64_t i = 0; i < rows; i++) {                                                                               \
        ps_sums *here = sums + (int64_t)(CODE) * lanes + (i & (lanes - 1));                                            \
        double value = values[i];                                                                                      \
        bool counts_here = !counted || counted[i];                                                                     \
        if (is_first) {                                                                                                \
            here->sum += counts_here ? value : 0.0;                                                                    \
            here->other += counts_here;                                                                                \
        } else {                                                                                                       \
            double off = counts_here ? value - means[(int64_t)(CODE)] : 0.0;                                           \
            here->sum += off;                                                                                          \
            here->other += off * off;                                                                                  \
        }                                                                                                              \
    }

static bool sum_moments(const double *restrict values, const int8_t *restrict counted, const void *codes, int32_t width,
                        int64_t rows, int64_t lanes, ps_sums *restrict sums, const double *restrict means,
                        bool is_first) {
    if (!codes) {
        SUM_MOMENTS(0)
    } else {
        FOR_CODES(SUM_MOMENTS, codes, width, return false)
    }
    return true;
}

int32_t pystachio_group_moments(const double *values, const int8_t *counted, const void *codes, int32_t width,
                                int64_t rows, int64_t slots, double *counts, double *means, double *squares) {
    ps_sums few[MOST_FEW];
    int64_t lanes = slots * LANES <= MOST_FEW ? LANES : 1;
    size_t length = (size_t)(slots * lanes), nbytes = length * sizeof *few;
    ps_sums *sums = length <= MOST_FEW ? few : malloc(nbytes);
    if (!sums) return PS_NO_MEMORY;
    memset(sums, 0, nbytes);
    bool is_done = sum_moments(values, counted, codes, width, rows, lanes, sums, means, true);
    for (int64_t slot = 0; is_done && slot < slots; slot++) {
        ps_sums all = added_up(sums + slot * lanes, lanes);
        counts[slot] = all.other;
        means[slot] = all.sum / (all.other > 0.0 ? all.other : 1.0);
    }
    if (is_done) memset(sums, 0, nbytes);
    is_done = is_done && sum_moments(values, counted, codes, width, rows, lanes, sums, means, false);
    for (int64_t slot = 0; is_done && slot < slots; slot++) {
        ps_sums off = added_up(sums + slot * lanes, lanes);
        double divisor = counts[slot] > 0.0 ? counts[slot] : 1.0;
        squares[slot] = off.other - off.sum * off.sum / divisor;
        means[slot] += off.sum / divisor;
    }
    if (sums != few) free(sums);
    return is_done ? PS_OK : PS_NOT_HANDLED;
}

/* CODE is that of row i. */
#define ADD_FLOATS(CODE)                                                                                               \
    for (int64_t i = 0; i < rows; i++) {                                                                               \
        double value = width == 4 ? (double)((const float *)values)[i] : ((const double *)values)[i];                  \
        lane[(int64_t)(CODE) * lanes + (i & (lanes - 1))] += !counted || counted[i] ? value : 0.0;                     \
    }

int32_t pystachio_group_float_sums(const void *values, int32_t width, const uint8_t *counted, const void *codes,
                                   int32_t code_width, int64_t rows, int64_t slots, double *sums) {
    if (width != 4 && width != 8) return PS_NOT_HANDLED;
    double few[MOST_FEW];
    bool is_few = slots * LANES <= MOST_FEW;
    int64_t lanes = is_few ? LANES : 1;
    double *lane = is_few ? few : sums;
    memset(lane, 0, (size_t)(slots * lanes) * sizeof *lane);
    if (!codes) {
        ADD_FLOATS(0)
    } else {
        FOR_CODES(ADD_FLOATS, codes, code_width, return PS_NOT_HANDLED)
    }
    for (int64_t slot = 0; is_few && slot < slots; slot++) {
        double sum = 0.0;
        for (int way = 0; way < LANES; way++) sum += few[slot * LANES + way];
        sums[slot] = sum;
    }
    return PS_OK;
}

/* See sort.c. Inverted for the lowest: only the highest is looked for. */
PS_INLINE int64_t ordered_word(double value, int64_t inverted) {
    int64_t bits;
    value += 0.0;
    memcpy(&bits, &value, sizeof bits);
    bits = value != value ? 0x7FF8000000000000 : bits;
    return bits ^ ((bits >> 63) & INT64_MAX) ^ inverted;
}

#define DEFINE_EXTREME(NAME, FLOAT)                                                                                    \
    PS_CLONES static int64_t NAME(const FLOAT *restrict values, const uint8_t *restrict valid, int64_t rows,           \
                                  int64_t inverted) {                                                                  \
        int64_t best = INT64_MIN;                                                                                      \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            int64_t word = ordered_word((double)values[i], inverted);                                                  \
            word = !valid || valid[i] ? word : INT64_MIN;                                                              \
            best = word > best ? word : best;                                                                          \
        }                                                                                                              \
        return best;                                                                                                   \
    }

DEFINE_EXTREME(extreme_4, float)
DEFINE_EXTREME(extreme_8, double)

/* CODE is that of row i. */
#define KEEP_BEST(CODE)                                                                                                \
    for (int64_t i = 0; i < rows; i++) {                                                                               \
        double value = width == 4 ? (double)((const float *)values)[i] : ((const double *)values)[i];                  \
        int64_t word = !valid || valid[i] ? ordered_word(value, inverted) : INT64_MIN;                                 \
        int64_t *here = best + (CODE);                                                                                 \
        *here = word > *here ? word : *here;                                                                           \
    }

int32_t pystachio_float_extremes(const void *values, int32_t width, const uint8_t *valid, const void *codes,
                                 int32_t code_width, int64_t rows, int64_t slots, int32_t largest, int64_t *best) {
    int64_t inverted = largest ? 0 : -1;
    if (width != 4 && width != 8) return PS_NOT_HANDLED;
    for (int64_t slot = 0; slot < slots; slot++) best[slot] = INT64_MIN;
    if (!codes) {
        best[0] = width == 4 ? extreme_4(values, valid, rows, inverted) : extreme_8(values, valid, rows, inverted);
    } else {
        FOR_CODES(KEEP_BEST, codes, code_width, return PS_NOT_HANDLED)
    }
    for (int64_t slot = 0; slot < slots; slot++) best[slot] ^= inverted;
    return PS_OK;
}
