/* The smallest or largest text of each group, by its bytes; see kernels/texts.py. */
#ifndef PYSTACHIO_TEXT_EXTREMES_H
#define PYSTACHIO_TEXT_EXTREMES_H

#include "views.h"

/* To `best` [slots] the first row of those that have the smallest (or `largest`) text of their code (of `width` bytes, in
 * [0, slots); null: all have 0), -1 where there is none. Texts are `views`, or where these are null data[offsets[row]] to
 * data[offsets[row + 1]]; rows that are not `valid` (null: all are) have none. A ps_status. */
PS_EXPORT int32_t pystachio_text_extremes(const int64_t *offsets, const uint8_t *data, const ps_view *views,
                                          const uint8_t *valid, const void *codes, int32_t width, int64_t rows,
                                          int64_t slots, int32_t largest, int64_t *best);

#endif
