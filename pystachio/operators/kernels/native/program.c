#include "program.h"

#include <stddef.h>
#include <time.h>

#include "clones.h"
#include "program_filters.h"
#include "program_folds.h"
#include "program_loops.h"

PS_INLINE int64_t ticks(void) {
#if defined(__x86_64__)
    return (int64_t)__builtin_ia32_rdtsc();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#endif
}

/* Drops rows from the vector and from the registers (x) and masks (y) that stay. */
PS_INLINE void filter(const ps_instruction *now, vector *v, int32_t *restrict chosen, int64_t *registers,
                      uint8_t *masks, int32_t left) {
    uint16_t kept[PS_VECTOR + 32];
    kept_positions(v->n, masks + (ptrdiff_t)now->a * PS_VECTOR, kept);
    int32_t n = left;
    if (v->whole) {
        int32_t base = (int32_t)v->base;
        EACH(chosen[i] = base + kept[i];)
    } else
        EACH_APART(chosen[i] = chosen[alone(kept[i])];)
    for (uint64_t stay = (uint64_t)now->x; stay; stay &= stay - 1) {
        int64_t *values = registers + (ptrdiff_t)__builtin_ctzll(stay) * PS_VECTOR;
        EACH_APART(values[i] = values[alone(kept[i])];)
    }
    for (uint64_t stay = (uint64_t)now->y; stay; stay &= stay - 1) {
        uint8_t *values = masks + (ptrdiff_t)__builtin_ctzll(stay) * PS_VECTOR;
        EACH_APART(values[i] = values[alone(kept[i])];)
    }
    v->n = left;
    v->whole = 0;
}

#define INTEGERS(NUMBER) (registers + (ptrdiff_t)(NUMBER) * PS_VECTOR)
#define FLOATS(NUMBER) ((double *)(registers + (ptrdiff_t)(NUMBER) * PS_VECTOR))
#define MASK(NUMBER) (masks + (ptrdiff_t)(NUMBER) * PS_VECTOR)
#define CODES (now->a < 0 ? NULL : INTEGERS(now->a))
#define OPTIONAL_MASK (now->c < 0 ? NULL : MASK(now->c))

#define INTEGER_LOOP(EXPRESSION)                                                                                       \
    {                                                                                                                  \
        uint64_t *out = (uint64_t *)INTEGERS(now->out);                                                                \
        const uint64_t *a = (uint64_t *)INTEGERS(now->a), *b = (uint64_t *)INTEGERS(now->b);                           \
        uint64_t x = (uint64_t)now->x, y = (uint64_t)now->y;                                                           \
        (void)b, (void)x, (void)y;                                                                                     \
        EACH(out[i] = EXPRESSION;)                                                                                     \
    }                                                                                                                  \
    break;

#define FLOAT_LOOP(EXPRESSION)                                                                                         \
    {                                                                                                                  \
        double *out = FLOATS(now->out);                                                                                \
        const double *a = FLOATS(now->a), *b = FLOATS(now->b);                                                         \
        EACH(out[i] = EXPRESSION;)                                                                                     \
    }                                                                                                                  \
    break;

#define MASK_LOOP(EXPRESSION)                                                                                          \
    {                                                                                                                  \
        uint8_t *out = MASK(now->out);                                                                                 \
        const uint8_t *a = MASK(now->a), *b = MASK(now->b);                                                            \
        (void)b;                                                                                                       \
        EACH(out[i] = EXPRESSION;)                                                                                     \
    }                                                                                                                  \
    break;

typedef struct {
    int64_t last;     /* when the last boundary was */
    int64_t expanded; /* rows that expansions made */
    int32_t full;     /* the outputs have no room for the vector */
} progress;

static void run_from(ps_run *run, const ps_instruction *now, vector v, int32_t *chosen, int32_t bank,
                     progress *done);

