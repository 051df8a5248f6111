/* What a Parquet footer says about column chunks. Nothing in it is believed: what is odd in any way (truncated, nested
 * too deep, a field twice, of another type or missing) is PS_NOT_HANDLED, and the reader in Python tells what it is. */
#ifndef PYSTACHIO_FOOTER_H
#define PYSTACHIO_FOOTER_H

#include "decode.h"

/* In the place of an optional number that is not said. */
#define PS_ABSENT INT64_MIN

/* Bytes of the footer; `length` is -1 when they are not there. */
typedef struct {
    int64_t offset;
    int64_t length;
} ps_slice;

/* The fields of ChunkDescription in Python. Of truths -1 is not said. */
typedef struct {
    int64_t physical_type;
    int64_t codec;
    int64_t data_offset;
    int64_t dictionary_offset;
    int64_t length;
    int64_t decoded;
    int64_t values;
    int64_t coded;
    int64_t text_bytes;
    int64_t nulls;
    int64_t exact_low;
    int64_t exact_high;
    ps_slice low;
    ps_slice high;
    ps_slice legacy_low;
    ps_slice legacy_high;
} ps_chunk_description;

/* Reads all of the FileMetaData. places[leaf * groups + group]: where in the footer that chunk is described;
 * ordered[leaf]: whether the column has an order, by which its statistics are made. */
PS_EXPORT int32_t pystachio_find_chunks(const uint8_t *footer, int64_t length, int64_t leaves, int64_t groups,
                                        int64_t *places, uint8_t *ordered);

/* Reads what is at `count` of these places. */
PS_EXPORT int32_t pystachio_describe_chunks(const uint8_t *footer, int64_t length, const int64_t *places, int64_t count,
                                            ps_chunk_description *out);

#endif
