/* An interpreter of programs over vectors of rows: what a scan, its filters, joins and aggregation do to a batch, in one
 * call. After Boncz, Zukowski and Nes, "MonetDB/X100: Hyper-Pipelining Query Execution" (2005): each instruction is a
 * loop over PS_VECTOR rows whose registers stay in the cache.
 *
 * Integer registers hold int64, float registers double (they share numbers), masks one byte, 0 or 1, per row. A filter
 * drops rows from the vector: the registers that it names stay aligned with the rows that remain. Programs are the
 * engine's own: every number in them is in range, and so is what they look up. */
#ifndef PYSTACHIO_PROGRAM_H
#define PYSTACHIO_PROGRAM_H

#include "decode.h"

#define PS_VECTOR 1024

enum ps_kind { PS_INT8, PS_INT16, PS_INT32, PS_INT64, PS_BOOL, PS_FLOAT, PS_DOUBLE };

enum ps_comparison { PS_EQUAL, PS_NOT_EQUAL, PS_LESS, PS_LESS_EQUAL };

/* `in`, `table`, `to` and `state` number the run's inputs, tables, outputs and states. */
enum ps_operation {
    PS_LOAD_INTEGER,   /* out = in[a], of `kind` */
    PS_LOAD_FLOAT,     /* out = in[a], of `kind` */
    PS_LOAD_MASK,      /* mask out = in[a] */
    PS_INPUT_RANGE,    /* mask out = x <= in[a] <= y; both fit `kind` */
    PS_INPUT_COMPARE,  /* mask out = in[a] (comparison) c in[b], both of `kind` */
    PS_INPUT_MEMBER,   /* mask out = table[b][in[a] - x], 0 outside [0, y) */
    PS_INPUT_BIT,      /* mask out = bit in[a] - x of table[b], 0 outside [0, y); 32-bit words, x + y < 2^31, `kind` <= 32 bits */
    PS_BIT,            /* mask out = bit a - x of table[b], 0 outside [0, y) */
    PS_BLOOM,          /* mask out = whether the Bloom filter table[b] may have a; x: its shift (key_sets.h) */
    PS_RANGE,          /* mask out = x <= a <= y */
    PS_MEMBER,         /* mask out = table[b][a - x], 0 outside [0, y) */
    PS_COMPARE,        /* mask out = a `kind` b */
    PS_COMPARE_FLOATS, /* the same, NaN being equal to itself and above all others */
    PS_AND,            /* mask out = a & b */
    PS_OR,             /* mask out = a | b */
    PS_NOT,            /* mask out = !a */
    PS_FILTER,         /* rows of mask a; x: bits of the registers that stay, y: of the masks; out: counter */
    PS_CONSTANT,       /* out = x, the bits of either kind of register */
    PS_ADD,            /* out = a + b */
    PS_SUBTRACT,       /* out = a - b */
    PS_MULTIPLY,       /* out = a * b */
    PS_SCALE,          /* out = a * x + y */
    PS_APPEND,         /* out = a * x + b */
    PS_DIVIDE,         /* out = a / x, x > 0, rounded down, or towards zero with bit 0 of `kind`; bit 1: |a|, x <= 2^52 */
    PS_ADD_FLOATS,     /* out = a + b */
    PS_SUBTRACT_FLOATS,
    PS_MULTIPLY_FLOATS,
    PS_DIVIDE_FLOATS,
    PS_TO_FLOAT,    /* out = a / x, x being the bits of a double */
    PS_FROM_MASK,   /* out = mask a */
    PS_CHOOSE,      /* out = mask a ? b : c */
    PS_OFFSET,      /* out = a - x where that is in [0, y), else y */
    PS_GATHER,      /* out = table[b][a + x], integers of `kind` */
    PS_GATHER_FLOAT,
    PS_HASH_FIND,   /* out = the number of key a, 0 for none: table b has x slots (hash.h) */
    PS_RANK,        /* out = 1 + the rank of code a in table[b], 0 for none (ranks.h) */
    PS_EXPAND,      /* each row once for every p in [table[b][a], table[b][a + 1]), integers of `kind`; out = 1 + p, or
                       1 + table[c][p] where c >= 0; x and y as in PS_FILTER */
    PS_EXPAND_ALL,  /* the same, and rows without any p once, with out = 0 */
    PS_FLAG,          /* table[b][a + x] = 1 */
    PS_PUT_INPUT,     /* to[out] = in[a], bits of the width of `kind` */
    PS_PUT_TABLE,     /* to[out] = table[b][a + x], likewise */
    PS_PUT_INTEGER,   /* to[out] = a as `kind` */
    PS_PUT_FLOAT,     /* to[out] = a as `kind` */
    PS_PUT_MASK,      /* to[out] = mask a */
    PS_PUT_ROW,       /* to[out] = the row's position, int32 */
    PS_FOLD_COUNT,    /* state[out][a] += 1; the folds: a is a slot below x or -1 (all rows are one), c a mask or -1 */
    PS_FOLD_SUM,      /* state[out][a] += b, wrapping */
    PS_FOLD_MINIMUM,  /* state[out][a] = min(state[out][a], b) */
    PS_FOLD_MAXIMUM,
    PS_FOLD_SUM_FLOATS,
    PS_BOUNDARY /* counters[2 * out] += rows; the time since the last boundary goes to counters[2 * out + 1] */
};

typedef struct {
    int32_t operation, kind, out, a, b, c;
    int64_t x, y;
} ps_instruction;

/* Columns that look the same. `rows`: the positions to process (NULL: 0 to count - 1). */
typedef struct {
    const void *const *inputs;
    const int32_t *rows;
    int64_t count;
    int64_t put; /* set: rows that had reached the end of the program behind this part */
} ps_part;

/* Works on the parts in turn. Slots of states up to PS_FEW_SLOTS have PS_WAYS copies, one
 * after the other, whose sum is the state: consecutive rows of one group need not wait for each other. */
typedef struct {
    const ps_instruction *code;
    int64_t length;
    ps_part *parts;
    int64_t part_count;
    const void *const *tables;
    void *const *outputs;
    void *const *states;
    int64_t *counters;
    void *scratch; /* banks, each PS_VECTOR * 8 bytes per register, then PS_VECTOR per mask; 64-byte aligned */
    int64_t boundaries;
    int64_t bank;     /* bytes of the registers and masks; there is one bank more than expansions */
    int64_t registers;
    int64_t part;     /* set: where the next run goes on; `part_count` when all is done... */
    int64_t begin;    /* ...and the row of that part */
    int64_t step;     /* rows in a vector, at most PS_VECTOR */
    int64_t capacity; /* of the outputs: a run ends before a vector that would exceed it... */
    int64_t most;     /* ...and behind one that brings its expansions above this */
    int64_t put;      /* set: rows that reached the end */
    const void *const *inputs; /* of the part */
} ps_run;

#define PS_FEW_SLOTS 256
#define PS_WAYS 4
#define PS_MOST_BOUNDARIES 64

PS_EXPORT void pystachio_run_program(ps_run *run);

#endif
