/* Parts of files as they are read back: checked, and unpacked where they are packed. */
#ifndef PYSTACHIO_SEGMENTS_H
#define PYSTACHIO_SEGMENTS_H

#include "decode.h"

typedef struct {
    const void *bytes;
    int64_t nbytes;
    void *values;      /* where `rows` integers go that are packed (packing.h); NULL for what is not */
    int64_t rows;
    uint64_t divisor;
    uint64_t checksum; /* out: the XXH3 (64 bits, no seed) of the bytes */
    int64_t ends[2];   /* out, of what is packed, and of other integers with PS_OK: the lowest and the highest value */
    int32_t width;     /* bytes of an integer, 0 for anything else */
    int32_t status;    /* out: PS_OK; PS_NOT_HANDLED without a checksum, for 240 bytes or less, though unpacked; or
                        * PS_CORRUPT */
} ps_segment;

PS_EXPORT void pystachio_read_segments(ps_segment *segments, int64_t count);

#endif
