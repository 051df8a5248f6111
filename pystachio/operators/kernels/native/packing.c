/* Bit packing: see packing.h. */
#include "packing.h"

#include <string.h>

#include "clones.h"

#define BLOCK 1024
#define ROW_WORDS 16 /* of a block: a row of values is 128 bytes, whatever their width */
#define ROW_BYTES (8 * ROW_WORDS)

static const uint8_t nothing[ROW_BYTES]; /* where a block has no bits */

/* Parts of buffers of bytes, or of integers of another width. */
typedef uint64_t ps_word __attribute__((aligned(1), may_alias));

PS_INLINE uint64_t ones(int count) { return count == 64 ? ~0ULL : (1ULL << count) - 1; }

/* `mask` in each lane of `bits`. */
PS_INLINE uint64_t in_lanes(uint64_t mask, int bits) { return mask * (~0ULL / ones(bits)); }

PS_INLINE int bits_of(uint64_t value) { return value == 0 ? 0 : 64 - __builtin_clzll(value); }

/* Where the bits of a row of values are: in the row `start` of the packed block from `shift` on, `here` of them, and the
 * others in the row after it. */
typedef struct {
    int start, shift, here;
} place;

PS_INLINE place place_of(int row, int bits, int used) {
    int at = row * used, shift = at % bits;
    return (place){at / bits, shift, bits - shift < used ? bits - shift : used};
}

PS_CLONES static void pack_block(const ps_word *restrict values, int bits, int used, ps_word *restrict out) {
    memset(out, 0, (size_t)used * ROW_BYTES);
    for (int row = 0; row < bits; row++) {
        place at = place_of(row, bits, used);
        const ps_word *from = values + row * ROW_WORDS;
        ps_word *to = out + at.start * ROW_WORDS;
        uint64_t low = in_lanes(ones(at.here), bits);
        for (int k = 0; k < ROW_WORDS; k++) to[k] |= (from[k] & low) << at.shift;
        if (at.here < used) {
            uint64_t high = in_lanes(ones(used - at.here), bits);
            for (int k = 0; k < ROW_WORDS; k++) to[k + ROW_WORDS] |= (from[k] >> at.here) & high;
        }
    }
}

/* Wide enough for products of words that wrap: those of short ones would be signed. */
typedef uint64_t wider;

