/* The pages of a chunk, one after the other: headers, checksums, decompression. */

#include "internal.h"

/* No Snappy element of n bytes stands for more than 64 n / 3: a header that claims more lies, and would otherwise make
 * us allocate gigabytes for a few bytes. */
enum { SNAPPY_MOST_RATIO = 22 };

int ps_corrupt(ps_failure *failure, const char *message) {
    failure->message = message;
    return PS_CORRUPT;
}

void ps_pages_start(ps_pages *pages, const ps_chunk *chunk, ps_failure *failure) {
    *pages = (ps_pages){.chunk = chunk, .failure = failure, .rows_left = chunk->rows};
    pages->rest = (ps_bytes){chunk->bytes, chunk->bytes + chunk->length};
    *failure = (ps_failure){.message = "", .page = -1};
}

static int next_dictionary(ps_pages *pages) {
    const ps_page_header *header = &pages->header;
    if (pages->has_dictionary) return ps_corrupt(pages->failure, "a second dictionary page");
    if (pages->rows_left != pages->chunk->rows)
        return ps_corrupt(pages->failure, "a dictionary page behind a data page");
    pages->has_dictionary = true;
    bool is_plain = header->encoding == ENCODING_PLAIN || header->encoding == ENCODING_PLAIN_DICTIONARY;
    return is_plain ? PS_OK : PS_NOT_HANDLED;
}

static int next_data(ps_pages *pages) {
    const ps_page_header *header = &pages->header;
    if (header->values > pages->rows_left) return ps_corrupt(pages->failure, "more values than the row group has rows");
    pages->rows_left -= header->values;
    if (header->type == PAGE_DATA)
        return pages->chunk->optional && header->level_encoding != ENCODING_RLE ? PS_NOT_HANDLED : PS_OK;
    int64_t levels = (int64_t)header->definition_bytes + header->repetition_bytes;
    if (levels > header->compressed_size || levels > header->uncompressed_size)
        return ps_corrupt(pages->failure, "levels that are longer than their page");
    return PS_OK;
}

int ps_pages_next(ps_pages *pages) {
    ps_page_header *header = &pages->header;
    pages->failure->page++;
    if (pages->rest.at == pages->rest.end)
        return ps_corrupt(pages->failure, "fewer values than the row group has rows");
    if (!ps_read_page_header(&pages->rest, header)) return ps_corrupt(pages->failure, "an unreadable page header");
    if ((size_t)header->compressed_size > bytes_left(pages->rest))
        return ps_corrupt(pages->failure, "a page that is longer than its column chunk");
    pages->body = (ps_bytes){pages->rest.at, pages->rest.at + header->compressed_size};
    pages->rest.at = pages->body.end;

    if (pages->chunk->codec == CODEC_SNAPPY) {
        if (header->uncompressed_size > SNAPPY_MOST_RATIO * ((int64_t)header->compressed_size + 1))
            return ps_corrupt(pages->failure, "a page that claims to be larger than its bytes can be");
    } else if (pages->chunk->codec != CODEC_UNCOMPRESSED || header->uncompressed_size != header->compressed_size) {
        return PS_NOT_HANDLED;
    }
    switch (header->type) {
    case PAGE_DICTIONARY:
        return next_dictionary(pages);
    case PAGE_DATA:
    case PAGE_DATA_V2:
        return next_data(pages);
    default:
        return PS_NOT_HANDLED;
    }
}

/* The bytes of `stored` decompressed to `size` bytes. */
static int decompress(ps_pages *pages, ps_bytes stored, size_t size, uint8_t *destination, size_t destination_size,
                      ps_bytes *result) {
    if (size == 0) {
        *result = (ps_bytes){stored.end, stored.end};
        return PS_OK;
    }
    const uint8_t *as_it_is = ps_snappy_stored(stored.at, bytes_left(stored), size);
    if (as_it_is) {
        *result = (ps_bytes){as_it_is, as_it_is + size};
        return PS_OK;
    }
    uint8_t *out = size == destination_size ? destination : NULL;
    if (!out) out = ps_scratch(SCRATCH_PAGE, size);
    if (!out) return PS_NO_MEMORY;
    if (!ps_snappy_decompress(stored.at, bytes_left(stored), out, size))
        return ps_corrupt(pages->failure, "a page that is not valid Snappy");
    *result = (ps_bytes){out, out + size};
    return PS_OK;
}

int ps_pages_open(ps_pages *pages, ps_page *page, uint8_t *destination, size_t destination_size) {
    const ps_page_header *header = &pages->header;
    ps_bytes body = pages->body;
    size_t size = (size_t)header->uncompressed_size;
    if (header->has_crc && ps_crc32(0, body.at, bytes_left(body)) != header->crc)
        return ps_corrupt(pages->failure, "CRC checksum verification failed");

    bool is_compressed = pages->chunk->codec != CODEC_UNCOMPRESSED;
    page->levels = (ps_bytes){body.at, body.at};
    if (header->type == PAGE_DATA_V2) { /* its levels are never compressed */
        body.at += header->repetition_bytes;
        page->levels = (ps_bytes){body.at, body.at + header->definition_bytes};
        body.at = page->levels.end;
        size -= (size_t)header->repetition_bytes + (size_t)header->definition_bytes;
        is_compressed = is_compressed && header->is_compressed;
        if (!is_compressed && size != bytes_left(body))
            return ps_corrupt(pages->failure, "a page whose sizes contradict each other");
    }
    page->values = body;
    if (is_compressed) {
        int status = decompress(pages, body, size, destination, destination_size, &page->values);
        if (status != PS_OK) return status;
    }
    if (header->type == PAGE_DATA && pages->chunk->optional) {
        if (bytes_left(page->values) < 4) return ps_corrupt(pages->failure, "a page without its levels");
        uint32_t length = load32(page->values.at);
        page->values.at += 4;
        if (length > bytes_left(page->values))
            return ps_corrupt(pages->failure, "levels that are longer than their page");
        page->levels = (ps_bytes){page->values.at, page->values.at + length};
        page->values.at += length;
    }
    return PS_OK;
}
