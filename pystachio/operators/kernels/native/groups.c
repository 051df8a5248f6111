#include "groups.h"

#include <string.h>

#include "slots.h"

#define NULL_VALUE 0x5851F42D4C957F2D
#define PART_SHIFT 20 /* tables take their slots from the leading bits: parts take others */

PS_INLINE uint64_t mixed(uint64_t hash, int64_t value) {
    return hash_of((int64_t)((uint64_t)value ^ (hash << 23 | hash >> 41)));
}

#define MIX(TYPE)                                                                                                      \
    {                                                                                                                  \
        const TYPE *restrict column = values;                                                                          \
        if (validity == NULL)                                                                                          \
            for (int64_t i = 0; i < rows; i++) hashes[i] = mixed(hashes[i], column[i]);                                \
        else                                                                                                           \
            for (int64_t i = 0; i < rows; i++) hashes[i] = mixed(hashes[i], validity[i] ? column[i] : NULL_VALUE);     \
    }                                                                                                                  \
    return PS_OK;

PS_CLONES int32_t pystachio_mix_hashes(const void *values, int32_t width, const uint8_t *restrict validity,
                                       int64_t rows, uint64_t *restrict hashes) {
    switch (width) {
    case 1: MIX(int8_t)
    case 2: MIX(int16_t)
    case 4: MIX(int32_t)
    case 8: MIX(int64_t)
    default: return PS_NOT_HANDLED;
    }
}

PS_INLINE void split_rows(const uint64_t *hashes, const int32_t *above, int64_t rows, int32_t bits, int32_t parts,
                          int32_t *offsets, int32_t *order) {
#define PART(I) ((hashes[I] >> PART_SHIFT & mask) | (above == NULL ? 0 : (uint64_t)above[I] << bits))
    int32_t next[PS_MOST_PARTS], used = 0;
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    memset(next, 0, sizeof next);
    for (int64_t i = 0; i < rows; i++) next[PART(i)]++;
    for (int32_t part = 0; part < parts; part++) {
        int32_t size = next[part];
        offsets[part] = next[part] = used;
        used += size;
    }
    offsets[parts] = used;
    for (int64_t i = 0; i < rows; i++) order[next[PART(i)]++] = (int32_t)i;
#undef PART
}

void pystachio_split_rows(const uint64_t *hashes, const int32_t *above, int64_t rows, int32_t bits, int32_t parts,
                          int32_t *offsets, int32_t *order) {
    if (above == NULL)
        split_rows(hashes, NULL, rows, bits, parts, offsets, order);
    else
        split_rows(hashes, above, rows, bits, parts, offsets, order);
}

#define HASHED_ROWS 1024 /* hashes of a block stay in the first-level cache */

PS_CLONES static void parts_of(const uint64_t *restrict hashes, const int32_t *restrict above, int64_t rows,
                               int32_t bits, uint8_t *restrict part_of) {
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    if (above == NULL)
        for (int64_t i = 0; i < rows; i++) part_of[i] = (uint8_t)(hashes[i] >> PART_SHIFT & mask);
    else
        for (int64_t i = 0; i < rows; i++)
            part_of[i] = (uint8_t)((hashes[i] >> PART_SHIFT & mask) | (uint64_t)above[i] << bits);
}

#define WAYS 4 /* consecutive rows often have the same part, so that each addition would wait for the one before */

int32_t pystachio_parts_of_values(const void *const *values, const int32_t *widths, const uint8_t *const *validity,
                                  int32_t columns, const int32_t *above, int64_t rows, int32_t bits, int32_t parts,
                                  uint8_t *part_of, int32_t *offsets) {
    int32_t counts[WAYS][PS_MOST_PARTS] = {{0}}, used = 0;
    for (int64_t row = 0; row < rows; row += HASHED_ROWS) {
        uint64_t hashes[HASHED_ROWS];
        int64_t block = rows - row < HASHED_ROWS ? rows - row : HASHED_ROWS;
        memset(hashes, 0, (size_t)block * sizeof *hashes);
        for (int32_t column = 0; column < columns; column++) {
            const uint8_t *valid = validity[column] == NULL ? NULL : validity[column] + row;
            const void *from = (const uint8_t *)values[column] + row * widths[column];
            int32_t status = pystachio_mix_hashes(from, widths[column], valid, block, hashes);
            if (status != PS_OK) return status;
        }
        parts_of(hashes, above == NULL ? NULL : above + row, block, bits, part_of + row);
        for (int64_t i = row; i < row + block; i++) counts[i % WAYS][part_of[i]]++;
    }
    for (int32_t part = 0; part < parts; part++) {
        offsets[part] = used;
        for (int32_t way = 0; way < WAYS; way++) used += counts[way][part];
    }
    offsets[parts] = used;
    return PS_OK;
}

