/* What the modules of the library share. */
#ifndef PYSTACHIO_INTERNAL_H
#define PYSTACHIO_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "decode.h"

/* Loops that the compiler vectorises are compiled for several instruction sets; the dynamic linker chooses.
 * PS_SANITISED is for builds with sanitisers: these run before that choice can be made. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(PS_SANITISED)
#define PS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PS_CLONES
#endif

#if defined(__GNUC__)
#define PS_LIKELY(x) __builtin_expect(!!(x), 1)
#define PS_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PS_INLINE static inline __attribute__((always_inline))
#else
#define PS_LIKELY(x) (x)
#define PS_UNLIKELY(x) (x)
#define PS_INLINE static inline
#endif

/* Parquet is little-endian; so are all machines that this is built for (the loader checks). */
PS_INLINE uint16_t load16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

PS_INLINE uint32_t load32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

PS_INLINE uint64_t load64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* parquet.thrift */
enum { TYPE_BOOLEAN, TYPE_INT32, TYPE_INT64, TYPE_INT96, TYPE_FLOAT, TYPE_DOUBLE, TYPE_BYTE_ARRAY, TYPE_FIXED };
enum { CODEC_UNCOMPRESSED = 0, CODEC_SNAPPY = 1 };
enum { ENCODING_PLAIN = 0, ENCODING_PLAIN_DICTIONARY = 2, ENCODING_RLE = 3, ENCODING_RLE_DICTIONARY = 8 };
enum { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };

/* A range of bytes. */
typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} ps_bytes;

PS_INLINE size_t bytes_left(ps_bytes bytes) { return (size_t)(bytes.end - bytes.at); }

/* thrift.c */

typedef struct {
    int32_t type;
    int32_t uncompressed_size;
    int32_t compressed_size;
    int32_t values; /* NULLs included, except in a dictionary page */
    int32_t nulls;  /* version 2 only, else -1 */
    int32_t encoding;
    int32_t level_encoding; /* version 1 only */
    int32_t definition_bytes;
    int32_t repetition_bytes;
    uint32_t crc;
    bool has_crc;
    bool is_compressed;
} ps_page_header;

/* Reads a Thrift compact PageHeader and moves `in` behind it; false when it is not one. */
bool ps_read_page_header(ps_bytes *in, ps_page_header *header);

/* snappy.c */

/* The result inside the input, when nothing could be compressed and it is one literal; else null. */
const uint8_t *ps_snappy_stored(const uint8_t *in, size_t in_length, size_t out_length);
/* Decompresses to exactly `out_length` bytes; false when the input is not that. */
bool ps_snappy_decompress(const uint8_t *in, size_t in_length, uint8_t *out, size_t out_length);

/* crc32.c */
uint32_t ps_crc32(uint32_t crc, const uint8_t *bytes, size_t length);

/* scratch.c: memory of the calling thread, one block per use, valid until the use asks again. */
enum { SCRATCH_PAGE, SCRATCH_TABLE, SCRATCH_USES };
void *ps_scratch(int use, size_t size);
/* Gives back blocks that are larger than a thread should keep. */
void ps_scratch_trim(void);

/* page.c */

typedef struct {
    const ps_chunk *chunk;
    ps_failure *failure;
    ps_bytes rest;
    int64_t rows_left; /* of the chunk, behind the current page */
    bool has_dictionary;
    ps_page_header header; /* of the current page */
    ps_bytes body;         /* as stored */
} ps_pages;

typedef struct {
    ps_bytes levels; /* definition levels (RLE), empty when there are none */
    ps_bytes values;
} ps_page;

void ps_pages_start(ps_pages *pages, const ps_chunk *chunk, ps_failure *failure);
/* The next page of data or dictionary; to be called while rows_left > 0. */
int ps_pages_next(ps_pages *pages);
/* Decompresses the current page, into `destination` when its values are just what belongs there (then values.at is
 * `destination`), else to scratch memory or not at all. */
int ps_pages_open(ps_pages *pages, ps_page *page, uint8_t *destination, size_t destination_size);
int ps_corrupt(ps_failure *failure, const char *message);

/* levels.c */

/* `count` bits of RLE/bit-packed hybrid with width 1 to bytes; the number of ones, or -1 when the input is too short.
 * `out` is not written when all are ones and `skip_ones`. */
int64_t ps_read_bits(ps_bytes in, int64_t count, uint8_t *out, bool skip_ones);
/* `count` bits, packed from the lowest on, to bytes. */
void ps_expand_bits(const uint8_t *in, int64_t count, uint8_t *out);
/* Moves the `present` first values to where `valid` is set among `count`, and zeroes the others. */
void ps_spread(void *values, int32_t width, const uint8_t *valid, int64_t count, int64_t present);
void ps_spread_offsets(int64_t *offsets, const uint8_t *valid, int64_t count, int64_t present);

/* codes.c */

typedef struct {
    const void *entries; /* null: the codes themselves */
    int64_t length;
    int32_t width;
} ps_table;

/* `count` dictionary codes (bit width in the first byte, then the RLE/bit-packed hybrid), looked up in `table`. False
 * when the input is too short or a code is not below the table's length. */
bool ps_read_codes(ps_bytes in, int64_t count, const ps_table *table, void *out);

/* convert.c */

typedef struct {
    int64_t low;
    int64_t high;
} ps_bounds;

/* Bytes of one stored value, 0 when it has no fixed width. */
int32_t ps_stored_width(const ps_chunk *chunk);
/* `count` stored values at `in` (in bounds) to `out`; widens `bounds`. */
int ps_convert(const ps_chunk *chunk, const ps_fixed *shape, const uint8_t *in, int64_t count, void *out,
               ps_bounds *bounds);

/* strings.c */

/* `count` values of a plain page behind offsets[0]; false when they do not fit the page or the capacity. */
bool ps_read_strings(ps_bytes in, int64_t count, int64_t *offsets, uint8_t *data, int64_t capacity);

#endif
