/* Sets of 64-bit integers for the filters of scans; see kernels/key_sets.py. */
#ifndef PYSTACHIO_KEY_SETS_H
#define PYSTACHIO_KEY_SETS_H

#include "decode.h"

#define PS_BLOOM_FIRST 0x9E3779B97F4A7C15u
#define PS_BLOOM_SECOND 0xD6E8FEB86659FD93u

static inline uint64_t ps_bloom_hash(int64_t key) {
    uint64_t mixed = (uint64_t)key * PS_BLOOM_FIRST;
    mixed ^= mixed >> 32;
    return mixed * PS_BLOOM_SECOND;
}

static inline uint64_t ps_bloom_bits(uint64_t hash) {
    return (uint64_t)1 << (hash & 63) | (uint64_t)1 << (hash >> 6 & 63) | (uint64_t)1 << (hash >> 12 & 63);
}

/* Sets bit key - low for each key, a signed integer of `width` bytes; returns a ps_status. */
PS_EXPORT int32_t pystachio_set_bits(const void *keys, int32_t width, int64_t count, int64_t low, uint8_t *bits);

/* found[i]: whether a bit of a value from lows[i] to highs[i] is set; bits are those of `span` values from `low` on. */
PS_EXPORT void pystachio_any_bits(const uint8_t *bits, int64_t low, int64_t span, const int64_t *lows,
                                  const int64_t *highs, int64_t count, uint8_t *found);

/* Sets the keys' bits in 2^(64 - shift) words. */
PS_EXPORT void pystachio_set_bloom(const int64_t *keys, int64_t count, uint64_t *words, int32_t shift);

#endif
