/* Slots of hash tables: what hash.c and hash_texts.c share. */
#ifndef PYSTACHIO_SLOTS_H
#define PYSTACHIO_SLOTS_H

#include <stdint.h>

#ifndef PS_INLINE
#include "clones.h"
#endif

#define BLOCK 64
#define HOT_SLOTS 1024 /* these fit the first-level cache */

PS_INLINE void prefetch(const void *at) {
#if defined(__GNUC__)
    __builtin_prefetch(at);
#else
    (void)at;
#endif
}

/* A hash >> this is the home slot. */
PS_INLINE int home_shift(int64_t capacity) {
    int bits = 0;
    while ((int64_t)1 << bits < capacity) bits++;
    return 64 - bits;
}

#define ROOMY_SLOTS (1 << 18) /* as in numbering.py */

/* Searches end at a free slot, of which there always are some. Where a home slot is another key's, the processor has
 * guessed wrong, which costs more than a miss of a table that is twice as large, as long as it is not too large. */
PS_INLINE int64_t most_groups(int64_t capacity) { return capacity <= ROOMY_SLOTS ? capacity / 4 : capacity / 2; }

#define FIRST_SLOTS (1 << 13)

/* Capacities of a table that may need `most`. */
PS_INLINE int64_t first_capacity(int64_t most) { return most < FIRST_SLOTS ? most : FIRST_SLOTS; }

/* For a run that follows one of so many groups: the hash has made them about as large as each other. */
PS_INLINE int64_t capacity_after(int64_t groups, int64_t most) {
    int64_t capacity = 4 * BLOCK;
    while (capacity < most && most_groups(capacity) < groups + groups / 8 + 2 * BLOCK) capacity *= 2;
    return capacity < most ? capacity : most;
}

PS_INLINE int64_t next_capacity(int64_t capacity, int64_t most) { return 2 * capacity < most ? 2 * capacity : most; }

PS_INLINE uint64_t hash_of(int64_t key) {
    uint64_t mixed = (uint64_t)key;
    mixed ^= mixed >> 33;
    mixed *= 0xFF51AFD7ED558CCDu;
    mixed ^= mixed >> 32;
    mixed *= 0xC4CEB9FE1A85EC53u;
    return mixed;
}

#endif
