/* The loops of program.c. A vector's rows are [base, base + n) when `whole`, else those at `rows`. */
#ifndef PYSTACHIO_PROGRAM_LOOPS_H
#define PYSTACHIO_PROGRAM_LOOPS_H

#include <string.h>

#include "clones.h"
#include "hash.h"
#include "key_sets.h"
#include "program.h"
#include "ranks.h"
#include "slots.h"

typedef struct {
    int64_t base;
    int32_t n;
    int32_t whole;
    const int32_t *rows;
} vector;

#define EACH(STATEMENT) for (int32_t i = 0; i < n; i++) STATEMENT

/* A number that the compiler takes for unknown. */
PS_INLINE int64_t alone(int64_t number) {
    __asm__("" : "+r"(number));
    return number;
}

/* EACH for values from all over a table, whose places are `alone`. Compilers would make vectors of places, take one
 * after the other out again, and put what is there together in a vector, and need up to twice as long. */
#define EACH_APART(STATEMENT)                                                                                          \
    {                                                                                                                  \
        int32_t i = 0;                                                                                                 \
        for (; i + 4 <= n; i++) {                                                                                      \
            STATEMENT NEXT_APART STATEMENT NEXT_APART STATEMENT NEXT_APART STATEMENT                                   \
        }                                                                                                              \
        for (; i < n; i++) STATEMENT                                                                                   \
    }
#define NEXT_APART                                                                                                     \
    __asm__("" ::: "memory");                                                                                          \
    i++;

#define OF_INTEGERS(KIND, LOOP)                                                                                        \
    switch (KIND) {                                                                                                    \
    case PS_INT8: LOOP(int8_t, uint8_t) break;                                                                         \
    case PS_INT16: LOOP(int16_t, uint16_t) break;                                                                      \
    case PS_INT32: LOOP(int32_t, uint32_t) break;                                                                      \
    case PS_INT64: LOOP(int64_t, uint64_t) break;                                                                      \
    default: LOOP(uint8_t, uint8_t) break;                                                                             \
    }

#define OF_FLOATS(KIND, LOOP)                                                                                          \
    if ((KIND) == PS_FLOAT) {                                                                                          \
        LOOP(float)                                                                                                    \
    } else {                                                                                                           \
        LOOP(double)                                                                                                   \
    }

#define OF_WIDTHS(KIND, LOOP)                                                                                          \
    switch (KIND) {                                                                                                    \
    case PS_INT16: LOOP(uint16_t) break;                                                                               \
    case PS_INT32:                                                                                                     \
    case PS_FLOAT: LOOP(uint32_t) break;                                                                               \
    case PS_INT64:                                                                                                     \
    case PS_DOUBLE: LOOP(uint64_t) break;                                                                              \
    default: LOOP(uint8_t) break;                                                                                      \
    }

PS_INLINE void load_integer(vector v, const void *input, int32_t kind, int64_t *restrict out) {
    int32_t n = v.n;
#define LOOP(TYPE, UNSIGNED)                                                                                           \
    {                                                                                                                  \
        const TYPE *restrict column = input;                                                                           \
        if (v.whole) {                                                                                                 \
            const TYPE *restrict from = column + v.base;                                                               \
            EACH(out[i] = from[i];)                                                                                    \
        } else                                                                                                         \
            EACH_APART(out[i] = column[alone(v.rows[i])];)                                                             \
    }
    OF_INTEGERS(kind, LOOP)
#undef LOOP
}

PS_INLINE void load_float(vector v, const void *input, int32_t kind, double *restrict out) {
    int32_t n = v.n;
#define LOOP(TYPE)                                                                                                     \
    {                                                                                                                  \
        const TYPE *restrict column = input;                                                                           \
        if (v.whole) {                                                                                                 \
            const TYPE *restrict from = column + v.base;                                                               \
            EACH(out[i] = from[i];)                                                                                    \
        } else                                                                                                         \
            EACH_APART(out[i] = column[alone(v.rows[i])];)                                                             \
    }
    OF_FLOATS(kind, LOOP)
#undef LOOP
}

