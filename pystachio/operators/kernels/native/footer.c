/* Parquet footers. Field numbers: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift */

#include "footer.h"

#include "thrift.h"

typedef bool read_member(ps_bytes *in, int32_t field, int type, void *context);

/* Calls `read` for each field; false when it is, or when a field comes twice. */
static bool read_members(ps_bytes *in, int type, read_member *read, void *context) {
    int inner;
    int32_t field = 0;
    uint32_t seen = 0;
    if (type != THRIFT_STRUCT) return false;
    while (read_field(in, &inner, &field)) {
        if (inner == THRIFT_STOP) return true;
        if (field >= 0 && field < 32) {
            if (seen >> field & 1) return false;
            seen |= (uint32_t)1 << field;
        }
        if (!read(in, field, inner, context)) return false;
    }
    return false;
}

static bool read_number(ps_bytes *in, int type, int64_t *value) {
    uint64_t raw;
    if ((type != THRIFT_I16 && type != THRIFT_I32 && type != THRIFT_I64) || !read_varint(in, &raw)) return false;
    *value = (int64_t)((raw >> 1) ^ (0 - (raw & 1)));
    return *value != PS_ABSENT;
}

static bool read_truth(int type, int64_t *value) {
    bool truth;
    if (!read_bool(type, &truth)) return false;
    *value = truth;
    return true;
}

/* The number of elements of a list of structs. */
static bool read_structs(ps_bytes *in, int type, uint64_t *count) {
    if (type != THRIFT_LIST || in->at == in->end) return false;
    uint8_t byte = *in->at++;
    *count = byte >> 4;
    if (*count == 15 && !read_varint(in, count)) return false;
    return ((byte & 0x0f) == THRIFT_STRUCT || *count == 0) && *count <= bytes_left(*in);
}

/* One chunk */

typedef struct {
    const uint8_t *footer;
    ps_chunk_description *out;
    bool has_metadata;
} chunk_reader;

static bool read_slice(ps_bytes *in, int type, const uint8_t *footer, ps_slice *slice) {
    uint64_t length;
    if (type != THRIFT_BINARY || !read_varint(in, &length) || length > bytes_left(*in)) return false;
    *slice = (ps_slice){in->at - footer, (int64_t)length};
    in->at += length;
    return true;
}

static bool read_statistics(ps_bytes *in, int32_t field, int type, void *context) {
    chunk_reader *reader = context;
    ps_chunk_description *out = reader->out;
    switch (field) {
    case 1:
        return read_slice(in, type, reader->footer, &out->legacy_high);
    case 2:
        return read_slice(in, type, reader->footer, &out->legacy_low);
    case 3:
        return read_number(in, type, &out->nulls);
    case 5:
        return read_slice(in, type, reader->footer, &out->high);
    case 6:
        return read_slice(in, type, reader->footer, &out->low);
    case 7:
        return read_truth(type, &out->exact_high);
    case 8:
        return read_truth(type, &out->exact_low);
    default:
        return ps_skip(in, type, 1);
    }
}

static bool read_sizes(ps_bytes *in, int32_t field, int type, void *context) {
    chunk_reader *reader = context;
    return field == 1 ? read_number(in, type, &reader->out->text_bytes) : ps_skip(in, type, 1);
}

typedef struct {
    int64_t page;
    int64_t encoding;
} page_kind;

static bool read_page_kind(ps_bytes *in, int32_t field, int type, void *context) {
    page_kind *kind = context;
    if (field == 1) return read_number(in, type, &kind->page);
    if (field == 2) return read_number(in, type, &kind->encoding);
    return ps_skip(in, type, 1);
}

/* Whether all data pages hold dictionary codes. */
static bool read_page_kinds(ps_bytes *in, int type, int64_t *coded) {
    uint64_t count;
    if (!read_structs(in, type, &count)) return false;
    if (count) *coded = 1;
    for (; count; count--) {
        page_kind kind = {PS_ABSENT, PS_ABSENT};
        if (!read_members(in, THRIFT_STRUCT, read_page_kind, &kind)) return false;
        if (kind.page == PS_ABSENT || kind.encoding == PS_ABSENT) return false;
        bool has_codes = kind.encoding == ENCODING_PLAIN_DICTIONARY || kind.encoding == ENCODING_RLE_DICTIONARY;
        if ((kind.page == PAGE_DATA || kind.page == PAGE_DATA_V2) && !has_codes) *coded = 0;
    }
    return true;
}

