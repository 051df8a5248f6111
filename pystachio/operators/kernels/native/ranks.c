/* See kernels/ranks.py. */
#include "ranks.h"

#include <stdbool.h>
#include <string.h>

#define DEFINE_RANK_CODES(NAME, CODE)                                                                                  \
    PS_CLONES static int64_t NAME(const CODE *restrict codes, int64_t rows, int64_t span, ps_ranks *restrict ranks,    \
                                  int32_t *restrict numbers, int32_t *restrict first) {                                \
        bool outside = false;                                                                                          \
        for (int64_t i = 0; i < rows; i++) outside |= codes[i] < 0 || codes[i] >= span;                                \
        if (outside) return -1;                                                                                        \
        for (int64_t i = 0; i < rows; i++) ranks[codes[i] >> 6].codes |= (uint64_t)1 << (codes[i] & 63);               \
        int64_t known = 0;                                                                                             \
        for (int64_t word = 0; word <= span >> 6; word++) {                                                            \
            ranks[word].before = known;                                                                                \
            known += __builtin_popcountll(ranks[word].codes);                                                          \
        }                                                                                                              \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            int32_t rank = (int32_t)(ps_rank(ranks, (uint64_t)codes[i]) - 1);                                          \
            numbers[i] = rank;                                                                                         \
            first[rank] = (int32_t)i;                                                                                  \
        }                                                                                                              \
        return known;                                                                                                  \
    }

DEFINE_RANK_CODES(rank_codes_4, int32_t)
DEFINE_RANK_CODES(rank_codes_8, int64_t)

int64_t pystachio_rank_codes(const void *codes, int32_t width, int64_t rows, int64_t span, ps_ranks *ranks,
                             int32_t *numbers, int32_t *first) {
    if (width == 4) return rank_codes_4(codes, rows, span, ranks, numbers, first);
    if (width == 8) return rank_codes_8(codes, rows, span, ranks, numbers, first);
    return -1;
}

#define DEFINE_RANK_ASCENDING(NAME, CODE)                                                                              \
    PS_CLONES static int64_t NAME(const CODE *restrict codes, int64_t rows, int64_t span, ps_ranks *restrict ranks,    \
                                  int32_t *restrict starts) {                                                          \
        bool falls = rows > 0 && (codes[0] < 0 || codes[rows - 1] >= span);                                            \
        for (int64_t i = 1; i < rows; i++) falls |= codes[i] < codes[i - 1];                                           \
        if (falls) return -1;                                                                                          \
        memset(ranks, 0, (size_t)((span >> 6) + 1) * sizeof *ranks);                                                   \
        int64_t word = -1, rank = -1;                                                                                  \
        uint64_t bits = 0;                                                                                             \
        int32_t start = 0;                                                                                             \
        CODE last = -1;                                                                                                \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            CODE code = codes[i];                                                                                      \
            bits = (code >> 6 == word ? bits : 0) | (uint64_t)1 << (code & 63);                                        \
            word = code >> 6;                                                                                          \
            ranks[word].codes = bits;                                                                                  \
            bool is_fresh = code != last;                                                                              \
            rank += is_fresh;                                                                                          \
            start = is_fresh ? (int32_t)i : start;                                                                     \
            starts[rank] = start;                                                                                      \
            last = code;                                                                                               \
        }                                                                                                              \
        int64_t known = 0;                                                                                             \
        for (word = 0; word <= span >> 6; word++) {                                                                    \
            ranks[word].before = known;                                                                                \
            known += __builtin_popcountll(ranks[word].codes);                                                          \
        }                                                                                                              \
        return known;                                                                                                  \
    }

DEFINE_RANK_ASCENDING(rank_ascending_4, int32_t)
DEFINE_RANK_ASCENDING(rank_ascending_8, int64_t)

int64_t pystachio_rank_ascending(const void *codes, int32_t width, int64_t rows, int64_t span, ps_ranks *ranks,
                                 int32_t *starts) {
    if (width == 4) return rank_ascending_4(codes, rows, span, ranks, starts);
    if (width == 8) return rank_ascending_8(codes, rows, span, ranks, starts);
    return -1;
}

#define DEFINE_FIND_RANKS(NAME, CODE)                                                                                  \
    PS_CLONES static int32_t NAME(const ps_ranks *restrict ranks, int64_t span, const CODE *restrict codes,            \
                                  int64_t rows, int32_t *restrict found) {                                             \
        bool outside = false;                                                                                          \
        for (int64_t i = 0; i < rows; i++) outside |= codes[i] < 0 || codes[i] > span;                                 \
        if (outside) return PS_CORRUPT;                                                                                \
        for (int64_t i = 0; i < rows; i++) found[i] = (int32_t)ps_rank(ranks, (uint64_t)codes[i]);                     \
        return PS_OK;                                                                                                  \
    }

DEFINE_FIND_RANKS(find_ranks_4, int32_t)
DEFINE_FIND_RANKS(find_ranks_8, int64_t)

int32_t pystachio_find_ranks(const ps_ranks *ranks, int64_t span, const void *codes, int32_t width, int64_t rows,
                             int32_t *found) {
    if (width == 4) return find_ranks_4(ranks, span, codes, rows, found);
    if (width == 8) return find_ranks_8(ranks, span, codes, rows, found);
    return PS_NOT_HANDLED;
}