PS_INLINE void load_mask(vector v, const void *input, uint8_t *restrict out) {
    const uint8_t *restrict column = input;
    int32_t n = v.n;
    if (v.whole)
        memcpy(out, column + v.base, (size_t)n);
    else
        EACH_APART(out[i] = column[alone(v.rows[i])];)
}

PS_INLINE void input_range(vector v, const void *input, int32_t kind, int64_t low, int64_t high,
                           uint8_t *restrict out) {
    int32_t n = v.n;
#define LOOP(TYPE, UNSIGNED)                                                                                           \
    {                                                                                                                  \
        const TYPE *restrict column = input;                                                                           \
        UNSIGNED first = (UNSIGNED)low, width = (UNSIGNED)((UNSIGNED)high - (UNSIGNED)low);                            \
        if (v.whole) {                                                                                                 \
            const TYPE *restrict from = column + v.base;                                                               \
            EACH(out[i] = (UNSIGNED)((UNSIGNED)from[i] - first) <= width;)                                             \
        } else                                                                                                         \
            EACH_APART(out[i] = (UNSIGNED)((UNSIGNED)column[alone(v.rows[i])] - first) <= width;)                      \
    }
    OF_INTEGERS(kind, LOOP)
#undef LOOP
}

#define COMPARED(EACH_OF, LEFT, RIGHT)                                                                                 \
    switch (comparison) {                                                                                              \
    case PS_EQUAL: EACH_OF(out[i] = (LEFT) == (RIGHT);) break;                                                         \
    case PS_NOT_EQUAL: EACH_OF(out[i] = (LEFT) != (RIGHT);) break;                                                     \
    case PS_LESS: EACH_OF(out[i] = (LEFT) < (RIGHT);) break;                                                           \
    default: EACH_OF(out[i] = (LEFT) <= (RIGHT);) break;                                                               \
    }

PS_INLINE void input_compare(vector v, const void *left, const void *right, int32_t kind, int32_t comparison,
                             uint8_t *restrict out) {
    int32_t n = v.n;
#define LOOP(TYPE, UNSIGNED)                                                                                           \
    {                                                                                                                  \
        const TYPE *restrict a = left, *restrict b = right;                                                            \
        if (v.whole) {                                                                                                 \
            a += v.base, b += v.base;                                                                                  \
            COMPARED(EACH, a[i], b[i])                                                                                 \
        } else                                                                                                         \
            COMPARED(EACH_APART, a[alone(v.rows[i])], b[alone(v.rows[i])])                                             \
    }
    OF_INTEGERS(kind, LOOP)
#undef LOOP
}
#undef COMPARED

PS_INLINE void input_member(vector v, const void *input, int32_t kind, const uint8_t *restrict table, int64_t low,
                            int64_t span, uint8_t *restrict out) {
    int32_t n = v.n;
#define MEMBER(VALUE)                                                                                                  \
    {                                                                                                                  \
        uint64_t at = (uint64_t)(int64_t)(VALUE) - (uint64_t)low;                                                      \
        out[i] = at < (uint64_t)span ? table[at] : 0;                                                                  \
    }
#define LOOP(TYPE, UNSIGNED)                                                                                           \
    {                                                                                                                  \
        const TYPE *restrict column = input;                                                                           \
        if (v.whole) {                                                                                                 \
            const TYPE *restrict from = column + v.base;                                                               \
            EACH(MEMBER(from[i]))                                                                                      \
        } else                                                                                                         \
            EACH_APART(MEMBER(column[alone(v.rows[i])]))                                                               \
    }
    OF_INTEGERS(kind, LOOP)
#undef LOOP
}

