/* Floats to whole numbers, and what variances are made of; see kernels/floats.py. */
#ifndef PYSTACHIO_FLOATS_H
#define PYSTACHIO_FLOATS_H

#include "decode.h"

/* The integers that are nearest to floats of `width` bytes, halves to even, to `integers`, and to range[0] and range[1]
 * the lowest and the highest. Rows that are not `valid` (null: all are) are 0 and do not count. PS_NOT_HANDLED where a
 * valid one does not fit: `integers` are worth nothing then. */
PS_EXPORT int32_t pystachio_whole_floats(const void *values, int32_t width, const uint8_t *valid, int64_t rows,
                                         int64_t *integers, int64_t *range);

/* Of the rows of each code (of `width` bytes, in [0, slots); null: all have 0) that are `counted` (null: all): how many
 * there are, their mean, and the sum of the squares of what they are off it (all [slots]). A ps_status. */
PS_EXPORT int32_t pystachio_group_moments(const double *values, const int8_t *counted, const void *codes, int32_t width,
                                          int64_t rows, int64_t slots, double *counts, double *means, double *squares);

/* To `sums` [slots] the floats of each code (as above) that are `counted` (null: all). A ps_status. */
PS_EXPORT int32_t pystachio_group_float_sums(const void *values, int32_t width, const uint8_t *counted,
                                             const void *codes, int32_t code_width, int64_t rows, int64_t slots,
                                             double *sums);

/* To `best` [slots] the lowest or highest of the floats of each code (as above) that are `valid` (null: all are), as words
 * that order as floats do (sort.h); the highest or lowest word where there is none. A ps_status. */
PS_EXPORT int32_t pystachio_float_extremes(const void *values, int32_t width, const uint8_t *valid, const void *codes,
                                           int32_t code_width, int64_t rows, int64_t slots, int32_t largest,
                                           int64_t *best);

#endif
