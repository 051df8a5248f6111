/* See kernels/key_sets.py. */
#include "key_sets.h"

int64_t pystachio_set_bits(const int64_t *keys, int64_t count, int64_t low, uint8_t *bits) {
    int64_t fresh = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t at = (uint64_t)keys[i] - (uint64_t)low;
        uint8_t before = bits[at >> 3], bit = (uint8_t)(1 << (at & 7));
        fresh += !(before & bit);
        bits[at >> 3] = before | bit;
    }
    return fresh;
}

void pystachio_set_bloom(const int64_t *keys, int64_t count, uint64_t *words, int32_t shift) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = ps_bloom_hash(keys[i]);
        words[hash >> shift] |= ps_bloom_bits(hash);
    }
}