PS_INLINE void member(int32_t n, const int64_t *restrict values, const uint8_t *restrict table, int64_t low,
                      int64_t span, uint8_t *restrict out) {
    EACH(MEMBER(values[i]))
}
#undef MEMBER

PS_INLINE void bit(int32_t n, const int64_t *restrict values, const uint8_t *restrict bits, int64_t low, int64_t span,
                   uint8_t *restrict out) {
    for (int32_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)values[i] - (uint64_t)low;
        uint64_t safe = at < (uint64_t)span ? at : 0;
        out[i] = (bits[safe >> 3] >> (safe & 7)) & (at < (uint64_t)span);
    }
}

PS_INLINE void bloom(int32_t n, const int64_t *restrict values, const uint64_t *restrict words, int64_t shift,
                     uint8_t *restrict out) {
    for (int32_t i = 0; i < n; i++) {
        uint64_t hash = ps_bloom_hash(values[i]), wanted = ps_bloom_bits(hash);
        out[i] = (words[hash >> shift] & wanted) == wanted;
    }
}

PS_INLINE void compare(int32_t n, int32_t comparison, const int64_t *restrict a, const int64_t *restrict b,
                       uint8_t *restrict out) {
    switch (comparison) {
    case PS_EQUAL: EACH(out[i] = a[i] == b[i];) break;
    case PS_NOT_EQUAL: EACH(out[i] = a[i] != b[i];) break;
    case PS_LESS: EACH(out[i] = a[i] < b[i];) break;
    default: EACH(out[i] = a[i] <= b[i];) break;
    }
}

/* (double)value, for loops with AVX2, which converts no 64-bit integers. Both halves are put where they are the last
 * bits of a double, 2^52 and more for the lower one, 2^84 and more for the upper one with its sign; only the sum of the
 * two is rounded. */
PS_INLINE double to_double(int64_t value) {
    uint64_t low = ((uint64_t)value & 0xFFFFFFFF) | 0x4330000000000000;
    uint64_t high = ((uint64_t)value >> 32) ^ 0x4530000080000000;
    double lower, upper;
    memcpy(&lower, &low, sizeof lower);
    memcpy(&upper, &high, sizeof upper);
    return upper - (0x1p84 + 0x1p63 + 0x1p52) + lower;
}

PS_INLINE uint8_t float_less(double a, double b) { return (a < b) | ((b != b) & (a == a)); }

PS_INLINE uint8_t float_equal(double a, double b) { return (a == b) | ((a != a) & (b != b)); }

PS_INLINE void compare_floats(int32_t n, int32_t comparison, const double *restrict a, const double *restrict b,
                              uint8_t *restrict out) {
    switch (comparison) {
    case PS_EQUAL: EACH(out[i] = float_equal(a[i], b[i]);) break;
    case PS_NOT_EQUAL: EACH(out[i] = !float_equal(a[i], b[i]);) break;
    case PS_LESS: EACH(out[i] = float_less(a[i], b[i]);) break;
    default: EACH(out[i] = !float_less(b[i], a[i]);) break;
    }
}

PS_INLINE void gather(int32_t n, const int64_t *restrict at, const void *table, int32_t kind, int64_t shift,
                      int64_t *restrict out) {
#define LOOP(TYPE, UNSIGNED)                                                                                           \
    {                                                                                                                  \
        const TYPE *restrict values = (const TYPE *)table + shift;                                                     \
        EACH_APART(out[i] = values[alone(at[i])];)                                                                     \
    }
    OF_INTEGERS(kind, LOOP)
#undef LOOP
}

PS_INLINE void gather_float(int32_t n, const int64_t *restrict at, const void *table, int32_t kind, int64_t shift,
                            double *restrict out) {
#define LOOP(TYPE)                                                                                                     \
    {                                                                                                                  \
        const TYPE *restrict values = (const TYPE *)table + shift;                                                     \
        EACH_APART(out[i] = values[alone(at[i])];)                                                                     \
    }
    OF_FLOATS(kind, LOOP)
#undef LOOP
}

