/* Feeds mutated segments to the library, in memory exactly as large as promised, so that the address sanitizer sees a
 * byte too many. Prints how many of them were taken for whole.
 *
 * fuzz_segments MUTATIONS RANDOM_SEED */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packing.h"
#include "segments.h"

static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (state >> 11) % below : 0;
}

static uint8_t *room(int64_t size) {
    uint8_t *memory = malloc(size ? (size_t)size : 1);
    if (!memory) abort();
    return memory;
}

/* Whether what was packed, and then perhaps changed, still counts as packed values. Unchanged it must come back. */
static int run(int mutated) {
    int32_t width = 1 << draw(4);
    int64_t rows = 1 + (int64_t)draw(3000), capacity = rows * width + rows + 9000;
    uint8_t *values = room(rows * width), *validity = draw(2) ? room(rows) : NULL, *out = room(capacity);
    uint64_t bits = draw(8 * (uint64_t)width + 1);
    memset(values, 0, (size_t)(rows * width));
    for (int64_t row = 0; row < rows; row++) {
        uint64_t value = draw(0) + (state & (bits == 64 ? ~0ULL : (1ULL << bits) - 1));
        draw(1);
        memcpy(values + row * width, &value, (size_t)width);
        if (validity) validity[row] = (uint8_t)draw(2);
    }
    uint64_t divisor = pystachio_common_divisor(values, width, rows, validity);
    if (!divisor) divisor = 1;
    int64_t nbytes = pystachio_pack(values, width, rows, validity, divisor, out, capacity);
    if (nbytes < 0) abort();
    for (int64_t less = 0; less < 3; less++)
        if (pystachio_pack(values, width, rows, validity, divisor, out, nbytes - less) != (less ? -1 : nbytes)) abort();
    /* Into no byte more than it takes. */
    free(out);
    out = room(nbytes);
    if (pystachio_pack(values, width, rows, validity, divisor, out, nbytes) != nbytes) abort();
    int64_t length = mutated && draw(4) == 0 ? (int64_t)draw((uint64_t)nbytes + 1) : nbytes, asked = rows;
    uint8_t *packed = room(length);
    memcpy(packed, out, (size_t)length);
    if (mutated) {
        int64_t head = (rows + 1023) / 1024 * 9;
        for (uint64_t changes = 1 + draw(4); changes && length; changes--)
            packed[draw((uint64_t)(draw(2) && head < length ? head : length))] = (uint8_t)draw(256);
        if (draw(4) == 0) asked = 1 + (int64_t)draw(4000);
        if (draw(8) == 0) divisor = draw(0) + state;
    }
    uint8_t *found = room(asked * width);
    ps_segment segments[2] = {
        {.bytes = packed, .nbytes = length, .values = found, .rows = asked, .divisor = divisor, .width = width},
        {.bytes = values, .nbytes = rows * width, .rows = rows, .width = draw(2) ? width : 0},
    };
    pystachio_read_segments(segments, 2);
    int is_whole = segments[0].status != PS_CORRUPT;
    if (!mutated) {
        if (!is_whole) abort();
        for (int64_t row = 0; row < rows; row++)
            if ((!validity || validity[row]) && memcmp(found + row * width, values + row * width, (size_t)width)) abort();
    }
    free(values);
    free(validity);
    free(out);
    free(packed);
    free(found);
    return is_whole;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    state = strtoull(arguments[2], NULL, 10) * 2654435761u + 88172645463325252u;
    uint64_t mutations = strtoull(arguments[1], NULL, 10), found = 0;
    for (uint64_t i = 0; i < mutations; i++) {
        run(0);
        found += (uint64_t)run(1);
    }
    printf("%llu\n", (unsigned long long)found);
    return 0;
}
