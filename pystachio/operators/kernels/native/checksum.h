/* Bytes that are checked while they are read. */
#ifndef PYSTACHIO_CHECKSUM_H
#define PYSTACHIO_CHECKSUM_H

#include "decode.h"

/* The XXH3 (64 bits, no seed) of `rows` signed integers of `width` bytes, and in `ends` the lowest and the highest of
 * them, in one pass over memory. PS_NOT_HANDLED for another width, and for 240 bytes or less, which XXH3 takes
 * otherwise. https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md */
PS_EXPORT int32_t pystachio_checksum_and_range(const void *values, int32_t width, int64_t rows, int64_t ends[2],
                                               uint64_t *checksum);

#endif
