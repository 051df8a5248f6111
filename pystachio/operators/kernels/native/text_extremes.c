/* See kernels/texts.py. */
#include "text_extremes.h"

#include <stdlib.h>

#include "internal.h"

typedef struct {
    const uint8_t *at;
    int64_t length;
    uint64_t beginning; /* the first eight bytes, as a number that compares as they do; 0 behind the end */
} ps_candidate;

PS_INLINE uint64_t beginning_of(const uint8_t *at, int64_t length) {
    uint64_t bytes = 0;
    memcpy(&bytes, at, length < 8 ? (size_t)length : 8);
    return __builtin_bswap64(bytes);
}

/* Less than, equal to or greater than 0, as memcmp. */
PS_INLINE int compare(const ps_candidate *left, const ps_candidate *right) {
    if (left->beginning != right->beginning) return left->beginning < right->beginning ? -1 : 1;
    int64_t shorter = left->length < right->length ? left->length : right->length;
    int found = shorter > 8 ? memcmp(left->at + 8, right->at + 8, (size_t)shorter - 8) : 0;
    return found ? found : (left->length > right->length) - (left->length < right->length);
}

PS_INLINE int64_t code_at(const void *codes, int32_t width, int64_t row) {
    switch (width) {
    case 1: return ((const int8_t *)codes)[row];
    case 2: return ((const int16_t *)codes)[row];
    case 4: return ((const int32_t *)codes)[row];
    default: return ((const int64_t *)codes)[row];
    }
}

int32_t pystachio_text_extremes(const int64_t *offsets, const uint8_t *data, const ps_view *views, const uint8_t *valid,
                                const void *codes, int32_t width, int64_t rows, int64_t slots, int32_t largest,
                                int64_t *best) {
    if (codes && width != 1 && width != 2 && width != 4 && width != 8) return PS_NOT_HANDLED;
    ps_candidate *found = malloc((size_t)slots * sizeof *found);
    if (!found) return PS_NO_MEMORY;
    for (int64_t slot = 0; slot < slots; slot++) best[slot] = -1;
    for (int64_t row = 0; row < rows; row++) {
        if (valid && !valid[row]) continue;
        int64_t slot = codes ? code_at(codes, width, row) : 0;
        ps_candidate here;
        if (views) {
            here.at = (const uint8_t *)(uintptr_t)views[row].address;
            here.length = views[row].length;
        } else {
            here.at = data + offsets[row];
            here.length = offsets[row + 1] - offsets[row];
        }
        here.beginning = beginning_of(here.at, here.length);
        if (best[slot] >= 0) {
            int order = compare(&here, &found[slot]);
            if (largest ? order <= 0 : order >= 0) continue;
        }
        found[slot] = here;
        best[slot] = row;
    }
    free(found);
    return PS_OK;
}
