/* Chunks: what the caller asks for, page by page. */

#include "internal.h"

int32_t pystachio_interface_version(void) { return PS_INTERFACE_VERSION; }

static bool is_sound(const ps_chunk *chunk) {
    return chunk->length >= 0 && chunk->wanted >= 0 && chunk->wanted <= chunk->rows;
}

static bool is_coded(const ps_page_header *header) {
    return header->encoding == ENCODING_RLE_DICTIONARY || header->encoding == ENCODING_PLAIN_DICTIONARY;
}

int32_t pystachio_survey(const ps_chunk *chunk, ps_survey_result *result) {
    ps_pages pages;
    *result = (ps_survey_result){0};
    ps_pages_start(&pages, chunk, &result->failure);
    if (!is_sound(chunk)) return PS_NOT_HANDLED;
    while (chunk->rows - pages.rows_left < chunk->wanted) {
        int status = ps_pages_next(&pages);
        if (status != PS_OK) return status;
        if (pages.header.type == PAGE_DICTIONARY) {
            result->dictionary_values = pages.header.values;
            result->dictionary_bytes = pages.header.uncompressed_size;
            if (chunk->physical_type == TYPE_BYTE_ARRAY && pages.header.values > pages.header.uncompressed_size / 4)
                return ps_corrupt(&result->failure, "a dictionary page that is too short for its values");
        } else if (is_coded(&pages.header)) {
            result->coded_rows += pages.header.values;
        } else if (pages.header.encoding == ENCODING_PLAIN || pages.header.encoding == ENCODING_RLE) {
            result->plain_rows += pages.header.values;
            result->plain_bytes += pages.header.uncompressed_size;
        } else {
            return PS_NOT_HANDLED;
        }
    }
    return PS_OK;
}

/* Rows of the current page that are wanted. */
static int64_t rows_of_page(const ps_pages *pages) {
    int64_t before = pages->chunk->rows - pages->rows_left - pages->header.values;
    int64_t wanted = pages->chunk->wanted - before;
    return pages->header.values < wanted ? pages->header.values : wanted;
}

/* The definition levels of `count` rows into `validity`, which begins at the first row of the output; `present` says
 * how many rows have a value. */
static int read_validity(const ps_pages *pages, ps_bytes levels, int64_t count, uint8_t *validity, int64_t row,
                         int64_t *nulls, int64_t *present) {
    *present = count;
    if (!pages->chunk->optional) return PS_OK;
    *present = ps_read_bits(levels, count, validity + row, *nulls == 0);
    if (*present < 0) return ps_corrupt(pages->failure, "unreadable levels");
    if (pages->header.nulls >= 0 && count == pages->header.values && count - *present != pages->header.nulls)
        return ps_corrupt(pages->failure, "another number of NULLs than the page header says");
    if (*nulls == 0 && *present < count) memset(validity, 1, (size_t)row);
    *nulls += count - *present;
    return PS_OK;
}

/* The chunk's dictionary as numbers of the wanted width. */
static int read_table(ps_pages *pages, const ps_fixed *out, ps_table *table, ps_bounds *bounds) {
    ps_page page;
    int64_t count = pages->header.values;
    if (out->conversion == PS_CODES) {
        table->length = out->table ? out->table_length : count;
        return PS_OK;
    }
    if (out->conversion == PS_BOOLEAN) return PS_NOT_HANDLED;
    int status = ps_pages_open(pages, &page, NULL, 0);
    if (status != PS_OK) return status;
    int32_t stored = ps_stored_width(pages->chunk);
    if (stored <= 0 || (size_t)count > bytes_left(page.values) / (size_t)stored)
        return ps_corrupt(pages->failure, "a dictionary page that is too short for its values");
    void *entries = ps_scratch(SCRATCH_TABLE, (size_t)count * (size_t)out->width);
    if (!entries) return PS_NO_MEMORY;
    *table = (ps_table){entries, count, out->width};
    return ps_convert(pages->chunk, out, page.values.at, count, entries, bounds);
}

static int read_booleans(const ps_pages *pages, ps_bytes values, int64_t count, uint8_t *to) {
    if (pages->header.encoding == ENCODING_RLE) {
        if (count == 0) return PS_OK;
        if (bytes_left(values) < 4) return ps_corrupt(pages->failure, "a page that is too short for its values");
        uint32_t length = load32(values.at);
        values.at += 4;
        if (length > bytes_left(values)) return ps_corrupt(pages->failure, "a page that is too short for its values");
        values.end = values.at + length;
        return ps_read_bits(values, count, to, false) < 0 ? ps_corrupt(pages->failure, "unreadable booleans") : PS_OK;
    }
    if (((uint64_t)count + 7) / 8 > bytes_left(values))
        return ps_corrupt(pages->failure, "a page that is too short for its values");
    ps_expand_bits(values.at, count, to);
    return PS_OK;
}

