/* Feeds mutated column chunks to the decoder, with every buffer exactly as large as promised, so that the address
 * sanitizer sees a byte too many. Prints how the calls ended.
 *
 * fuzz SEEDS MUTATIONS RANDOM_SEED
 * SEEDS: a file of chunks, each six little-endian int64 (length, rows, physical type, type length, codec, optional) and
 * the bytes. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"

enum { STATUSES = 5, MOST_ROWS = 1 << 20 };

typedef struct {
    uint8_t *bytes;
    int64_t fields[6];
} seed;

static uint64_t state;
static uint64_t outcomes[STATUSES];
static volatile uint64_t sink;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (state >> 11) % below : 0;
}

static void *room(int64_t size) {
    void *memory = malloc(size ? (size_t)size : 1);
    if (!memory) abort();
    return memory;
}

/* What the decoder wrote must be there to be read. */
static void use(const void *memory, int64_t size) {
    const uint8_t *bytes = memory;
    for (int64_t i = 0; i < size; i += 61) sink += bytes[i];
}

static int32_t ended(int32_t status) {
    if (status < 0 || status >= STATUSES) abort();
    outcomes[status]++;
    return status;
}

static void decode_numbers(const ps_chunk *chunk) {
    static const int32_t widths[] = {1, 2, 4, 8};
    int64_t before = (int64_t)draw(3) * 7;
    ps_fixed out = {.row = before, .low = INT64_MAX, .high = INT64_MIN, .width = widths[draw(4)]};
    /* By physical type: BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY. */
    static const int32_t fitting[] = {PS_BOOLEAN, PS_SIGNED, PS_SIGNED, PS_CODES, PS_RAW, PS_RAW, PS_CODES, PS_DECIMAL};
    out.conversion = draw(4) ? fitting[chunk->physical_type & 7] : (int32_t)draw(6);
    if (out.conversion == PS_BOOLEAN) out.width = 1;
    if (out.conversion == PS_RAW) out.width = chunk->physical_type == 4 ? 4 : 8;
    int64_t size = (before + chunk->wanted) * out.width;
    uint8_t table[300 * 8] = {0};
    if (out.conversion == PS_CODES && draw(2)) {
        out.table = table;
        out.table_length = (int64_t)draw(300);
    }
    out.values = room(size);
    out.validity = chunk->optional || draw(2) ? room(before + chunk->wanted) : NULL;
    if (ended(pystachio_decode_fixed(chunk, &out)) == PS_OK) {
        use((uint8_t *)out.values + before * out.width, chunk->wanted * out.width);
        if (out.nulls) use(out.validity, before + chunk->wanted);
        if (out.nulls < 0 || out.nulls > chunk->wanted || out.row != before + chunk->wanted) abort();
    }
    free(out.values);
    free(out.validity);
}

static void look_up(const ps_chunk *chunk, const ps_strings *out) {
    int64_t *offsets = room((chunk->wanted + 1) * 8);
    offsets[0] = 0;
    const uint8_t *valid = out->nulls ? out->validity : NULL;
    int64_t length = pystachio_text_offsets(out->codes, valid, chunk->wanted, out->offsets, offsets);
    if (length >= 0 && length < 64 << 20) {
        uint8_t *data = room(length);
        pystachio_text_gather(out->codes, chunk->wanted, out->offsets, out->data, out->data_capacity, offsets, data,
                              length);
        use(data, length);
        free(data);
    }
    free(offsets);
}

static void decode_strings(const ps_chunk *chunk) {
    ps_survey_result survey;
    if (ended(pystachio_survey(chunk, &survey)) != PS_OK) return;
    int how = (int)draw(3); /* 0: plain only, 1: codes, 2: the dictionary */
    ps_strings out = {.entry_capacity = survey.dictionary_values + (how == 1 ? survey.plain_rows : 0)};
    out.data_capacity = (how == 0 ? 0 : survey.dictionary_bytes) + (how == 2 ? 0 : survey.plain_bytes);
    out.offsets = room(((how == 0 ? chunk->wanted : out.entry_capacity) + 1) * 8);
    out.offsets[0] = 0;
    out.data = room(out.data_capacity);
    out.validity = room(chunk->wanted);
    out.codes = how == 1 ? room(chunk->wanted * 4) : NULL;
    int32_t status = how == 2 ? pystachio_decode_dictionary(chunk, &out) : pystachio_decode_strings(chunk, &out);
    if (ended(status) == PS_OK) {
        if (how == 1) {
            use(out.codes, chunk->wanted * 4);
            if (out.entries) look_up(chunk, &out);
        } else {
            int64_t count = how == 0 ? chunk->wanted : out.entries;
            for (int64_t i = 0; i < count; i++)
                if (out.offsets[i] > out.offsets[i + 1]) abort();
            if (out.offsets[count] > out.data_capacity) abort();
            use(out.data, out.offsets[count]);
        }
    }
    free(out.offsets);
    free(out.data);
    free(out.validity);
    free(out.codes);
}