static bool read_chunk_metadata(ps_bytes *in, int32_t field, int type, void *context) {
    chunk_reader *reader = context;
    ps_chunk_description *out = reader->out;
    switch (field) {
    case 1:
        return read_number(in, type, &out->physical_type) && out->physical_type >= TYPE_BOOLEAN &&
               out->physical_type <= TYPE_FIXED;
    case 4:
        return read_number(in, type, &out->codec);
    case 5:
        return read_number(in, type, &out->values);
    case 6:
        return read_number(in, type, &out->decoded);
    case 7:
        return read_number(in, type, &out->length);
    case 9:
        return read_number(in, type, &out->data_offset);
    case 11:
        return read_number(in, type, &out->dictionary_offset);
    case 12:
        return read_members(in, type, read_statistics, reader);
    case 13:
        return read_page_kinds(in, type, &out->coded);
    case 16:
        return read_members(in, type, read_sizes, reader);
    default:
        return ps_skip(in, type, 1);
    }
}

static bool read_chunk(ps_bytes *in, int32_t field, int type, void *context) {
    chunk_reader *reader = context;
    ps_slice other_file;
    switch (field) {
    case 1:
        return read_slice(in, type, reader->footer, &other_file) && other_file.length == 0;
    case 3:
        reader->has_metadata = true;
        return read_members(in, type, read_chunk_metadata, reader);
    default:
        return ps_skip(in, type, 1);
    }
}

static bool describe_chunk(ps_bytes *in, const uint8_t *footer, ps_chunk_description *out) {
    const ps_slice none = {0, -1};
    *out = (ps_chunk_description){.coded = -1, .exact_low = -1, .exact_high = -1};
    out->physical_type = out->codec = out->data_offset = out->dictionary_offset = out->length = PS_ABSENT;
    out->decoded = out->values = out->text_bytes = out->nulls = PS_ABSENT;
    out->low = out->high = out->legacy_low = out->legacy_high = none;
    chunk_reader reader = {footer, out, false};
    return read_members(in, THRIFT_STRUCT, read_chunk, &reader) && reader.has_metadata &&
           out->physical_type != PS_ABSENT && out->codec != PS_ABSENT && out->data_offset != PS_ABSENT &&
           out->length != PS_ABSENT && out->decoded != PS_ABSENT && out->values != PS_ABSENT;
}

/* All chunks */

typedef struct {
    const uint8_t *footer;
    int64_t leaves;
    int64_t groups;
    int64_t *places;
    uint8_t *ordered;
    int64_t group; /* the one being read */
    bool has_chunks;
    bool has_groups;
} footer_reader;

static bool read_row_group(ps_bytes *in, int32_t field, int type, void *context) {
    footer_reader *reader = context;
    ps_chunk_description unused;
    uint64_t count;
    if (field != 1) return ps_skip(in, type, 1);
    if (!read_structs(in, type, &count) || count != (uint64_t)reader->leaves) return false;
    for (int64_t leaf = 0; leaf < reader->leaves; leaf++) {
        reader->places[leaf * reader->groups + reader->group] = in->at - reader->footer;
        if (!describe_chunk(in, reader->footer, &unused)) return false;
    }
    reader->has_chunks = true;
    return true;
}

static bool read_row_groups(ps_bytes *in, int type, footer_reader *reader) {
    uint64_t count;
    if (!read_structs(in, type, &count) || count != (uint64_t)reader->groups) return false;
    for (reader->group = 0; reader->group < reader->groups; reader->group++) {
        reader->has_chunks = false;
        if (!read_members(in, THRIFT_STRUCT, read_row_group, reader) || !reader->has_chunks) return false;
    }
    reader->has_groups = true;
    return true;
}

/* An order is a union: it is there when it has a field. */
static bool read_order(ps_bytes *in, int32_t field, int type, void *context) {
    (void)field;
    *(uint8_t *)context |= type != THRIFT_MAP;
    return ps_skip(in, type, 1);
}

static bool read_orders(ps_bytes *in, int type, footer_reader *reader) {
    uint64_t count;
    uint8_t unused = 0;
    if (!read_structs(in, type, &count)) return false;
    for (uint64_t leaf = 0; leaf < count; leaf++) {
        uint8_t *order = leaf < (uint64_t)reader->leaves ? &reader->ordered[leaf] : &unused;
        if (!read_members(in, THRIFT_STRUCT, read_order, order)) return false;
    }
    return true;
}

static bool read_footer(ps_bytes *in, int32_t field, int type, void *context) {
    footer_reader *reader = context;
    if (field == 4) return read_row_groups(in, type, reader);
    if (field == 7) return read_orders(in, type, reader);
    return ps_skip(in, type, 1);
}

int32_t pystachio_find_chunks(const uint8_t *footer, int64_t length, int64_t leaves, int64_t groups, int64_t *places,
                              uint8_t *ordered) {
    ps_bytes in = {footer, footer + length};
    footer_reader reader = {footer, leaves, groups, places, ordered, 0, false, false};
    memset(ordered, 0, (size_t)leaves);
    return read_members(&in, THRIFT_STRUCT, read_footer, &reader) && reader.has_groups ? PS_OK : PS_NOT_HANDLED;
}