static int read_plain(const ps_pages *pages, const ps_fixed *out, ps_bytes values, int64_t count, uint8_t *to,
                      ps_bounds *bounds) {
    int32_t encoding = pages->header.encoding;
    if (out->conversion == PS_BOOLEAN && (encoding == ENCODING_PLAIN || encoding == ENCODING_RLE))
        return read_booleans(pages, values, count, to);
    int32_t stored = ps_stored_width(pages->chunk);
    if (encoding != ENCODING_PLAIN || out->conversion == PS_CODES || stored <= 0) return PS_NOT_HANDLED;
    if ((size_t)count > bytes_left(values) / (size_t)stored)
        return ps_corrupt(pages->failure, "a page that is too short for its values");
    return ps_convert(pages->chunk, out, values.at, count, to, bounds);
}

/* One data page. */
static int read_fixed(ps_pages *pages, ps_fixed *out, const ps_table *table, const ps_bounds *table_bounds,
                      ps_bounds *bounds) {
    int64_t count = rows_of_page(pages), present;
    uint8_t *to = (uint8_t *)out->values + out->row * out->width;
    ps_page page;
    bool in_place = pages->header.encoding == ENCODING_PLAIN && !pages->chunk->optional &&
                    count == pages->header.values && (out->conversion == PS_SIGNED || out->conversion == PS_RAW) &&
                    out->width == ps_stored_width(pages->chunk);
    int status = ps_pages_open(pages, &page, in_place ? to : NULL, (size_t)(count * out->width));
    if (status != PS_OK) return status;
    status = read_validity(pages, page.levels, count, out->validity, out->row, &out->nulls, &present);
    if (status != PS_OK) return status;

    if (is_coded(&pages->header)) {
        if (!pages->has_dictionary) return ps_corrupt(pages->failure, "codes without a dictionary page");
        if (!ps_read_codes(page.values, present, table, to))
            return ps_corrupt(pages->failure, "dictionary codes that are cut off or outside the dictionary");
        if (present && table_bounds->low < bounds->low) bounds->low = table_bounds->low;
        if (present && table_bounds->high > bounds->high) bounds->high = table_bounds->high;
    } else {
        status = read_plain(pages, out, page.values, present, to, bounds);
        if (status != PS_OK) return status;
    }
    if (present < count) ps_spread(to, out->width, out->validity + out->row, count, present);
    out->row += count;
    return PS_OK;
}

static bool is_fixed_handled(const ps_chunk *chunk, const ps_fixed *out) {
    if (out->width != 1 && out->width != 2 && out->width != 4 && out->width != 8) return false;
    switch (out->conversion) {
    case PS_SIGNED:
        return chunk->physical_type == TYPE_INT32 || chunk->physical_type == TYPE_INT64;
    case PS_UNSIGNED:
        return chunk->physical_type == TYPE_INT32;
    case PS_RAW:
        return (chunk->physical_type == TYPE_FLOAT && out->width == 4) ||
               (chunk->physical_type == TYPE_DOUBLE && out->width == 8);
    case PS_BOOLEAN:
        return chunk->physical_type == TYPE_BOOLEAN && out->width == 1;
    case PS_DECIMAL:
        return chunk->physical_type == TYPE_FIXED && chunk->type_length >= 1 && chunk->type_length <= 32;
    case PS_CODES:
        return out->table || out->width == 4;
    default:
        return false;
    }
}

int32_t pystachio_decode_fixed(const ps_chunk *chunk, ps_fixed *out) {
    ps_pages pages;
    ps_pages_start(&pages, chunk, &out->failure);
    if (!is_sound(chunk) || !is_fixed_handled(chunk, out) || (chunk->optional && !out->validity)) return PS_NOT_HANDLED;
    ps_table table = {out->table, 0, out->width};
    ps_bounds table_bounds = {INT64_MAX, INT64_MIN}, bounds = {out->low, out->high};
    int status = PS_OK;
    while (status == PS_OK && chunk->rows - pages.rows_left < chunk->wanted) {
        status = ps_pages_next(&pages);
        if (status != PS_OK) break;
        if (pages.header.type == PAGE_DICTIONARY) {
            status = read_table(&pages, out, &table, &table_bounds);
        } else {
            status = read_fixed(&pages, out, &table, &table_bounds, &bounds);
        }
    }
    out->low = bounds.low;
    out->high = bounds.high;
    ps_scratch_trim();
    return status;
}

