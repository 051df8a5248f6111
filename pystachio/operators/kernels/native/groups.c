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

PS_INLINE int64_t number_rows(const int64_t *const *words, int32_t width, int64_t row, int64_t rows, uint64_t *slots,
                              int64_t capacity, int64_t *known, int32_t *numbers, int32_t *first, int64_t *counts,
                              int64_t *groups) {
    uint64_t hashes[BLOCK], mask = (uint64_t)capacity - 1;
    int64_t count = *groups, limit = most_groups(capacity);
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
    case 1: return number_rows(words, 1, row, rows, slots, capacity, known, numbers, first, counts, groups);
    case 2: return number_rows(words, 2, row, rows, slots, capacity, known, numbers, first, counts, groups);
    case 3: return number_rows(words, 3, row, rows, slots, capacity, known, numbers, first, counts, groups);
    default: return number_rows(words, width, row, rows, slots, capacity, known, numbers, first, counts, groups);
    }
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