int32_t pystachio_describe_chunks(const uint8_t *footer, int64_t length, const int64_t *places, int64_t count,
                                  ps_chunk_description *out) {
    for (int64_t i = 0; i < count; i++) {
        if (places[i] < 0 || places[i] > length) return PS_NOT_HANDLED;
        ps_bytes in = {footer + places[i], footer + length};
        if (!describe_chunk(&in, footer, &out[i])) return PS_NOT_HANDLED;
    }
    return PS_OK;
}

/* Chunks of a column */

/* An integer in Parquet's plain encoding. */
static bool read_limit(const uint8_t *footer, ps_slice slice, const ps_column *column, int64_t *limit) {
    if (slice.length != column->width) return false;
    const uint8_t *at = footer + slice.offset;
    if (slice.length == 8) {
        memcpy(limit, at, 8);
    } else if (slice.length == 4) {
        int32_t narrow;
        memcpy(&narrow, at, 4);
        *limit = narrow;
    } else {
        *limit = (int8_t)*at;
    }
    if (column->bits) *limit &= ((int64_t)1 << column->bits) - 1;
    return true;
}

static bool is_exact(const ps_chunk_description *said) {
    if (said->low.length < 0 || said->high.length < 0 || !said->exact_low || !said->exact_high) return false;
    if (said->physical_type == TYPE_INT32 || said->physical_type == TYPE_INT64) return true;
    bool is_bytes = said->physical_type == TYPE_BYTE_ARRAY || said->physical_type == TYPE_FIXED;
    return is_bytes && said->exact_low == 1 && said->exact_high == 1;
}

static void read_limits(const uint8_t *footer, ps_chunk_description *said, const ps_column *column,
                        ps_column_chunk *out) {
    if (!column->is_ordered) said->low.length = said->high.length = -1;
    out->low_bytes = said->low;
    out->high_bytes = said->high;
    if (said->low.length < 0 && said->high.length < 0 && column->is_signed) {
        out->low_bytes = said->legacy_low;
        out->high_bytes = said->legacy_high;
    }
    out->is_known = column->width >= 0 && out->low_bytes.length >= 0 && out->high_bytes.length >= 0;
    if (out->is_known && column->width) {
        out->is_known = read_limit(footer, out->low_bytes, column, &out->low) &&
                        read_limit(footer, out->high_bytes, column, &out->high) && out->low <= out->high;
    }
    out->is_exact = out->is_known && is_exact(said);
}

static bool fits_file(const ps_chunk_description *said, const ps_column *column, int64_t rows, ps_column_chunk *out) {
    if (said->data_offset < PS_FIRST_DATA_BYTE || said->data_offset > column->data_end) return false;
    out->has_dictionary = said->dictionary_offset > 0 && said->dictionary_offset < said->data_offset;
    out->offset = out->has_dictionary ? said->dictionary_offset : said->data_offset;
    int64_t most = column->data_end - out->offset;
    out->length = said->length;
    if (column->padding && out->length > most - column->padding) {
        out->length = most;
    } else {
        out->length += column->padding;
    }
    if (out->offset < PS_FIRST_DATA_BYTE || out->length > most) return false;
    if (out->length < said->data_offset - out->offset) return false;
    if (said->decoded < 0 || (said->decoded - 1) / PS_MOST_PLAUSIBLE_RATIO > out->length) return false;
    return said->physical_type == column->physical_type && said->values == rows;
}

int64_t pystachio_check_chunks(const uint8_t *footer, int64_t length, const int64_t *places, int64_t groups,
                               const int64_t *rows, const ps_column *column, ps_column_chunk *out) {
    for (int64_t i = 0; i < groups; i++) {
        ps_chunk_description said;
        if (pystachio_describe_chunks(footer, length, &places[i], 1, &said) != PS_OK) return groups;
        ps_column_chunk *chunk = &out[i];
        *chunk = (ps_column_chunk){.codec = said.codec, .text_bytes = -1, .values = said.values, .nulls = -1};
        if (said.nulls >= 0 && said.nulls <= said.values) chunk->nulls = said.nulls;
        read_limits(footer, &said, column, chunk);
        if (!rows[i] && !said.values) { /* writers put anything into the offsets of empty chunks */
            chunk->offset = PS_FIRST_DATA_BYTE;
            continue;
        }
        if (!fits_file(&said, column, rows[i], chunk)) return i;
        chunk->decoded = said.decoded;
        chunk->coded = chunk->has_dictionary && said.coded != 0;
        if (said.text_bytes >= 0) chunk->text_bytes = said.text_bytes;
    }
    return -1;
}