/* For signed integers `type`, computed with as `word`, which wraps. */
#define OF_TYPE(type, word)                                                                                           \
    typedef type signed_##type __attribute__((may_alias));                                                            \
    typedef word unsigned_##type __attribute__((may_alias));                                                          \
    typedef word unaligned_##type __attribute__((aligned(1), may_alias));                                             \
                                                                                                                      \
    /* A block of distances, from the lowest value on; the furthest one. */                                           \
    PS_CLONES static word unpack_##type(const void *packed, int used, word divisor, word lowest, void *out) {         \
        enum { BITS = 8 * sizeof(word), LANES = BLOCK / BITS };                                                       \
        const unaligned_##type *from = packed;                                                                        \
        unaligned_##type *to = out;                                                                                   \
        word furthest[LANES] = {0}, mask = (word)ones(used);                                                          \
        for (int row = 0; row < BITS; row++, to += LANES) {                                                           \
            place at = place_of(row, BITS, used);                                                                     \
            const unaligned_##type *first = from + at.start * LANES, *next = first + LANES;                            \
            if (at.here == used)                                                                                      \
                for (int k = 0; k < LANES; k++) {                                                                     \
                    word distance = (word)(first[k] >> at.shift) & mask;                                              \
                    furthest[k] = distance > furthest[k] ? distance : furthest[k];                                    \
                    to[k] = (word)((wider)distance * divisor + lowest);                                               \
                }                                                                                                     \
            else                                                                                                      \
                for (int k = 0; k < LANES; k++) {                                                                     \
                    word distance = ((word)(first[k] >> at.shift) | (word)((uint64_t)next[k] << at.here)) & mask;     \
                    furthest[k] = distance > furthest[k] ? distance : furthest[k];                                    \
                    to[k] = (word)((wider)distance * divisor + lowest);                                               \
                }                                                                                                     \
        }                                                                                                             \
        word found = 0;                                                                                               \
        for (int k = 0; k < LANES; k++) found = furthest[k] > found ? furthest[k] : found;                            \
        return found;                                                                                                 \
    }                                                                                                                 \
                                                                                                                      \
    /* The distances from the lowest valid value, by `divisor`; how many bits they take. */                           \
    PS_CLONES static int distances_##type(const void *block, int rows, const uint8_t *validity, uint64_t divisor,     \
                                          void *distances, int64_t *reference) {                                      \
        const signed_##type *values = block;                                                                          \
        unsigned_##type *out = distances;                                                                             \
        type low = 0, high = 0;                                                                                       \
        int first = 0;                                                                                                \
        while (validity != NULL && first < rows && !validity[first]) first++;                                         \
        if (first < rows) low = high = values[first];                                                                 \
        for (int i = first; i < rows; i++) {                                                                          \
            type value = validity == NULL || validity[i] ? values[i] : low;                                           \
            low = value < low ? value : low;                                                                          \
            high = value > high ? value : high;                                                                       \
        }                                                                                                             \
        word span = (word)((word)high - (word)low);                                                                   \
        for (int i = 0; i < rows; i++) out[i] = (word)((word)values[i] - (word)low);                                  \
        if (validity != NULL)                                                                                         \
            for (int i = 0; i < rows; i++) out[i] = validity[i] ? out[i] : 0;                                         \
        if (divisor > 1)                                                                                              \
            for (int i = 0; i < rows; i++) out[i] = (word)(out[i] / divisor);                                         \
        memset(out + rows, 0, (size_t)(BLOCK - rows) * sizeof(type));                                                 \
        *reference = low;                                                                                             \
        return bits_of(span / divisor);                                                                               \
    }                                                                                                                 \
                                                                                                                      \
    static uint64_t divisor_of_##type(const void *all, int64_t rows, const uint8_t *validity) {                       \
        const signed_##type *values = all;                                                                            \
        int64_t row = 0;                                                                                              \
        while (validity != NULL && row < rows && !validity[row]) row++;                                               \
        if (row == rows) return 0;                                                                                    \
        type first = values[row];                                                                                     \
        uint64_t divisor = 0;                                                                                         \
        for (; row < rows && divisor != 1; row++) {                                                                   \
            if (validity != NULL && !validity[row]) continue;                                                         \
            type value = values[row];                                                                                 \
            uint64_t rest = value < first ? (word)((word)first - (word)value) : (word)((word)value - (word)first);    \
            while (rest != 0) {                                                                                       \
                uint64_t next = divisor % rest;                                                                       \
                divisor = rest;                                                                                       \
                rest = next;                                                                                          \
            }                                                                                                         \
        }                                                                                                             \
        return divisor;                                                                                               \
    }

OF_TYPE(int8_t, uint8_t)
OF_TYPE(int16_t, uint16_t)
OF_TYPE(int32_t, uint32_t)
OF_TYPE(int64_t, uint64_t)

static int64_t head_bytes(int64_t blocks) { return 8 * blocks + (blocks + 7) / 8 * 8; }

uint64_t pystachio_common_divisor(const void *values, int32_t width, int64_t rows, const uint8_t *validity) {
    switch (width) {
    case 1: return divisor_of_int8_t(values, rows, validity);
    case 2: return divisor_of_int16_t(values, rows, validity);
    case 4: return divisor_of_int32_t(values, rows, validity);
    default: return divisor_of_int64_t(values, rows, validity);
    }
}

static int distances(const void *block, int32_t width, int rows, const uint8_t *validity, uint64_t divisor, void *out,
                     int64_t *reference) {
    switch (width) {
    case 1: return distances_int8_t(block, rows, validity, divisor, out, reference);
    case 2: return distances_int16_t(block, rows, validity, divisor, out, reference);
    case 4: return distances_int32_t(block, rows, validity, divisor, out, reference);
    default: return distances_int64_t(block, rows, validity, divisor, out, reference);
    }
}

