/* One pass for both ends of a range. */

#include "bounds.h"

#include "clones.h"

#define RANGE_OF(type)                                                                         \
    PS_CLONES static void range_of_##type(const type *values, int64_t rows, int64_t ends[2]) { \
        type lowest = values[0], highest = values[0];                                          \
        for (int64_t row = 1; row < rows; row++) {                                             \
            lowest = values[row] < lowest ? values[row] : lowest;                              \
            highest = values[row] > highest ? values[row] : highest;                           \
        }                                                                                      \
        ends[0] = lowest;                                                                      \
        ends[1] = highest;                                                                     \
    }

RANGE_OF(int8_t)
RANGE_OF(int16_t)
RANGE_OF(int32_t)
RANGE_OF(int64_t)

int32_t pystachio_value_range(const void *values, int32_t width, int64_t rows, int64_t ends[2]) {
    switch (width) {
    case 1: range_of_int8_t(values, rows, ends); return PS_OK;
    case 2: range_of_int16_t(values, rows, ends); return PS_OK;
    case 4: range_of_int32_t(values, rows, ends); return PS_OK;
    case 8: range_of_int64_t(values, rows, ends); return PS_OK;
    default: return PS_NOT_HANDLED;
    }
}