int32_t pystachio_decode_fixed_all(const ps_chunk *chunks, int64_t count, ps_fixed *out, int64_t *done) {
    int32_t status = PS_OK;
    for (*done = 0; *done < count; ++*done) {
        status = pystachio_decode_fixed(chunks + *done, out);
        if (status != PS_OK) break;
    }
    return status;
}

static int read_dictionary(ps_pages *pages, ps_strings *out) {
    ps_page page;
    int status = ps_pages_open(pages, &page, NULL, 0);
    if (status != PS_OK) return status;
    if (pages->header.values > out->entry_capacity) return ps_corrupt(pages->failure, "a dictionary that is too long");
    if (!ps_read_strings(page.values, pages->header.values, out->offsets, out->data, out->data_capacity))
        return ps_corrupt(pages->failure, "strings that are longer than their page");
    out->entries = pages->header.values;
    return PS_OK;
}

/* Codes of a page of plain values: these become entries of the dictionary. */
static int append_entries(const ps_pages *pages, ps_bytes values, int64_t present, ps_strings *out) {
    if (present > out->entry_capacity - out->entries || out->entries + present > INT32_MAX)
        return ps_corrupt(pages->failure, "more values than the page headers say");
    if (!ps_read_strings(values, present, out->offsets + out->entries, out->data, out->data_capacity))
        return ps_corrupt(pages->failure, "strings that are longer than their page");
    for (int64_t i = 0; i < present; i++) out->codes[out->row + i] = (int32_t)(out->entries + i);
    out->entries += present;
    return PS_OK;
}

static int read_strings(ps_pages *pages, ps_strings *out) {
    int64_t count = rows_of_page(pages), present;
    ps_page page;
    int status = ps_pages_open(pages, &page, NULL, 0);
    if (status != PS_OK) return status;
    status = read_validity(pages, page.levels, count, out->validity, out->row, &out->nulls, &present);
    if (status != PS_OK) return status;
    const uint8_t *valid = out->validity ? out->validity + out->row : NULL;

    if (is_coded(&pages->header)) {
        if (!pages->has_dictionary) return ps_corrupt(pages->failure, "codes without a dictionary page");
        if (!out->codes) return PS_NOT_HANDLED;
        const ps_table table = {NULL, out->entries, 4};
        if (!ps_read_codes(page.values, present, &table, out->codes + out->row))
            return ps_corrupt(pages->failure, "dictionary codes that are cut off or outside the dictionary");
    } else if (pages->header.encoding != ENCODING_PLAIN) {
        return PS_NOT_HANDLED;
    } else if (out->codes) {
        status = append_entries(pages, page.values, present, out);
        if (status != PS_OK) return status;
    } else {
        int64_t *offsets = out->offsets + out->row;
        if (!ps_read_strings(page.values, present, offsets, out->data, out->data_capacity))
            return ps_corrupt(pages->failure, "strings that are longer than their page");
        if (present < count) ps_spread_offsets(offsets, valid, count, present);
    }
    if (out->codes && present < count) ps_spread(out->codes + out->row, 4, valid, count, present);
    out->row += count;
    return PS_OK;
}

static int32_t decode_text(const ps_chunk *chunk, ps_strings *out, bool dictionary_only) {
    ps_pages pages;
    ps_pages_start(&pages, chunk, &out->failure);
    if (!is_sound(chunk) || chunk->physical_type != TYPE_BYTE_ARRAY) return PS_NOT_HANDLED;
    if (chunk->optional && !out->validity && !dictionary_only) return PS_NOT_HANDLED;
    out->entries = 0;
    int status = PS_OK;
    while (status == PS_OK && chunk->rows - pages.rows_left < chunk->wanted) {
        status = ps_pages_next(&pages);
        if (status != PS_OK) break;
        bool is_dictionary = pages.header.type == PAGE_DICTIONARY;
        if (is_dictionary && (out->codes || dictionary_only)) {
            status = read_dictionary(&pages, out);
        } else if (!is_dictionary && !dictionary_only) {
            status = read_strings(&pages, out);
        }
        if (dictionary_only) break;
    }
    ps_scratch_trim();
    return status;
}

int32_t pystachio_decode_strings(const ps_chunk *chunk, ps_strings *out) { return decode_text(chunk, out, false); }

int32_t pystachio_decode_dictionary(const ps_chunk *chunk, ps_strings *out) { return decode_text(chunk, out, true); }
