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

/* How a file and a column of it are read. */
typedef struct {
    int64_t data_end;      /* of the file, where the footer begins */
    int64_t padding;       /* bytes that its writer left out of the lengths */
    int64_t physical_type; /* by the schema */
    int64_t is_ordered;    /* by find_chunks */
    int64_t is_signed;     /* it has the order of signed numbers: deprecated limits count */
    int64_t width;         /* bytes of a limit that is an integer; 0: limits stay bytes; -1: they prove nothing */
    int64_t bits;          /* of an unsigned integer, less than 64; 0: signed */
} ps_column;

/* A chunk that fits its file, and what is credible of its statistics. */
typedef struct {
    int64_t offset; /* of its first page */
    int64_t length;
    int64_t codec;
    int64_t decoded;
    int64_t has_dictionary;
    int64_t coded;      /* it has one, and no page is known to be without codes */
    int64_t text_bytes; /* -1: not said */
    int64_t values;
    int64_t nulls;    /* -1: unknown */
    int64_t is_known; /* its limits are there, as integers or as bytes */
    int64_t is_exact; /* and are values of the chunk */
    int64_t low;
    int64_t high;
    ps_slice low_bytes;
    ps_slice high_bytes;
} ps_column_chunk;

#define PS_FIRST_DATA_BYTE 4
/* No codec and encoding known compress more. */
#define PS_MOST_PLAUSIBLE_RATIO 1048576

/* Reads what is at the places of a column's chunks, of `rows` rows each. -1, or the first chunk that contradicts its file;
 * `groups` where the footer is not what find_chunks has read. */
PS_EXPORT int64_t pystachio_check_chunks(const uint8_t *footer, int64_t length, const int64_t *places, int64_t groups,
                                         const int64_t *rows, const ps_column *column, ps_column_chunk *out);

#endif
