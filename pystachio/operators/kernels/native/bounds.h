/* The range of values. */
#ifndef PYSTACHIO_BOUNDS_H
#define PYSTACHIO_BOUNDS_H

#include "decode.h"

/* `ends`: the lowest and the highest of `rows` > 0 signed integers of `width` bytes. PS_NOT_HANDLED for another width. */
PS_EXPORT int32_t pystachio_value_range(const void *values, int32_t width, int64_t rows, int64_t ends[2]);

#endif
