/* Orders of rows by words of 64 bits; see kernels/radix_sort.py. */
#ifndef PYSTACHIO_SORT_H
#define PYSTACHIO_SORT_H

#include "decode.h"

/* A row, and the word that it is put in order by at the moment. */
typedef struct {
    uint64_t word;
    int64_t row;
} ps_sorted_row;

/* The most parts that `pystachio_sort_split` makes. */
enum { PS_SORT_PARTS = 3072 };

/* Rows by the highest bits in which their `words` differ, and those of a part of more than `longest` rows by theirs: to
 * `to` [rows], rows of one part as they stand. Part p is edges[p] to edges[p + 1] of it (`edges` [PS_SORT_PARTS + 1]),
 * and before all later ones. Returns how many there are. */
PS_EXPORT int64_t pystachio_sort_split(const int64_t *words, int64_t rows, int64_t longest, ps_sorted_row *to,
                                       int64_t *edges);

/* Puts `rows` rows of one part in order, by words[0] [all rows], of which each holds its own, to words[count - 1], equal
 * ones as they stand; the first `wanted` of them go to `order`. `other` [rows] is room to work in. */
PS_EXPORT void pystachio_sort_part(const int64_t *const *words, int64_t count, ps_sorted_row *part,
                                   ps_sorted_row *other, int64_t rows, int64_t wanted, int64_t *order);

/* Floats of `width` bytes as words that order as they do: -0.0 equals 0.0, NaN is above everything. Returns a ps_status. */
PS_EXPORT int32_t pystachio_order_floats(const void *values, int32_t width, int64_t rows, int64_t *words);

#endif
