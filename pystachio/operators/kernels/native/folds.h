/* Folds of one number per row into one per group, `code_width` bytes for the group of each row. Codes must be in
 * [0, slots): they are the engine's own. Both return PS_OK, or PS_NOT_HANDLED for another width. */
#ifndef PYSTACHIO_FOLDS_H
#define PYSTACHIO_FOLDS_H

#include "decode.h"

/* Adds to sums[slots], wrapping. */
PS_EXPORT int32_t pystachio_group_sums(const void *values, int32_t width, const void *codes, int32_t code_width,
                                       int64_t rows, int64_t slots, int64_t *sums);

/* Adds the group's number of rows to counts[slots], and sets last[slots] to 1 + the position of its last row. */
PS_EXPORT int32_t pystachio_group_rows(const void *codes, int32_t code_width, int64_t rows, int64_t slots,
                                       int64_t *counts, int64_t *last);

#endif