/* Pairs of rows of the vector and what they match, by the thousand through the rest of the program. */
PS_INLINE void expand(ps_run *run, const ps_instruction *now, vector v, int32_t bank, progress *done) {
    int64_t *registers = (int64_t *)((char *)run->scratch + bank * run->bank);
    int64_t *next = (int64_t *)((char *)run->scratch + (bank + 1) * run->bank);
    const int64_t *groups = registers + (ptrdiff_t)now->a * PS_VECTOR;
    int64_t *found = next + (ptrdiff_t)now->out * PS_VECTOR;
    const void *offsets = run->tables[now->b], *order = now->c < 0 ? NULL : run->tables[now->c];
    int32_t narrow = now->kind == PS_INT32, all = now->operation == PS_EXPAND_ALL;
    uint16_t of[PS_VECTOR];
    int32_t chosen[PS_VECTOR];
    int32_t n = 0;
    for (int32_t row = 0; row <= v.n && !done->full; row++) {
        int64_t at = 0, stop = 0;
        int32_t lacks = 0;
        if (row < v.n) {
            int64_t group = groups[row];
            at = narrow ? ((const int32_t *)offsets)[group] : ((const int64_t *)offsets)[group];
            stop = narrow ? ((const int32_t *)offsets)[group + 1] : ((const int64_t *)offsets)[group + 1];
            lacks = all && at == stop;
        }
        do {
            if (n == PS_VECTOR || (row == v.n && n > 0)) {
                for (uint64_t stay = (uint64_t)now->x; stay; stay &= stay - 1) {
                    ptrdiff_t place = (ptrdiff_t)__builtin_ctzll(stay) * PS_VECTOR;
                    const int64_t *restrict from = registers + place;
                    int64_t *restrict to = next + place;
                    EACH(to[i] = from[of[i]];)
                }
                for (uint64_t stay = (uint64_t)now->y; stay; stay &= stay - 1) {
                    ptrdiff_t place = (run->registers * 8 + (ptrdiff_t)__builtin_ctzll(stay)) * PS_VECTOR;
                    const uint8_t *restrict from = (uint8_t *)registers + place;
                    uint8_t *restrict to = (uint8_t *)next + place;
                    EACH(to[i] = from[of[i]];)
                }
                if (v.whole)
                    EACH(chosen[i] = (int32_t)v.base + of[i];)
                else
                    EACH(chosen[i] = v.rows[of[i]];)
                vector pairs = {0, n, 0, chosen};
                done->expanded += n;
                run_from(run, now + 1, pairs, chosen, bank + 1, done);
                n = 0;
                if (done->full) return;
            }
            if (lacks) {
                of[n] = (uint16_t)row;
                found[n++] = 0;
            }
            for (; at < stop && n < PS_VECTOR; at++) {
                of[n] = (uint16_t)row;
                found[n++] = 1 + (order == NULL ? at
                                  : narrow      ? ((const int32_t *)order)[at]
                                                : ((const int64_t *)order)[at]);
            }
        } while (at < stop);
    }
}

