/* Feeds mutated footers to the library, in memory exactly as large as promised, so that the address sanitizer sees a
 * byte too many. Prints how many of them were accepted.
 *
 * fuzz_footer SEEDS MUTATIONS RANDOM_SEED
 * SEEDS: a file of footers, each three little-endian int64 (length, leaves, row groups) and the bytes. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "footer.h"

typedef struct {
    int64_t length;
    int64_t leaves;
    int64_t groups;
    uint8_t *bytes;
} seed;

static uint64_t state;

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

static int lies_within(ps_slice slice, int64_t length) {
    return slice.length == -1 || (slice.length >= 0 && slice.offset >= 0 && slice.length <= length - slice.offset);
}

/* Whether the library accepts the footer; then all that it says must be there. */
static int accepted(const uint8_t *bytes, int64_t length, int64_t leaves, int64_t groups) {
    int64_t *places = room(leaves * groups * 8);
    uint8_t *ordered = room(leaves);
    int found = pystachio_find_chunks(bytes, length, leaves, groups, places, ordered) == PS_OK;
    ps_chunk_description *described = room(groups * (int64_t)sizeof *described);
    for (int64_t leaf = 0; found && leaf < leaves; leaf++) {
        if (ordered[leaf] > 1) abort();
        if (pystachio_describe_chunks(bytes, length, places + leaf * groups, groups, described) != PS_OK) abort();
        for (int64_t group = 0; group < groups; group++) {
            const ps_chunk_description *chunk = &described[group];
            if (chunk->physical_type < 0 || chunk->physical_type > 7) abort();
            if (!lies_within(chunk->low, length) || !lies_within(chunk->high, length)) abort();
            if (!lies_within(chunk->legacy_low, length) || !lies_within(chunk->legacy_high, length)) abort();
        }
    }
    /* No place leads outside. */
    if (!leaves) groups = 0;
    for (int64_t group = 0; group < groups; group++) places[group] = (int64_t)draw((uint64_t)length + 3) - 1;
    (void)pystachio_describe_chunks(bytes, length, places, groups, described);
    free(places);
    free(ordered);
    free(described);
    return found;
}

static int run(const seed *from, int mutated) {
    int64_t length = mutated && draw(4) == 0 ? (int64_t)draw((uint64_t)from->length) : from->length;
    uint8_t *bytes = room(length);
    memcpy(bytes, from->bytes, (size_t)length);
    static const uint8_t telling[] = {0x00, 0x0c, 0x19, 0x1b, 0x1c, 0x2c, 0x7f, 0x80, 0xf9, 0xfc, 0xff};
    for (uint64_t changes = mutated ? 1 + draw(6) : 0; changes && length; changes--)
        bytes[draw((uint64_t)length)] = draw(2) ? telling[draw(sizeof telling)] : (uint8_t)draw(256);
    int64_t leaves = mutated && draw(16) == 0 ? (int64_t)draw(40) : from->leaves;
    int64_t groups = mutated && draw(16) == 0 ? (int64_t)draw(40) : from->groups;
    int found = accepted(bytes, length, leaves, groups);
    free(bytes);
    return found;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    FILE *file = fopen(arguments[1], "rb");
    if (!file) return 2;
    size_t seeds = 0;
    seed *all = NULL;
    int64_t numbers[3];
    while (fread(numbers, sizeof numbers, 1, file) == 1) {
        all = realloc(all, (seeds + 1) * sizeof *all);
        if (!all) return 2;
        all[seeds] = (seed){numbers[0], numbers[1], numbers[2], room(numbers[0])};
        if (fread(all[seeds].bytes, 1, (size_t)numbers[0], file) != (size_t)numbers[0]) return 2;
        if (!run(&all[seeds], 0)) return 3;
        seeds++;
    }
    fclose(file);
    if (!seeds) return 2;
    state = strtoull(arguments[3], NULL, 10) * 2654435761u + 88172645463325252u;
    uint64_t mutations = strtoull(arguments[2], NULL, 10), found = 0;
    for (uint64_t i = 0; i < mutations; i++) found += (uint64_t)run(&all[draw(seeds)], 1);
    printf("%llu\n", (unsigned long long)found);
    for (size_t i = 0; i < seeds; i++) free(all[i].bytes);
    free(all);
    return 0;
}
