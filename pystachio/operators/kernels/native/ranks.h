/* Sets of codes that know the rank of each; see kernels/ranks.py. */
#ifndef PYSTACHIO_RANKS_H
#define PYSTACHIO_RANKS_H

#include "clones.h"
#include "decode.h"

/* Codes 64 * i to 64 * i + 63: which are there, and how many of all smaller ones. */
typedef struct {
    uint64_t codes;
    int64_t before;
} ps_ranks;

/* 1 + the rank of the code, 0 where it is not in the set. */
PS_INLINE int64_t ps_rank(const ps_ranks *ranks, uint64_t code) {
    ps_ranks here = ranks[code >> 6];
    uint64_t bit = (uint64_t)1 << (code & 63);
    int64_t rank = here.before + __builtin_popcountll(here.codes & (bit - 1));
    return here.codes & bit ? rank + 1 : 0;
}

/* Makes `ranks` ([span / 64 + 1], zeroed) of codes in [0, span); the rank of each row goes to `numbers`, a row of each
 * rank to `first`. Returns how many there are, -1 where a code or a width is out of range. */
PS_EXPORT int64_t pystachio_rank_codes(const void *codes, int32_t width, int64_t rows, int64_t span, ps_ranks *ranks,
                                       int32_t *numbers, int32_t *first);

/* The same of codes that never fall, of which equal ones stand together; the first row of each rank goes to `starts`
 * [rows]. Returns -1 for codes that fall, too; `ranks` need not be zeroed. */
PS_EXPORT int64_t pystachio_rank_ascending(const void *codes, int32_t width, int64_t rows, int64_t span,
                                           ps_ranks *ranks, int32_t *starts);

/* 1 + the rank of each code in [0, span], 0 for none; returns a ps_status. */
PS_EXPORT int32_t pystachio_find_ranks(const ps_ranks *ranks, int64_t span, const void *codes, int32_t width,
                                       int64_t rows, int32_t *found);

#endif
