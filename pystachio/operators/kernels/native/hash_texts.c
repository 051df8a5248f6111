/* Hash tables over byte strings. */
#include "hash.h"

#include <string.h>

#include "internal.h"
#include "slots.h"
#include "views.h"

#define AHEAD 16

#define FIRST_FACTOR 0x9E3779B97F4A7C15u
#define SECOND_FACTOR 0xD6E8FEB86659FD93u

/* The product's halves, folded (after wyhash by Wang Yi). */
PS_INLINE uint64_t folded(uint64_t left, uint64_t right) {
#if defined(__SIZEOF_INT128__)
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)left * right;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t mixed = (left ^ (right >> 32)) * FIRST_FACTOR + right;
    mixed ^= mixed >> 29;
    mixed *= SECOND_FACTOR;
    return mixed ^ (mixed >> 32);
#endif
}

PS_INLINE uint64_t hash_text(const uint8_t *text, size_t length) {
    uint64_t hash = length * SECOND_FACTOR;
    const uint8_t *end = text + length;
    if (length >= 16) {
        for (; end - text > 16; text += 16) hash = folded(load64(text) ^ FIRST_FACTOR, load64(text + 8) ^ hash);
        return folded(folded(load64(end - 16) ^ FIRST_FACTOR, load64(end - 8) ^ hash), SECOND_FACTOR);
    }
    uint64_t low = 0, high = 0;
    if (length >= 8) {
        low = load64(text);
        high = load64(end - 8);
    } else if (length >= 4) {
        low = load32(text);
        high = load32(end - 4);
    } else if (length) {
        low = (uint64_t)text[0] | (uint64_t)text[length >> 1] << 8 | (uint64_t)end[-1] << 16;
    }
    return folded(folded(low ^ FIRST_FACTOR, high ^ hash), SECOND_FACTOR);
}

void pystachio_hash_texts(const int64_t *offsets, const uint8_t *data, int64_t rows, uint64_t *hashes) {
    for (int64_t i = 0; i < rows; i++)
        hashes[i] = hash_text(data + offsets[i], (size_t)(offsets[i + 1] - offsets[i]));
}

void pystachio_hash_views(const ps_view *views, int64_t rows, uint64_t *hashes) {
    for (int64_t i = 0; i < rows; i++) {
        if (i + AHEAD < rows) prefetch((const void *)(uintptr_t)views[i + AHEAD].address);
        hashes[i] = hash_text((const uint8_t *)(uintptr_t)views[i].address, (size_t)views[i].length);
    }
}

void pystachio_grow_texts(const uint64_t *slots, int64_t capacity, uint64_t *larger, int64_t larger_capacity) {
    uint64_t mask = (uint64_t)larger_capacity - 1;
    int shift = home_shift(larger_capacity);
    for (int64_t i = 0; i < capacity; i++) {
        if (!slots[i]) continue;
        uint64_t at = slots[i] >> shift;
        while (larger[at]) at = (at + 1) & mask;
        larger[at] = slots[i];
    }
}

PS_INLINE uint64_t slot_of(uint64_t hash, int64_t number) { return (hash >> 32 << 32) | (uint32_t)number; }

void pystachio_enter_texts(const int64_t *offsets, const uint8_t *data, int64_t rows, int64_t number, uint64_t *slots,
                           int64_t capacity) {
    uint64_t mask = (uint64_t)capacity - 1;
    int shift = home_shift(capacity);
    for (int64_t i = 0; i < rows; i++) {
        uint64_t hash = hash_text(data + offsets[i], (size_t)(offsets[i + 1] - offsets[i])), at = hash >> shift;
        while (slots[at]) at = (at + 1) & mask;
        slots[at] = slot_of(hash, number + i);
    }
}

PS_INLINE int same_tag(uint64_t slot, uint64_t hash) { return (slot ^ hash) >> 32 == 0; }

PS_INLINE int64_t number_in(uint64_t slot) { return (int64_t)(uint32_t)slot - 1; }

PS_INLINE int may_be(uint64_t slot, uint64_t hash) { return slot && same_tag(slot, hash); }