typedef struct {
    int64_t words[2];
} pair;

#define SCATTER(TYPE, VALUE)                                                                                           \
    {                                                                                                                  \
        const TYPE *restrict from = values;                                                                            \
        TYPE *restrict out = to;                                                                                       \
        (void)from;                                                                                                    \
        for (int64_t i = 0; i < rows; i++) out[next[part_of[i]]++] = VALUE;                                            \
        return PS_OK;                                                                                                  \
    }

int32_t pystachio_scatter(const void *values, int32_t width, const uint8_t *restrict part_of, int64_t rows,
                          const int32_t *offsets, int32_t parts, void *to) {
    int32_t next[PS_MOST_PARTS];
    memcpy(next, offsets, (size_t)parts * sizeof *next);
    if (values == NULL) SCATTER(int32_t, (int32_t)i)
    switch (width) {
    case 1: SCATTER(int8_t, from[i])
    case 2: SCATTER(int16_t, from[i])
    case 4: SCATTER(int32_t, from[i])
    case 8: SCATTER(int64_t, from[i])
    case 16: SCATTER(pair, from[i])
    default: return PS_NOT_HANDLED;
    }
}

/* `base` of the known groups are not in the table. */
PS_INLINE int64_t number_rows(const int64_t *const *words, int32_t width, int64_t row, int64_t rows, uint64_t *slots,
                              int64_t capacity, int64_t *known, int32_t *numbers, int32_t *first, int64_t *counts,
                              int64_t base, int64_t *groups) {
    uint64_t hashes[BLOCK], mask = (uint64_t)capacity - 1;
    int64_t count = *groups, limit = base + most_groups(capacity);
    int shift = home_shift(capacity), cold = capacity > HOT_SLOTS;
    for (; row < rows && count + BLOCK <= limit; row += BLOCK) {
        int64_t block = rows - row < BLOCK ? rows - row : BLOCK;
        for (int64_t i = 0; i < block; i++) hashes[i] = hash_of(words[0][row + i]);
        for (int32_t w = 1; w < width; w++)
            for (int64_t i = 0; i < block; i++) hashes[i] = mixed(hashes[i], words[w][row + i]);
        if (cold) {
            for (int64_t i = 0; i < block; i++) prefetch(&slots[hashes[i] >> shift]);
            for (int64_t i = 0; i < block; i++) {
                uint32_t number = (uint32_t)slots[hashes[i] >> shift];
                if (number) prefetch(&known[(int64_t)(number - 1) * width]);
            }
        }
        for (int64_t i = 0; i < block; i++) {
            uint64_t at = hashes[i] >> shift;
            int64_t number;
            for (;; at = (at + 1) & mask) {
                uint64_t slot = slots[at];
                if (!slot) {
                    number = count++;
                    slots[at] = (hashes[i] >> 32 << 32) | (uint32_t)count;
                    for (int32_t w = 0; w < width; w++) known[number * width + w] = words[w][row + i];
                    first[number] = (int32_t)(row + i);
                    counts[number] = 0;
                    break;
                }
                if ((slot ^ hashes[i]) >> 32) continue;
                number = (int64_t)(uint32_t)slot - 1;
                int32_t differ = 0;
                for (int32_t w = 0; w < width; w++) differ |= known[number * width + w] != words[w][row + i];
                if (!differ) break;
            }
            counts[number]++;
            numbers[row + i] = (int32_t)number;
        }
    }
    *groups = count;
    return row < rows ? row : rows;
}