/* A vector through the rest of the program. */
PS_CLONES static void run_from(ps_run *run, const ps_instruction *now, vector v, int32_t *chosen, int32_t bank,
                               progress *done) {
    int64_t *registers = (int64_t *)((char *)run->scratch + bank * run->bank);
    uint8_t *masks = (uint8_t *)(registers + run->registers * PS_VECTOR);
    const ps_instruction *end = run->code + run->length;
    for (; now < end; now++) {
        int32_t n = v.n;
        if (now->operation >= PS_PUT_INPUT && now->operation <= PS_PUT_ROW && run->put + n > run->capacity) {
            done->full = 1;
            return;
        }
        switch (now->operation) {
        case PS_LOAD_INTEGER: load_integer(v, run->inputs[now->a], now->kind, INTEGERS(now->out)); break;
        case PS_LOAD_FLOAT: load_float(v, run->inputs[now->a], now->kind, FLOATS(now->out)); break;
        case PS_LOAD_MASK: load_mask(v, run->inputs[now->a], MASK(now->out)); break;
        case PS_INPUT_RANGE: input_range(v, run->inputs[now->a], now->kind, now->x, now->y, MASK(now->out)); break;
        case PS_INPUT_COMPARE:
            input_compare(v, run->inputs[now->a], run->inputs[now->b], now->kind, now->c, MASK(now->out));
            break;
        case PS_INPUT_MEMBER:
            input_is_member(v, run->inputs[now->a], now->kind, run->tables[now->b], now->x, now->y, MASK(now->out));
            break;
        case PS_INPUT_BIT:
            input_bit(v, run->inputs[now->a], now->kind, run->tables[now->b], now->x, now->y, MASK(now->out));
            break;
        case PS_BIT: bit(n, INTEGERS(now->a), run->tables[now->b], now->x, now->y, MASK(now->out)); break;
        case PS_BLOOM: may_have(n, INTEGERS(now->a), run->tables[now->b], now->x, MASK(now->out)); break;
        case PS_RANGE: {
            const uint64_t *a = (uint64_t *)INTEGERS(now->a);
            uint64_t low = (uint64_t)now->x, width = (uint64_t)now->y - low;
            uint8_t *out = MASK(now->out);
            EACH(out[i] = a[i] - low <= width;)
        } break;
        case PS_MEMBER: member(n, INTEGERS(now->a), run->tables[now->b], now->x, now->y, MASK(now->out)); break;
        case PS_COMPARE: compare(n, now->kind, INTEGERS(now->a), INTEGERS(now->b), MASK(now->out)); break;
        case PS_COMPARE_FLOATS: compare_floats(n, now->kind, FLOATS(now->a), FLOATS(now->b), MASK(now->out)); break;
        case PS_AND: MASK_LOOP(a[i] & b[i])
        case PS_OR: MASK_LOOP(a[i] | b[i])
        case PS_NOT: MASK_LOOP(a[i] ^ 1)
        case PS_FILTER: {
            int32_t left = count_kept(n, MASK(now->a));
            if (left == 0) {
                int64_t time = ticks();
                run->counters[2 * now->out + 1] += time - done->last;
                done->last = time;
                return;
            }
            if (left < n) filter(now, &v, chosen, registers, masks, left);
        } break;
        case PS_CONSTANT: {
            int64_t *out = INTEGERS(now->out);
            EACH(out[i] = now->x;)
        } break;
        case PS_ADD: INTEGER_LOOP(a[i] + b[i])
        case PS_SUBTRACT: INTEGER_LOOP(a[i] - b[i])
        case PS_MULTIPLY: INTEGER_LOOP(a[i] * b[i])
        case PS_SCALE: INTEGER_LOOP(a[i] * x + y)
        case PS_APPEND: INTEGER_LOOP(a[i] * x + b[i])
        case PS_DIVIDE: divide(n, now->kind, INTEGERS(now->a), now->x, INTEGERS(now->out)); break;
        case PS_OFFSET: INTEGER_LOOP(a[i] - x < y ? a[i] - x : y)
        case PS_ADD_FLOATS: FLOAT_LOOP(a[i] + b[i])
        case PS_SUBTRACT_FLOATS: FLOAT_LOOP(a[i] - b[i])
        case PS_MULTIPLY_FLOATS: FLOAT_LOOP(a[i] * b[i])
        case PS_DIVIDE_FLOATS: FLOAT_LOOP(a[i] / b[i])
        case PS_TO_FLOAT: {
            double divisor, *out = FLOATS(now->out);
            const int64_t *a = INTEGERS(now->a);
            memcpy(&divisor, &now->x, sizeof divisor);
            if (has_avx2() && !has_avx512())
                EACH(out[i] = to_double(a[i]);)
            else
                EACH(out[i] = (double)a[i];)
            if (divisor != 1.0) EACH(out[i] /= divisor;)
        } break;
        case PS_FROM_MASK: {
            int64_t *out = INTEGERS(now->out);
            const uint8_t *a = MASK(now->a);
            EACH(out[i] = a[i];)
        } break;
        case PS_CHOOSE: {
            int64_t *out = INTEGERS(now->out);
            const int64_t *b = INTEGERS(now->b), *c = INTEGERS(now->c);
            const uint8_t *a = MASK(now->a);
            EACH(out[i] = a[i] ? b[i] : c[i];)
        } break;
        case PS_GATHER: gather(n, INTEGERS(now->a), run->tables[now->b], now->kind, now->x, INTEGERS(now->out)); break;
        case PS_GATHER_FLOAT:
            gather_float(n, INTEGERS(now->a), run->tables[now->b], now->kind, now->x, FLOATS(now->out));
            break;
        case PS_HASH_FIND:
            hash_find(n, INTEGERS(now->a), run->tables[now->b], now->x, INTEGERS(now->out));
            break;
        case PS_RANK: rank(n, INTEGERS(now->a), run->tables[now->b], INTEGERS(now->out)); break;
        case PS_EXPAND:
        case PS_EXPAND_ALL: expand(run, now, v, bank, done); return;
        case PS_FLAG: {
            uint8_t *flags = (uint8_t *)run->tables[now->b] + now->x;
            const int64_t *a = INTEGERS(now->a);
            EACH(flags[a[i]] = 1;)
        } break;
        case PS_PUT_INPUT: put_input(v, run->inputs[now->a], now->kind, run->outputs[now->out], run->put); break;
        case PS_PUT_TABLE:
            put_table(n, INTEGERS(now->a), run->tables[now->b], now->kind, now->x, run->outputs[now->out], run->put);
            break;
        case PS_PUT_INTEGER: put_integer(n, INTEGERS(now->a), now->kind, run->outputs[now->out], run->put); break;
        case PS_PUT_FLOAT: put_float(n, FLOATS(now->a), now->kind, run->outputs[now->out], run->put); break;
        case PS_PUT_MASK: memcpy((uint8_t *)run->outputs[now->out] + run->put, MASK(now->a), (size_t)n); break;
        case PS_PUT_ROW: put_row(v, (int32_t *)run->outputs[now->out] + run->put); break;
        case PS_FOLD_COUNT: fold_count(n, CODES, now->x, OPTIONAL_MASK, run->states[now->out]); break;
        case PS_FOLD_SUM:
            fold_sum(n, CODES, now->x, OPTIONAL_MASK, (uint64_t *)INTEGERS(now->b), run->states[now->out]);
            break;
        case PS_FOLD_MINIMUM:
            fold_extreme(n, CODES, now->x, OPTIONAL_MASK, INTEGERS(now->b), run->states[now->out], 0);
            break;
        case PS_FOLD_MAXIMUM:
            fold_extreme(n, CODES, now->x, OPTIONAL_MASK, INTEGERS(now->b), run->states[now->out], 1);
            break;
        case PS_FOLD_SUM_FLOATS:
            fold_sum_floats(n, CODES, now->x, OPTIONAL_MASK, FLOATS(now->b), run->states[now->out]);
            break;
        case PS_BOUNDARY: {
            int64_t time = ticks();
            run->counters[2 * now->out] += n;
            run->counters[2 * now->out + 1] += time - done->last;
            done->last = time;
        } break;
        default: break;
        }
    }
    run->put += v.n;
}