/* `step` is how far the places of two keys are apart. */
PS_INLINE int holds(const int64_t *places, int step, const uint8_t *data, uint64_t slot, const uint8_t *text,
                    size_t length) {
    const int64_t *place = places + step * number_in(slot);
    return (size_t)(place[1] - place[0]) == length && memcmp(data + place[0], text, length) == 0;
}

PS_INLINE void fetch(const int64_t *offsets, const uint8_t *data, int64_t rows, uint64_t *hashes, const uint64_t *slots,
                     int64_t capacity, const int64_t *places, int step, const uint8_t *text, int cold) {
    int shift = home_shift(capacity);
    for (int64_t i = 0; i < rows; i++) {
        hashes[i] = hash_text(data + offsets[i], (size_t)(offsets[i + 1] - offsets[i]));
        if (cold) prefetch(&slots[hashes[i] >> shift]);
    }
    if (!cold) return;
    for (int64_t i = 0; i < rows; i++) {
        uint64_t slot = slots[hashes[i] >> shift];
        if (may_be(slot, hashes[i])) prefetch(&places[step * number_in(slot)]);
    }
    for (int64_t i = 0; i < rows; i++) {
        uint64_t slot = slots[hashes[i] >> shift];
        if (may_be(slot, hashes[i])) prefetch(text + places[step * number_in(slot)]);
    }
}

int64_t pystachio_number_texts(const int64_t *offsets, const uint8_t *data, const uint8_t *validity, int64_t row,
                               int64_t rows, uint64_t *slots, int64_t capacity, int64_t *places, int32_t *numbers,
                               int32_t *first, int64_t *groups) {
    uint64_t hashes[BLOCK], mask = (uint64_t)capacity - 1;
    int64_t known = *groups, limit = most_groups(capacity);
    int shift = home_shift(capacity), cold = capacity > HOT_SLOTS;
    while (row < rows && known < limit) {
        int64_t block = rows - row < BLOCK ? rows - row : BLOCK;
        fetch(offsets + row, data, block, hashes, slots, capacity, places, 2, data, cold);
        for (int64_t i = 0; i < block && known < limit; i++, row++) {
            if (validity && !validity[row]) {
                numbers[row] = 0;
                continue;
            }
            const uint8_t *text = data + offsets[row];
            size_t length = (size_t)(offsets[row + 1] - offsets[row]);
            uint64_t at = hashes[i] >> shift;
            for (;;) {
                uint64_t slot = slots[at];
                if (may_be(slot, hashes[i]) && holds(places, 2, data, slot, text, length)) {
                    numbers[row] = (int32_t)number_in(slot);
                    break;
                }
                if (!slot) {
                    slots[at] = slot_of(hashes[i], known + 1);
                    places[2 * known] = offsets[row];
                    places[2 * known + 1] = offsets[row + 1];
                    first[known] = (int32_t)row;
                    numbers[row] = (int32_t)known++;
                    break;
                }
                at = (at + 1) & mask;
            }
        }
    }
    *groups = known;
    return row;
}

void pystachio_find_texts(const int64_t *offsets, const uint8_t *data, const uint8_t *validity, int64_t rows,
                          const uint64_t *slots, int64_t capacity, const int64_t *places, const uint8_t *text,
                          int32_t *found) {
    uint64_t hashes[BLOCK], mask = (uint64_t)capacity - 1;
    int shift = home_shift(capacity), cold = capacity > HOT_SLOTS;
    for (int64_t row = 0; row < rows; row += BLOCK) {
        int64_t block = rows - row < BLOCK ? rows - row : BLOCK;
        fetch(offsets + row, data, block, hashes, slots, capacity, places, 1, text, cold);
        for (int64_t i = 0; i < block; i++) {
            const uint8_t *wanted = data + offsets[row + i];
            size_t length = (size_t)(offsets[row + i + 1] - offsets[row + i]);
            uint64_t at = hashes[i] >> shift, slot = 0;
            if (!validity || validity[row + i])
                while ((slot = slots[at]) &&
                       !(may_be(slot, hashes[i]) && holds(places, 1, text, slot, wanted, length)))
                    at = (at + 1) & mask;
            found[row + i] = (int32_t)(uint32_t)slot;
        }
    }
}