int64_t pystachio_number_words(const int64_t *const *words, int32_t width, int64_t row, int64_t rows, uint64_t *slots,
                               int64_t capacity, int64_t *known, int32_t *numbers, int32_t *first, int64_t *counts,
                               int64_t *groups) {
    switch (width) {
    case 1: return number_rows(words, 1, row, rows, slots, capacity, known, numbers, first, counts, 0, groups);
    case 2: return number_rows(words, 2, row, rows, slots, capacity, known, numbers, first, counts, 0, groups);
    case 3: return number_rows(words, 3, row, rows, slots, capacity, known, numbers, first, counts, 0, groups);
    default: return number_rows(words, width, row, rows, slots, capacity, known, numbers, first, counts, 0, groups);
    }
}

PS_INLINE int64_t number_runs(const int64_t *const *words, int32_t width, const int64_t *edges, int64_t pieces,
                              int64_t runs, uint64_t *slots, int64_t most, int64_t *known, int32_t *numbers,
                              int32_t *first, int64_t *counts) {
    int64_t groups = 0, base = 0, capacity = first_capacity(most);
    for (int64_t run = 0; run < runs; run++) {
        if (run > 0) capacity = capacity_after(groups - base, most);
        base = groups;
        memset(slots, 0, (size_t)capacity * sizeof *slots);
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t *edge = edges + piece * (runs + 1) + run;
            int64_t row = number_rows(words, width, edge[0], edge[1], slots, capacity, known, numbers, first, counts,
                                      base, &groups);
            while (row < edge[1]) {
                capacity = next_capacity(capacity, most);
                memset(slots, 0, (size_t)capacity * sizeof *slots);
                uint64_t mask = (uint64_t)capacity - 1;
                int shift = home_shift(capacity);
                for (int64_t group = base; group < groups; group++) {
                    uint64_t hash = hash_of(known[group * width]);
                    for (int32_t w = 1; w < width; w++) hash = mixed(hash, known[group * width + w]);
                    uint64_t at = hash >> shift;
                    while (slots[at]) at = (at + 1) & mask;
                    slots[at] = (hash >> 32 << 32) | (uint32_t)(group + 1);
                }
                row = number_rows(words, width, row, edge[1], slots, capacity, known, numbers, first, counts, base,
                                  &groups);
            }
        }
    }
    return groups;
}

int64_t pystachio_number_word_runs(const int64_t *const *words, int32_t width, const int64_t *edges, int64_t pieces,
                                   int64_t runs, uint64_t *slots, int64_t most, int64_t *known, int32_t *numbers,
                                   int32_t *first, int64_t *counts) {
    if (width == 2) return number_runs(words, 2, edges, pieces, runs, slots, most, known, numbers, first, counts);
    return number_runs(words, width, edges, pieces, runs, slots, most, known, numbers, first, counts);
}

#define EXTREMES(TYPE, CODE)                                                                                           \
    {                                                                                                                  \
        const TYPE *restrict from = values;                                                                            \
        const CODE *restrict of = codes;                                                                               \
        TYPE *restrict held = best;                                                                                    \
        if (largest)                                                                                                   \
            for (int64_t i = 0; i < rows; i++) held[of[i]] = from[i] > held[of[i]] ? from[i] : held[of[i]];            \
        else                                                                                                           \
            for (int64_t i = 0; i < rows; i++) held[of[i]] = from[i] < held[of[i]] ? from[i] : held[of[i]];            \
    }                                                                                                                  \
    return PS_OK;

#define EXTREMES_OF(CODE)                                                                                              \
    switch (width) {                                                                                                   \
    case 1: EXTREMES(int8_t, CODE)                                                                                     \
    case 2: EXTREMES(int16_t, CODE)                                                                                    \
    case 4: EXTREMES(int32_t, CODE)                                                                                    \
    case 8: EXTREMES(int64_t, CODE)                                                                                    \
    default: return PS_NOT_HANDLED;                                                                                    \
    }

int32_t pystachio_group_extremes(const void *values, int32_t width, const void *codes, int32_t code_width, int64_t rows,
                                 int32_t largest, void *best) {
    switch (code_width) {
    case 1: EXTREMES_OF(int8_t)
    case 2: EXTREMES_OF(int16_t)
    case 4: EXTREMES_OF(int32_t)
    case 8: EXTREMES_OF(int64_t)
    default: return PS_NOT_HANDLED;
    }
}
