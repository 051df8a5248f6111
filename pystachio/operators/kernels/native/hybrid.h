/* Runs of the RLE/bit-packed hybrid, which holds definition levels, booleans and dictionary codes.
 * https://github.com/apache/parquet-format/blob/master/Encodings.md */
#ifndef PYSTACHIO_HYBRID_H
#define PYSTACHIO_HYBRID_H

#include "internal.h"

typedef struct {
    int64_t count;  /* values in the run, cut to what the bytes can hold */
    ps_bytes packed; /* of a packed run; it goes on to the end of the input, for wide reads */
    uint32_t value; /* of a repeated one */
    bool is_packed;
} ps_run;

/* The next run of values of `width` bits (at most 32); false at the end or when it is cut off. A run may be empty; each
 * takes at least one byte, so a loop over runs ends. */
PS_INLINE bool ps_next_run(ps_bytes *in, unsigned width, ps_run *run) {
    uint64_t header = 0;
    for (unsigned shift = 0;; shift += 7) {
        if (in->at == in->end || shift > 28) return false;
        header |= (uint64_t)(*in->at & 0x7f) << shift;
        if (*in->at++ < 0x80) break;
    }
    run->is_packed = header & 1;
    run->count = (int64_t)(header >> 1);
    size_t left = bytes_left(*in);
    if (run->is_packed) {
        size_t size = (size_t)run->count * width;
        run->count *= 8;
        if (size > left) { /* some writers leave the padding of the last run away */
            size = left;
            run->count = (int64_t)(left * 8 / width);
        }
        run->packed = *in;
        in->at += size;
        return true;
    }
    size_t size = (width + 7) / 8;
    if (size > left) return false;
    run->value = 0;
    for (size_t i = 0; i < size; i++) run->value |= (uint32_t)in->at[i] << (8 * i);
    in->at += size;
    return true;
}

#endif