static int64_t mutate(uint8_t *bytes, int64_t length) {
    static const uint8_t telling[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0xfe, 0x15, 0x1c, 0x2c, 0x4c, 0x02, 0x03};
    for (uint64_t times = 1 + draw(4); times && length; times--) {
        /* Headers and the beginnings of runs decide most: aim at the first bytes as often as anywhere. */
        uint64_t reach = draw(2) ? (uint64_t)length : (uint64_t)(length < 64 ? length : 64);
        uint64_t at = draw(reach);
        switch (draw(6)) {
        case 0:
            bytes[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            bytes[at] = telling[draw(sizeof telling)];
            break;
        case 2:
            bytes[at] = (uint8_t)draw(256);
            break;
        case 3:
            if (draw(8) == 0) length = (int64_t)at;
            break;
        case 4:
            for (uint64_t i = at; i < at + 5 && i < (uint64_t)length; i++) bytes[i] = 0xff;
            break;
        default: {
            uint64_t from = draw((uint64_t)length), count = draw(32);
            for (uint64_t i = 0; i < count && at + i < (uint64_t)length && from + i < (uint64_t)length; i++)
                bytes[at + i] = bytes[from + i];
        }
        }
    }
    return length;
}

static void run(const seed *from, int mutated) {
    int64_t length = from->fields[0];
    uint8_t *copy = room(length);
    memcpy(copy, from->bytes, (size_t)length);
    int64_t kept = mutated ? mutate(copy, length) : length;
    uint8_t *bytes = room(kept); /* exactly: reading behind it is an error */
    memcpy(bytes, copy, (size_t)kept);
    free(copy);
    ps_chunk chunk = {.bytes = bytes,
                      .length = kept,
                      .rows = from->fields[1],
                      .physical_type = (int32_t)from->fields[2],
                      .type_length = (int32_t)from->fields[3],
                      .codec = (int32_t)from->fields[4],
                      .optional = (int32_t)from->fields[5]};
    if (mutated && draw(8) == 0) chunk.rows = (int64_t)draw(2 * (uint64_t)chunk.rows + 2);
    if (mutated && draw(16) == 0) chunk.type_length = (int32_t)draw(40);
    if (mutated && draw(16) == 0) chunk.physical_type = (int32_t)draw(8);
    if (mutated && draw(16) == 0) chunk.optional ^= 1;
    if (mutated && draw(16) == 0) chunk.codec ^= 1;
    chunk.wanted = draw(4) ? chunk.rows : (int64_t)draw((uint64_t)chunk.rows + 1);
    if (chunk.rows <= MOST_ROWS) {
        decode_numbers(&chunk);
        decode_strings(&chunk);
    }
    free(bytes);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    FILE *file = fopen(arguments[1], "rb");
    if (!file) return 2;
    size_t seeds = 0;
    seed *all = NULL;
    int64_t fields[6];
    while (fread(fields, sizeof fields, 1, file) == 1) {
        all = realloc(all, (seeds + 1) * sizeof *all);
        if (!all) return 2;
        memcpy(all[seeds].fields, fields, sizeof fields);
        all[seeds].bytes = room(fields[0]);
        if (fread(all[seeds].bytes, 1, (size_t)fields[0], file) != (size_t)fields[0]) return 2;
        seeds++;
    }
    fclose(file);
    if (!seeds) return 2;
    state = strtoull(arguments[3], NULL, 10) * 2654435761u + 88172645463325252u;
    for (size_t i = 0; i < seeds; i++) run(&all[i], 0);
    uint64_t mutations = strtoull(arguments[2], NULL, 10);
    for (uint64_t i = 0; i < mutations; i++) run(&all[draw(seeds)], 1);
    printf("chunks %zu, mutations %llu: ok %llu, not handled %llu, corrupt %llu, too narrow %llu, no memory %llu\n",
           seeds, (unsigned long long)mutations, (unsigned long long)outcomes[0], (unsigned long long)outcomes[1],
           (unsigned long long)outcomes[2], (unsigned long long)outcomes[3], (unsigned long long)outcomes[4]);
    for (size_t i = 0; i < seeds; i++) free(all[i].bytes);
    free(all);
    return 0;
}
