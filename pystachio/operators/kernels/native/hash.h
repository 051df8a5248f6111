/* Open-addressing hash tables that number distinct keys (64-bit integers or byte strings) from 1, by appearance.
 *
 * Capacities are powers of two from 256 to 2^32; a free slot is zero. All memory is the caller's, so tables grow by his
 * hand: `pystachio_number_*` stops at the row for which the table may be too full, `pystachio_grow_*` moves its slots
 * into a larger one that is clear. There are at most 2^31 - 1 rows: numbers[row] is the number of its key less 1,
 * first[numbers[row]] the position of the row that brought it. */
#ifndef PYSTACHIO_HASH_H
#define PYSTACHIO_HASH_H

#include "decode.h"

typedef struct {
    int64_t key;
    int64_t number; /* 0: the slot is free */
} ps_key_slot;

/* Advice: to be called before the memory is used. */
PS_EXPORT void pystachio_use_large_pages(void *memory, int64_t bytes);

/* To zeros, on large pages where that helps. */
PS_EXPORT void pystachio_clear(void *memory, int64_t bytes);

PS_EXPORT void pystachio_grow_keys(const ps_key_slot *slots, int64_t capacity, ps_key_slot *larger,
                                   int64_t larger_capacity);

/* Numbers the rows from `row` on; `groups` keys are known. `numbers` and `first` have room for one per row.
 * Returns the row where it stopped (`rows`: all are numbered) and updates `groups`. */
PS_EXPORT int64_t pystachio_number_keys(const int64_t *keys, int64_t row, int64_t rows, ps_key_slot *slots,
                                        int64_t capacity, int32_t *numbers, int32_t *first, int64_t *groups);

/* The same for rows in `runs` runs that have no key in common, each in a table of its own that stays in the caches. Run
 * r has the rows from edges[r] to edges[r + 1], and as many more for each of the other `pieces`, whose edges follow.
 * There are slots for a table of the longest run (`most`). counts[number] is how many rows have the key; not wanted
 * where it is NULL. Returns how many keys there are, numbered run by run. */
PS_EXPORT int64_t pystachio_number_key_runs(const int64_t *keys, const int64_t *edges, int64_t pieces, int64_t runs,
                                            ps_key_slot *slots, int64_t most, int32_t *numbers, int32_t *first,
                                            int64_t *counts);

/* The number of each row's key, 0 for one that the table does not have. */
PS_EXPORT void pystachio_find_keys(const int64_t *keys, int64_t rows, const ps_key_slot *slots, int64_t capacity,
                                   int32_t *numbers);

/* The same for strings, whose slots hold the upper half of the hash and the number. Row i is data[offsets[i]] to
 * data[offsets[i + 1]], or NULL (numbers[i] is 0) where `validity` is 0. The place of key n in `data` is from
 * places[2 * (n - 1)] to the next; there is room for one per row. */
PS_EXPORT void pystachio_grow_texts(const uint64_t *slots, int64_t capacity, uint64_t *larger,
                                    int64_t larger_capacity);

/* Puts distinct strings that the table does not have into it, numbered from `number`. It must have room. */
PS_EXPORT void pystachio_enter_texts(const int64_t *offsets, const uint8_t *data, int64_t rows, int64_t number,
                                     uint64_t *slots, int64_t capacity);

PS_EXPORT int64_t pystachio_number_texts(const int64_t *offsets, const uint8_t *data, const uint8_t *validity,
                                         int64_t row, int64_t rows, uint64_t *slots, int64_t capacity,
                                         int64_t *places, int32_t *numbers, int32_t *first, int64_t *groups);

/* The hash of each string. */
PS_EXPORT void pystachio_hash_texts(const int64_t *offsets, const uint8_t *data, int64_t rows, uint64_t *hashes);

/* Key n of the table is text[places[n - 1]] to text[places[n]]. NULL is not found. */
PS_EXPORT void pystachio_find_texts(const int64_t *offsets, const uint8_t *data, const uint8_t *validity, int64_t rows,
                                    const uint64_t *slots, int64_t capacity, const int64_t *places,
                                    const uint8_t *text, int32_t *found);

#endif
