/* See kernels/key_sets.py. */
#include "key_sets.h"

#include <string.h>

#define DEFINE_SET_BITS(NAME, KEY)                                                                                     \
    static void NAME(const KEY *restrict keys, int64_t count, int64_t low, uint8_t *restrict bits) {                   \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            uint64_t at = (uint64_t)(int64_t)keys[i] - (uint64_t)low;                                                  \
            bits[at >> 3] |= (uint8_t)(1 << (at & 7));                                                                 \
        }                                                                                                              \
    }

DEFINE_SET_BITS(set_bits_1, int8_t)
DEFINE_SET_BITS(set_bits_2, int16_t)
DEFINE_SET_BITS(set_bits_4, int32_t)
DEFINE_SET_BITS(set_bits_8, int64_t)

int32_t pystachio_set_bits(const void *keys, int32_t width, int64_t count, int64_t low, uint8_t *bits) {
    switch (width) {
    case 1: set_bits_1(keys, count, low, bits); return PS_OK;
    case 2: set_bits_2(keys, count, low, bits); return PS_OK;
    case 4: set_bits_4(keys, count, low, bits); return PS_OK;
    case 8: set_bits_8(keys, count, low, bits); return PS_OK;
    default: return PS_NOT_HANDLED;
    }
}

static uint8_t is_any_set(const uint8_t *bits, uint64_t first, uint64_t last) {
    uint64_t at = first >> 3, end = last >> 3;
    uint8_t from_first = (uint8_t)(0xFF << (first & 7)), to_last = (uint8_t)(0xFF >> (7 - (last & 7)));
    if (at == end)
        return (bits[at] & from_first & to_last) != 0;
    if ((bits[at] & from_first) || (bits[end] & to_last))
        return 1;
    at++;
    for (; at + 8 <= end; at += 8) {
        uint64_t word;
        memcpy(&word, bits + at, sizeof word);
        if (word)
            return 1;
    }
    for (; at < end; at++)
        if (bits[at])
            return 1;
    return 0;
}

void pystachio_any_bits(const uint8_t *bits, int64_t low, int64_t span, const int64_t *lows, const int64_t *highs,
                        int64_t count, uint8_t *found) {
    int64_t high = low + (span - 1);
    for (int64_t i = 0; i < count; i++) {
        int64_t first = lows[i] < low ? low : lows[i], last = highs[i] > high ? high : highs[i];
        found[i] = first <= last && is_any_set(bits, (uint64_t)first - (uint64_t)low, (uint64_t)last - (uint64_t)low);
    }
}

void pystachio_set_bloom(const int64_t *keys, int64_t count, uint64_t *words, int32_t shift) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = ps_bloom_hash(keys[i]);
        words[hash >> shift] |= ps_bloom_bits(hash);
    }
}
