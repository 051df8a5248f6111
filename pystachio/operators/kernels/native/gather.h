/* Rows by their positions, and positions by their keys. */
#ifndef PYSTACHIO_GATHER_H
#define PYSTACHIO_GATHER_H

#include "decode.h"

/* The offsets (from 0, [count + 1]) of the strings at `positions`. PS_CORRUPT when
 * a position is not in [0, length). */
PS_EXPORT int32_t pystachio_gather_offsets(const int64_t *offsets, int64_t length, const void *positions,
                                           int32_t position_width, int64_t count, int64_t *out);

/* Their bytes, to where `to_offsets` says; `data_bytes` are in `data`, `out_bytes` in `out`. */
PS_EXPORT int32_t pystachio_gather_bytes(const int64_t *offsets, const uint8_t *data, int64_t data_bytes,
                                         const void *positions, int32_t position_width, int64_t count,
                                         const int64_t *to_offsets, uint8_t *out, int64_t out_bytes);

/* Counting sort: order[] are the rows by group, those of one group as they stand; group g's begin at offsets[g].
 * `offsets` has groups + 1 numbers, `next` groups. PS_CORRUPT when a group is not in [0, groups). */
PS_EXPORT int32_t pystachio_ranges(const void *row_groups, int32_t width, int64_t rows, int64_t groups,
                                   int32_t *offsets, int32_t *next, int32_t *order);

/* starts[i] = offsets[groups[i]], counts[i] how far the next offset is. PS_CORRUPT for a group not in [0, length - 1). */
PS_EXPORT int32_t pystachio_ranges_of(const int32_t *offsets, int64_t length, const void *groups, int32_t width,
                                      int64_t count, int32_t *starts, int32_t *counts);

/* Numbers the distinct codes by appearance and returns how many there are, -1 when one is not in [0, span).
 * `occupants` (zeros, [span]) get 1 + the number of each code; numbers[row] and first[number] as in hash.h. */
PS_EXPORT int64_t pystachio_number_codes(const void *codes, int32_t width, int64_t rows, int64_t span,
                                         int32_t *occupants, int32_t *numbers, int32_t *first);

/* Where `pystachio_pairs` goes on. */
typedef struct {
    int64_t row;
    int64_t used; /* pairs of that row that are out already */
} ps_cursor;

/* The next pairs of rows and their ranges, at most `limit`; returns how many. Row i matches counts[i] rows from
 * starts[i] on in `order` (NULL: itself, which are [0, order_rows)). -1 when a range leaves `order`. */
PS_EXPORT int64_t pystachio_pairs(const int32_t *starts, const int32_t *counts, int64_t rows, const int32_t *order,
                                  int64_t order_rows, int64_t limit, ps_cursor *cursor, int32_t *probe,
                                  int32_t *build);

#endif