static uint64_t unpack(const uint8_t *packed, int32_t width, int used, uint64_t divisor, int64_t lowest, void *out) {
    switch (width) {
    case 1: return unpack_int8_t(packed, used, (uint8_t)divisor, (uint8_t)lowest, out);
    case 2: return unpack_int16_t(packed, used, (uint16_t)divisor, (uint16_t)lowest, out);
    case 4: return unpack_int32_t(packed, used, (uint32_t)divisor, (uint32_t)lowest, out);
    default: return unpack_int64_t(packed, used, divisor, (uint64_t)lowest, out);
    }
}

/* Whether a block has all its values between these ends: then none of them has wrapped. */
static int widen(int64_t ends[2], int32_t width, int64_t lowest, uint64_t furthest, uint64_t divisor) {
    __extension__ typedef unsigned __int128 wide;
    int64_t least = INT64_MIN >> (64 - 8 * width), most = -(least + 1);
    if (lowest < least || lowest > most) return 0;
    wide distance = (wide)furthest * divisor;
    if (distance > (uint64_t)most - (uint64_t)lowest) return 0;
    int64_t highest = (int64_t)((uint64_t)lowest + (uint64_t)distance);
    if (lowest < ends[0]) ends[0] = lowest;
    if (highest > ends[1]) ends[1] = highest;
    return 1;
}

int64_t pystachio_pack(const void *values, int32_t width, int64_t rows, const uint8_t *validity, uint64_t divisor,
                       uint8_t *out, int64_t capacity) {
    int64_t blocks = (rows + BLOCK - 1) / BLOCK, at = head_bytes(blocks);
    if (at > capacity) return -1;
    memset(out, 0, (size_t)at);
    uint64_t distance[BLOCK];
    for (int64_t block = 0; block < blocks; block++) {
        int64_t start = block * BLOCK, reference;
        int count = rows - start < BLOCK ? (int)(rows - start) : BLOCK;
        const uint8_t *from = (const uint8_t *)values + start * width;
        const uint8_t *valid = validity == NULL ? NULL : validity + start;
        int used = distances(from, width, count, valid, divisor, distance, &reference);
        if (at + used * ROW_BYTES > capacity) return -1;
        memcpy(out + 8 * block, &reference, 8);
        out[8 * blocks + block] = (uint8_t)used;
        if (used) pack_block((const ps_word *)distance, 8 * width, used, (ps_word *)(out + at));
        at += used * ROW_BYTES;
    }
    return at;
}

int32_t ps_unpack(const uint8_t *packed, int64_t nbytes, int32_t width, int64_t rows, uint64_t divisor,
                         void *out, int64_t ends[2]) {
    int64_t blocks = (rows + BLOCK - 1) / BLOCK, at = head_bytes(blocks);
    if ((width != 1 && width != 2 && width != 4 && width != 8) || at > nbytes) return PS_CORRUPT;
    ends[0] = INT64_MAX;
    ends[1] = INT64_MIN;
    for (int64_t block = 0; block < blocks; block++) {
        int64_t start = block * BLOCK, reference;
        int used = packed[8 * blocks + block];
        if (used > 8 * width || used * ROW_BYTES > nbytes - at) return PS_CORRUPT;
        memcpy(&reference, packed + 8 * block, 8);
        int count = rows - start < BLOCK ? (int)(rows - start) : BLOCK;
        uint8_t *to = (uint8_t *)out + start * width;
        uint64_t last[BLOCK];
        void *whole = count == BLOCK ? (void *)to : last;
        uint64_t furthest = unpack(used ? packed + at : nothing, width, used, divisor, reference, whole);
        if (!widen(ends, width, reference, furthest, divisor)) return PS_CORRUPT;
        if (whole == last) memcpy(to, last, (size_t)count * width);
        at += used * ROW_BYTES;
    }
    return at == nbytes ? PS_OK : PS_CORRUPT;
}