/* What lies under a NULL may be any number: the conversion to double and back stays within int64. */
PS_INLINE void divide(int32_t n, int32_t kind, const int64_t *restrict a, int64_t by, int64_t *restrict out) {
    int64_t down = !(kind & 1);
    if (kind & 2) {
        double divisor = (double)by;
        EACH({
            int64_t whole = (int64_t)((double)a[i] / divisor);
            int64_t rest = (int64_t)((uint64_t)a[i] - (uint64_t)whole * (uint64_t)by);
            out[i] = whole - (down & (rest < 0));
        })
    } else
        EACH(out[i] = a[i] / by - (down & (a[i] % by < 0));)
}

PS_INLINE void rank(int32_t n, const int64_t *restrict codes, const ps_ranks *restrict ranks, int64_t *restrict out) {
    EACH(out[i] = ps_rank(ranks, (uint64_t)codes[i]);)
}

PS_INLINE void hash_find(int32_t n, const int64_t *restrict wanted, const ps_key_slot *restrict slots, int64_t capacity,
                         int64_t *restrict out) {
    uint64_t mask = (uint64_t)capacity - 1;
    int shift = home_shift(capacity);
    for (int32_t i = 0; i < n; i++) {
        out[i] = (int64_t)(hash_of(wanted[i]) >> shift);
        prefetch(slots + out[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)out[i];
        while (slots[at].number && slots[at].key != wanted[i]) at = (at + 1) & mask;
        out[i] = slots[at].number;
    }
}

PS_INLINE void put_input(vector v, const void *input, int32_t kind, void *output, int64_t put) {
    int32_t n = v.n;
#define LOOP(TYPE)                                                                                                     \
    {                                                                                                                  \
        const TYPE *restrict column = input;                                                                           \
        TYPE *restrict to = (TYPE *)output + put;                                                                      \
        if (v.whole)                                                                                                   \
            memcpy(to, column + v.base, (size_t)n * sizeof(TYPE));                                                     \
        else                                                                                                           \
            EACH_APART(to[i] = column[alone(v.rows[i])];)                                                              \
    }
    OF_WIDTHS(kind, LOOP)
#undef LOOP
}

PS_INLINE void put_table(int32_t n, const int64_t *restrict at, const void *table, int32_t kind, int64_t shift,
                         void *output, int64_t put) {
#define LOOP(TYPE)                                                                                                     \
    {                                                                                                                  \
        const TYPE *restrict values = (const TYPE *)table + shift;                                                     \
        TYPE *restrict to = (TYPE *)output + put;                                                                      \
        EACH_APART(to[i] = values[alone(at[i])];)                                                                      \
    }
    OF_WIDTHS(kind, LOOP)
#undef LOOP
}

PS_INLINE void put_integer(int32_t n, const int64_t *restrict values, int32_t kind, void *output, int64_t put) {
#define LOOP(TYPE, UNSIGNED)                                                                                           \
    {                                                                                                                  \
        TYPE *restrict to = (TYPE *)output + put;                                                                      \
        EACH(to[i] = (TYPE)values[i];)                                                                                 \
    }
    OF_INTEGERS(kind, LOOP)
#undef LOOP
}

PS_INLINE void put_float(int32_t n, const double *restrict values, int32_t kind, void *output, int64_t put) {
#define LOOP(TYPE)                                                                                                     \
    {                                                                                                                  \
        TYPE *restrict to = (TYPE *)output + put;                                                                      \
        EACH(to[i] = (TYPE)values[i];)                                                                                 \
    }
    OF_FLOATS(kind, LOOP)
#undef LOOP
}

PS_INLINE void put_row(vector v, int32_t *restrict to) {
    int32_t n = v.n;
    if (v.whole)
        EACH(to[i] = (int32_t)(v.base + i);)
    else
        EACH(to[i] = v.rows[i];)
}

#endif
