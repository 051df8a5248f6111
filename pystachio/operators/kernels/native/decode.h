/* Decodes one column chunk of a Parquet file into plain arrays. The whole interface of the library: plain C, called
 * through ctypes (which releases the GIL), reentrant, without global state but one scratch memory per thread.
 *
 * Nothing in a chunk is believed: every length, offset, count and code is checked against the buffers it refers to.
 * Sizes of outputs are the caller's; the library never writes beyond them.
 */
#ifndef PYSTACHIO_DECODE_H
#define PYSTACHIO_DECODE_H

#include <stdint.h>

#if defined(__GNUC__)
#define PS_EXPORT __attribute__((visibility("default")))
#else
#define PS_EXPORT
#endif

/* Changes with every change of a structure or function below; the loader refuses any other version. */
#define PS_INTERFACE_VERSION 40

/* What every function returns. */
enum {
    PS_OK = 0,
    PS_NOT_HANDLED = 1, /* correct or not, this library cannot tell: a codec, encoding or page that it does not know */
    PS_CORRUPT = 2,     /* the chunk contradicts itself, the footer or its checksum; `message` says how */
    PS_TOO_NARROW = 3,  /* a value does not fit the asked width */
    PS_NO_MEMORY = 4,
};

/* How stored values become numbers (ps_fixed.conversion). */
enum {
    PS_SIGNED = 0,   /* INT32, INT64: integers, dates, times, timestamps, decimals */
    PS_UNSIGNED = 1, /* INT32 that holds uint32 */
    PS_RAW = 2,      /* FLOAT, DOUBLE: copied, `width` is theirs */
    PS_BOOLEAN = 3,  /* BOOLEAN: one byte each */
    PS_DECIMAL = 4,  /* FIXED_LEN_BYTE_ARRAY: big-endian, at most 64 significant bits */
    PS_CODES = 5,    /* dictionary pages of any type: codes, looked up in the caller's `table` if there is one */
};

/* A fetched column chunk. Enumerations are those of parquet.thrift. */
typedef struct {
    const uint8_t *bytes;
    int64_t length;
    int64_t rows;   /* by the footer */
    int64_t wanted; /* decode only the first so many */
    int32_t physical_type;
    int32_t type_length;
    int32_t codec;
    int32_t optional; /* the maximum definition level: 0 or 1 */
} ps_chunk;

/* Where a failure was. */
typedef struct {
    const char *message; /* static */
    int64_t page;        /* counted from 0, the dictionary page included */
} ps_failure;

/* Sizes from the page headers of a chunk; they bound what the chunk can really hold. */
typedef struct {
    int64_t dictionary_values;
    int64_t dictionary_bytes; /* of the decompressed page: no smaller than the text in it */
    int64_t coded_rows;       /* in pages of dictionary codes, NULLs included */
    int64_t plain_rows;       /* in all other pages */
    int64_t plain_bytes;      /* of their decompressed pages */
    ps_failure failure;
} ps_survey_result;

/* Values of fixed width. The three fields `nulls`, `low` and `high` carry on from chunk to chunk: start them with
 * 0, INT64_MAX and INT64_MIN. `low` and `high` bound the integers that are not NULL; they need not be tight. */
typedef struct {
    void *values;      /* `width` bytes per row; this chunk begins at `row` */
    uint8_t *validity; /* one byte per row, only written once there is a NULL; may be null for a required column */
    const void *table; /* PS_CODES: `table_length` entries of `width` bytes; null: the codes themselves (width 4) */
    int64_t table_length;
    int64_t row;
    int64_t nulls;
    int64_t low;
    int64_t high;
    int32_t width;
    int32_t conversion;
    ps_failure failure;
} ps_fixed;

/* Values of variable length: row i is data[offsets[i] .. offsets[i + 1]). */
typedef struct {
    int64_t *offsets; /* offsets[row] is set by the caller: where this chunk's bytes begin */
    uint8_t *data;
    int64_t data_capacity;
    uint8_t *validity;
    int64_t row;
    int64_t nulls;
    /* A chunk with dictionary pages comes out as codes; null when the caller knows that there is no such page.
     * The values of plain pages are then appended to the dictionary, which is `offsets` and `data`. */
    int32_t *codes;
    int64_t entries; /* out: dictionary entries, with appended ones */
    int64_t entry_capacity;
    ps_failure failure;
} ps_strings;

PS_EXPORT int32_t pystachio_interface_version(void);

/* Reads the page headers only. */
PS_EXPORT int32_t pystachio_survey(const ps_chunk *chunk, ps_survey_result *result);

PS_EXPORT int32_t pystachio_decode_fixed(const ps_chunk *chunk, ps_fixed *out);

/* `count` chunks, one behind the other; `done` says how many went well. */
PS_EXPORT int32_t pystachio_decode_fixed_all(const ps_chunk *chunks, int64_t count, ps_fixed *out, int64_t *done);

PS_EXPORT int32_t pystachio_decode_strings(const ps_chunk *chunk, ps_strings *out);

/* Only the dictionary: `offsets` and `data`, from 0 on, and `entries`. */
PS_EXPORT int32_t pystachio_decode_dictionary(const ps_chunk *chunk, ps_strings *out);

/* Dictionary codes to strings, in two steps: `offsets` has count + 1 entries, offsets[0] is set by the caller. Codes
 * must be in range; rows with validity 0 are empty strings. Returns offsets[count]. */
PS_EXPORT int64_t pystachio_text_offsets(const int32_t *codes, const uint8_t *validity, int64_t count,
                                         const int64_t *dictionary_offsets, int64_t *offsets);
PS_EXPORT void pystachio_text_gather(const int32_t *codes, int64_t count, const int64_t *dictionary_offsets,
                                     const uint8_t *dictionary, int64_t dictionary_bytes, const int64_t *offsets,
                                     uint8_t *data, int64_t data_capacity);

#endif
