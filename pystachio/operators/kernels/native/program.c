#include "program.h"

#include <stddef.h>
#include <time.h>

#include "clones.h"
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

PS_INLINE int32_t count_kept(int32_t n, const uint8_t *restrict mask) {
    int32_t kept = 0;
    EACH(kept += mask[i];)
    return kept;
}

/* Positions in the vector of the rows of `mask`; up to seven behind them are written too. */
PS_INLINE void kept_positions(int32_t n, const uint8_t *restrict mask, uint16_t *restrict kept) {
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

/* Drops rows from the vector and from the registers (x) and masks (y) that stay. */
PS_INLINE void filter(const ps_instruction *now, vector *v, int32_t *restrict chosen, int64_t *registers,
                      uint8_t *masks, int32_t left) {
    uint16_t kept[PS_VECTOR + 8];
    kept_positions(v->n, masks + (ptrdiff_t)now->a * PS_VECTOR, kept);
    int32_t n = left;
    if (v->whole) {
        int32_t base = (int32_t)v->base;
        EACH(chosen[i] = base + kept[i];)
    } else
        EACH(chosen[i] = chosen[kept[i]];)
    for (uint64_t stay = (uint64_t)now->x; stay; stay &= stay - 1) {
        int64_t *values = registers + (ptrdiff_t)__builtin_ctzll(stay) * PS_VECTOR;
        EACH(values[i] = values[kept[i]];)
    }
    for (uint64_t stay = (uint64_t)now->y; stay; stay &= stay - 1) {
        uint8_t *values = masks + (ptrdiff_t)__builtin_ctzll(stay) * PS_VECTOR;
        EACH(values[i] = values[kept[i]];)
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

/* One vector through the whole program; the number of rows that reach its end. */
PS_INLINE int32_t run_vector(const ps_run *run, vector v, int32_t *chosen, int64_t *last) {
    int64_t *registers = run->scratch;
    uint8_t *masks = (uint8_t *)(registers + run->registers * PS_VECTOR);
    const ps_instruction *end = run->code + run->length;
    for (const ps_instruction *now = run->code; now < end; now++) {
        int32_t n = v.n;
        switch (now->operation) {
        case PS_LOAD_INTEGER: load_integer(v, run->inputs[now->a], now->kind, INTEGERS(now->out)); break;
        case PS_LOAD_FLOAT: load_float(v, run->inputs[now->a], now->kind, FLOATS(now->out)); break;
        case PS_LOAD_MASK: load_mask(v, run->inputs[now->a], MASK(now->out)); break;
        case PS_INPUT_RANGE: input_range(v, run->inputs[now->a], now->kind, now->x, now->y, MASK(now->out)); break;
        case PS_INPUT_MEMBER:
            input_member(v, run->inputs[now->a], now->kind, run->tables[now->b], now->x, now->y, MASK(now->out));
            break;
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
                run->counters[2 * now->out + 1] += time - *last;
                *last = time;
                return 0;
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
        case PS_OFFSET: INTEGER_LOOP(a[i] - x < y ? a[i] - x : y)
        case PS_ADD_FLOATS: FLOAT_LOOP(a[i] + b[i])
        case PS_SUBTRACT_FLOATS: FLOAT_LOOP(a[i] - b[i])
        case PS_MULTIPLY_FLOATS: FLOAT_LOOP(a[i] * b[i])
        case PS_DIVIDE_FLOATS: FLOAT_LOOP(a[i] / b[i])
        case PS_TO_FLOAT: {
            double divisor, *out = FLOATS(now->out);
            const int64_t *a = INTEGERS(now->a);
            memcpy(&divisor, &now->x, sizeof divisor);
            EACH(out[i] = (double)a[i] / divisor;)
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
            run->counters[2 * now->out + 1] += time - *last;
            *last = time;
        } break;
        default: break;
        }
    }
    return v.n;
}

PS_CLONES void pystachio_run_program(ps_run *run) {
    int32_t chosen[PS_VECTOR];
    int64_t last = ticks();
    run->put = 0;
    for (int64_t start = 0; start < run->count; start += PS_VECTOR) {
        int64_t rest = run->count - start;
        vector v = {start, (int32_t)(rest < PS_VECTOR ? rest : PS_VECTOR), run->rows == NULL, chosen};
        if (run->rows != NULL) memcpy(chosen, run->rows + start, (size_t)v.n * sizeof *chosen);
        run->put += run_vector(run, v, chosen, &last);
    }
}
