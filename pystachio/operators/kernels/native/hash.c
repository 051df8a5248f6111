/* Hash tables over 64-bit integers: in blocks, whose slots are fetched into the cache all at once. */
#define _DEFAULT_SOURCE
#include "hash.h"

#include <string.h>

#include "slots.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#define LARGE_PAGE ((uintptr_t)1 << 21)

void pystachio_use_large_pages(void *memory, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    uintptr_t from = ((uintptr_t)memory + LARGE_PAGE - 1) & ~(LARGE_PAGE - 1);
    uintptr_t to = ((uintptr_t)memory + (uintptr_t)bytes) & ~(LARGE_PAGE - 1);
    if (from < to) madvise((void *)from, to - from, MADV_HUGEPAGE); /* only advice: it may fail */
#else
    (void)memory, (void)bytes;
#endif
}

void pystachio_clear(void *memory, int64_t bytes) {
    pystachio_use_large_pages(memory, bytes);
    memset(memory, 0, (size_t)bytes);
}

/* Homes are the leading bits of the hash: the old table in its order fills the new one in its order. */
void pystachio_grow_keys(const ps_key_slot *slots, int64_t capacity, ps_key_slot *larger, int64_t larger_capacity) {
    uint64_t mask = (uint64_t)larger_capacity - 1;
    int shift = home_shift(larger_capacity);
    for (int64_t i = 0; i < capacity; i++) {
        if (!slots[i].number) continue;
        uint64_t at = hash_of(slots[i].key) >> shift;
        while (larger[at].number) at = (at + 1) & mask;
        larger[at] = slots[i];
    }
}

/* Of a block of rows: their home slots, what the key there says (0: nothing), and the `waiting` rows for which that is
 * not the answer. Without branches, which would be guessed wrong for many keys. */
PS_INLINE int64_t visit_homes(const int64_t *keys, int64_t rows, uint64_t *homes, const ps_key_slot *slots,
                              int64_t capacity, int free_is_answer, int64_t *found, uint8_t *waiting) {
    int shift = home_shift(capacity);
    for (int64_t i = 0; i < rows; i++) homes[i] = hash_of(keys[i]) >> shift;
    if (capacity > HOT_SLOTS)
        for (int64_t i = 0; i < rows; i++) prefetch(&slots[homes[i]]);
    int64_t count = 0;
    for (int64_t i = 0; i < rows; i++) {
        ps_key_slot slot = slots[homes[i]];
        found[i] = slot.key == keys[i] ? slot.number : 0;
        waiting[count] = (uint8_t)i;
        count += (found[i] == 0) & !(free_is_answer & (slot.number == 0));
    }
    return count;
}

/* `base` of the known groups are not in the table. */
PS_INLINE int64_t number_keys(const int64_t *keys, int64_t row, int64_t rows, ps_key_slot *slots, int64_t capacity,
                              int32_t *numbers, int32_t *first, int64_t *counts, int64_t base, int64_t *groups) {
    uint64_t homes[BLOCK], mask = (uint64_t)capacity - 1;
    int64_t found[BLOCK], known = *groups, limit = base + most_groups(capacity);
    uint8_t waiting[BLOCK];
    for (; row < rows && known + BLOCK <= limit; row += BLOCK) {
        int64_t block = rows - row < BLOCK ? rows - row : BLOCK;
        int64_t count = visit_homes(keys + row, block, homes, slots, capacity, 0, found, waiting);
        for (int64_t i = 0; i < block; i++) numbers[row + i] = (int32_t)(found[i] - 1);
        for (int64_t j = 0; j < count; j++) {
            int64_t i = waiting[j], key = keys[row + i];
            uint64_t at = homes[i];
            while (slots[at].number && slots[at].key != key) at = (at + 1) & mask;
            if (!slots[at].number) {
                slots[at] = (ps_key_slot){key, ++known};
                first[known - 1] = (int32_t)(row + i);
                if (counts != NULL) counts[known - 1] = 0;
            }
            numbers[row + i] = (int32_t)(slots[at].number - 1);
        }
        if (counts != NULL)
            for (int64_t i = row; i < row + block; i++) counts[numbers[i]]++;
    }
    *groups = known;
    return row < rows ? row : rows;
}

int64_t pystachio_number_keys(const int64_t *keys, int64_t row, int64_t rows, ps_key_slot *slots, int64_t capacity,
                              int32_t *numbers, int32_t *first, int64_t *groups) {
    return number_keys(keys, row, rows, slots, capacity, numbers, first, NULL, 0, groups);
}

int64_t pystachio_number_key_runs(const int64_t *keys, const int64_t *edges, int64_t pieces, int64_t runs,
                                  ps_key_slot *slots, int64_t most, int32_t *numbers, int32_t *first,
                                  int64_t *counts) {
    int64_t groups = 0, base = 0, capacity = first_capacity(most);
    for (int64_t run = 0; run < runs; run++) {
        if (run > 0) capacity = capacity_after(groups - base, most);
        base = groups;
        memset(slots, 0, (size_t)capacity * sizeof *slots);
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t *edge = edges + piece * (runs + 1) + run;
            int64_t row = number_keys(keys, edge[0], edge[1], slots, capacity, numbers, first, counts, base, &groups);
            while (row < edge[1]) {
                capacity = next_capacity(capacity, most);
                memset(slots, 0, (size_t)capacity * sizeof *slots);
                uint64_t mask = (uint64_t)capacity - 1;
                int shift = home_shift(capacity);
                for (int64_t group = base; group < groups; group++) {
                    int64_t key = keys[first[group]];
                    uint64_t at = hash_of(key) >> shift;
                    while (slots[at].number) at = (at + 1) & mask;
                    slots[at] = (ps_key_slot){key, group + 1};
                }
                row = number_keys(keys, row, edge[1], slots, capacity, numbers, first, counts, base, &groups);
            }
        }
    }
    return groups;
}

void pystachio_find_keys(const int64_t *keys, int64_t rows, const ps_key_slot *slots, int64_t capacity,
                         int32_t *numbers) {
    uint64_t homes[BLOCK], mask = (uint64_t)capacity - 1;
    int64_t found[BLOCK];
    uint8_t waiting[BLOCK];
    for (int64_t row = 0; row < rows; row += BLOCK) {
        int64_t block = rows - row < BLOCK ? rows - row : BLOCK;
        int64_t count = visit_homes(keys + row, block, homes, slots, capacity, 1, found, waiting);
        for (int64_t j = 0; j < count; j++) {
            int64_t i = waiting[j], key = keys[row + i];
            uint64_t at = (homes[i] + 1) & mask;
            while (slots[at].number && slots[at].key != key) at = (at + 1) & mask;
            found[i] = slots[at].number;
        }
        for (int64_t i = 0; i < block; i++) numbers[row + i] = (int32_t)found[i];
    }
}
