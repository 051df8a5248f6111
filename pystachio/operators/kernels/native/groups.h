/* Groups of rows by several columns: parts by the hash of all, numbers by a table over words, folds by number. */
#ifndef PYSTACHIO_GROUPS_H
#define PYSTACHIO_GROUPS_H

#include "decode.h"

/* Takes a column into the hash of each row (zeros before the first one); a row that is not valid is NULL, whatever
 * stands there. PS_NOT_HANDLED for a width other than 1, 2, 4 or 8. */
PS_EXPORT int32_t pystachio_mix_hashes(const void *values, int32_t width, const uint8_t *validity, int64_t rows,
                                       uint64_t *hashes);

/* order[] are the rows by parts, those of one part as they stand; part p's begin at offsets[p] (parts + 1 numbers). A
 * row's part has `bits` bits of its hash, and above[] (NULL: 0) above them. There are at most PS_MOST_PARTS parts, and
 * less than 2^31 rows. */
PS_EXPORT void pystachio_split_rows(const uint64_t *hashes, const int32_t *above, int64_t rows, int32_t bits,
                                    int32_t parts, int32_t *offsets, int32_t *order);

/* part_of[] becomes the part of each row by the hashes of columns, offsets[] as above. */
PS_EXPORT int32_t pystachio_parts_of_values(const void *const *values, const int32_t *widths,
                                            const uint8_t *const *validity, int32_t columns, const int32_t *above,
                                            int64_t rows, int32_t bits, int32_t parts, uint8_t *part_of,
                                            int32_t *offsets);

/* to[] are the values, of `width` bytes each, by parts, those of one part as they stand; the row numbers (int32) where
 * `values` is NULL. PS_NOT_HANDLED for a width other than 1, 2, 4, 8 and 16. */
PS_EXPORT int32_t pystachio_scatter(const void *values, int32_t width, const uint8_t *part_of, int64_t rows,
                                    const int32_t *offsets, int32_t parts, void *to);

#define PS_MOST_PARTS 256

/* As pystachio_number_keys (hash.h) for keys of `width` words, at most PS_MOST_WORDS: word w of row i is words[w][i].
 * Slots are those of strings, `pystachio_grow_texts` moves them. `known` holds the words of each group, `width` times
 * as many as rows; counts[number] is how many rows have it. */
PS_EXPORT int64_t pystachio_number_words(const int64_t *const *words, int32_t width, int64_t row, int64_t rows,
                                         uint64_t *slots, int64_t capacity, int64_t *known, int32_t *numbers,
                                         int32_t *first, int64_t *counts, int64_t *groups);

#define PS_MOST_WORDS 16

/* As pystachio_number_key_runs (hash.h). */
PS_EXPORT int64_t pystachio_number_word_runs(const int64_t *const *words, int32_t width, const int64_t *edges,
                                             int64_t pieces, int64_t runs, uint64_t *slots, int64_t most,
                                             int64_t *known, int32_t *numbers, int32_t *first, int64_t *counts);

/* best[code] becomes the largest (else the smallest) of itself and its rows' values, all integers of `width` bytes.
 * Codes must be in range: they are the engine's own. PS_NOT_HANDLED for another width. */
PS_EXPORT int32_t pystachio_group_extremes(const void *values, int32_t width, const void *codes, int32_t code_width,
                                           int64_t rows, int32_t largest, void *best);

#endif
