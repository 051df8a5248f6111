/* What is common to page headers and footers (skipping), and page headers. */

#include "thrift.h"

/* Real headers nest three levels deep; the limit is for the stack's sake. */
enum { MOST_NESTED = 16 };

static bool read_i32(ps_bytes *in, int type, int32_t *value) {
    uint64_t raw;
    if (type != THRIFT_I32 || !read_varint(in, &raw) || raw > UINT32_MAX) return false;
    *value = (int32_t)((uint32_t)(raw >> 1) ^ (0 - (uint32_t)(raw & 1)));
    return true;
}

static bool skip_bytes(ps_bytes *in, uint64_t count) {
    if (count > bytes_left(*in)) return false;
    in->at += count;
    return true;
}

static bool skip_elements(ps_bytes *in, int type, uint64_t count, int nested) {
    if (count > bytes_left(*in)) return false; /* each takes a byte or more, booleans of collections too */
    for (; count; count--)
        if (type == THRIFT_TRUE || type == THRIFT_FALSE ? !skip_bytes(in, 1) : !ps_skip(in, type, nested)) return false;
    return true;
}

static bool skip_collection(ps_bytes *in, int type, int nested) {
    uint64_t count;
    if (type == THRIFT_MAP) {
        if (!read_varint(in, &count)) return false;
        if (count == 0) return true;
        if (in->at == in->end) return false;
        uint8_t types = *in->at++;
        if (count > bytes_left(*in)) return false;
        for (; count; count--)
            if (!skip_elements(in, types >> 4, 1, nested) || !skip_elements(in, types & 0x0f, 1, nested)) return false;
        return true;
    }
    if (in->at == in->end) return false;
    uint8_t byte = *in->at++;
    count = byte >> 4;
    if (count == 15 && !read_varint(in, &count)) return false;
    return skip_elements(in, byte & 0x0f, count, nested);
}

bool ps_skip(ps_bytes *in, int type, int nested) {
    uint64_t value;
    if (nested > MOST_NESTED) return false;
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
        return true;
    case THRIFT_BYTE:
        return skip_bytes(in, 1);
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        return read_varint(in, &value);
    case THRIFT_DOUBLE:
        return skip_bytes(in, 8);
    case THRIFT_BINARY:
        return read_varint(in, &value) && skip_bytes(in, value);
    case THRIFT_LIST:
    case THRIFT_SET:
    case THRIFT_MAP:
        return skip_collection(in, type, nested + 1);
    case THRIFT_STRUCT: {
        int inner;
        int32_t field = 0;
        while (read_field(in, &inner, &field)) {
            if (inner == THRIFT_STOP) return true;
            if (!ps_skip(in, inner, nested + 1)) return false;
        }
        return false;
    }
    default:
        return false;
    }
}

/* DataPageHeader, DictionaryPageHeader and DataPageHeaderV2 have their numbers under these fields. */
static bool read_data_header(ps_bytes *in, int32_t field, int type, ps_page_header *header) {
    switch (field) {
    case 1:
        return read_i32(in, type, &header->values);
    case 2:
        return read_i32(in, type, &header->encoding);
    case 3:
        return read_i32(in, type, &header->level_encoding);
    default:
        return ps_skip(in, type, 1);
    }
}

static bool read_dictionary_header(ps_bytes *in, int32_t field, int type, ps_page_header *header) {
    return field == 3 ? ps_skip(in, type, 1) : read_data_header(in, field, type, header);
}

static bool read_data_header_v2(ps_bytes *in, int32_t field, int type, ps_page_header *header) {
    switch (field) {
    case 1:
        return read_i32(in, type, &header->values);
    case 2:
        return read_i32(in, type, &header->nulls);
    case 4:
        return read_i32(in, type, &header->encoding);
    case 5:
        return read_i32(in, type, &header->definition_bytes);
    case 6:
        return read_i32(in, type, &header->repetition_bytes);
    case 7:
        return read_bool(type, &header->is_compressed);
    default:
        return ps_skip(in, type, 1);
    }
}

typedef bool read_inner(ps_bytes *in, int32_t field, int type, ps_page_header *header);

static bool read_inner_struct(ps_bytes *in, int type, ps_page_header *header, read_inner *read) {
    int inner;
    int32_t field = 0;
    if (type != THRIFT_STRUCT) return false;
    while (read_field(in, &inner, &field)) {
        if (inner == THRIFT_STOP) return true;
        if (!read(in, field, inner, header)) return false;
    }
    return false;
}

static bool read_outer(ps_bytes *in, int32_t field, int type, ps_page_header *header) {
    switch (field) {
    case 1:
        return read_i32(in, type, &header->type);
    case 2:
        return read_i32(in, type, &header->uncompressed_size);
    case 3:
        return read_i32(in, type, &header->compressed_size);
    case 4: {
        int32_t crc = 0;
        header->has_crc = read_i32(in, type, &crc);
        header->crc = (uint32_t)crc;
        return header->has_crc;
    }
    case 5:
        return read_inner_struct(in, type, header, read_data_header);
    case 7:
        return read_inner_struct(in, type, header, read_dictionary_header);
    case 8:
        return read_inner_struct(in, type, header, read_data_header_v2);
    default:
        return ps_skip(in, type, 1);
    }
}

bool ps_read_page_header(ps_bytes *in, ps_page_header *header) {
    *header = (ps_page_header){.type = -1, .values = -1, .nulls = -1, .encoding = -1, .is_compressed = true};
    header->uncompressed_size = header->compressed_size = -1;
    if (!read_inner_struct(in, THRIFT_STRUCT, header, read_outer)) return false;
    return header->uncompressed_size >= 0 && header->compressed_size >= 0 && header->definition_bytes >= 0 &&
           header->repetition_bytes >= 0 && (header->values >= 0 || header->type == PAGE_INDEX);
}