/* The rest of a part. */
static void run_part(ps_run *run, const ps_part *part, progress *done) {
    int32_t chosen[PS_VECTOR];
    int64_t counters[2 * PS_MOST_BOUNDARIES];
    run->inputs = part->inputs;
    while (run->begin < part->count && done->expanded <= run->most) {
        int64_t rest = part->count - run->begin, put = run->put;
        vector v = {run->begin, (int32_t)(rest < run->step ? rest : run->step), part->rows == NULL, chosen};
        if (part->rows != NULL) memcpy(chosen, part->rows + run->begin, (size_t)v.n * sizeof *chosen);
        memcpy(counters, run->counters, (size_t)run->boundaries * 2 * sizeof *counters);
        run_from(run, run->code, v, chosen, 0, done);
        if (done->full) {
            run->put = put;
            memcpy(run->counters, counters, (size_t)run->boundaries * 2 * sizeof *counters);
            return;
        }
        run->begin += v.n;
    }
}

void pystachio_run_program(ps_run *run) {
    progress done = {ticks(), 0, 0};
    run->put = 0;
    while (run->part < run->part_count && !done.full && done.expanded <= run->most) {
        ps_part *part = run->parts + run->part;
        run_part(run, part, &done);
        if (run->begin < part->count) return;
        part->put = run->put;
        run->part++;
        run->begin = 0;
    }
}
