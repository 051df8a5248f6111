#ifndef PYSTACHIO_CODED_ROWS_H
#define PYSTACHIO_CODED_ROWS_H

#include "decode.h"

/* Positions of the rows whose code (of `width` 1, 2 or 4 bytes) the table has: its bytes are 0 or 1, and it has none
 * outside [0, entries). Returns how many there are; if they are more than `capacity`, what is written is of no use. -1
 * for another width. */
PS_EXPORT int64_t pystachio_coded_rows(const void *codes, int32_t width, int64_t count, const uint8_t *table,
                                       int64_t entries, int64_t *rows, int64_t capacity);

#endif
