/* Segments of files: see segments.h. */
#include "segments.h"

#include <stddef.h>

#include "checksum.h"
#include "packing.h"

static int32_t read_segment(ps_segment *segment) {
    int is_short = segment->nbytes <= PS_SHORT_BYTES, is_packed = segment->values != NULL;
    if (!is_short) {
        int32_t width = is_packed ? 0 : segment->width;
        segment->checksum = ps_checksum(segment->bytes, segment->nbytes, width, segment->ends);
    }
    if (is_packed) {
        int32_t status = ps_unpack(segment->bytes, segment->nbytes, segment->width, segment->rows,
                                          segment->divisor, segment->values, segment->ends);
        if (status != PS_OK) return status;
    }
    return is_short ? PS_NOT_HANDLED : PS_OK;
}

void pystachio_read_segments(ps_segment *segments, int64_t count) {
    for (int64_t i = 0; i < count; i++) segments[i].status = read_segment(&segments[i]);
}
