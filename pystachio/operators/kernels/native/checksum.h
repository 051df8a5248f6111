/* Bytes that are checked while they are read. */
#ifndef PYSTACHIO_CHECKSUM_H
#define PYSTACHIO_CHECKSUM_H

#include <stdint.h>

/* What XXH3 takes otherwise than here. */
#define PS_SHORT_BYTES 240

/* The XXH3 (64 bits, no seed) of more than PS_SHORT_BYTES bytes. They are signed integers of `width` bytes, and the
 * lowest and the highest of them in `ends`, in one pass over memory; or, with `width` 0, anything.
 * https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md */
uint64_t ps_checksum(const uint8_t *bytes, int64_t nbytes, int32_t width, int64_t ends[2]);

#endif
