/* Regular expressions without repeated groups, by backtracking with a bound: leftmost, and of several ways the one that
 * Perl and RE2 prefer. Texts are UTF-8; bytes that are not match nothing but themselves. */
#ifndef PYSTACHIO_REGEX_H
#define PYSTACHIO_REGEX_H

#include "decode.h"

/* `a` and `b` of an instruction; those that match a character fail at others. */
enum {
    PS_RE_TEXT = 0,  /* bytes a to a + b of `texts` */
    PS_RE_SET = 1,   /* a character of set a */
    PS_RE_RUN = 2,   /* as many of set a as there are, at least b (0 or 1); fewer when what follows fails */
    PS_RE_ALL = 3,   /* the same, never fewer: the caller knows that fewer would fail too */
    PS_RE_SPLIT = 4, /* go on at a; at b when that fails */
    PS_RE_JUMP = 5,  /* go on at a */
    PS_RE_SAVE = 6,  /* this is position a of `spans` */
    PS_RE_BEGIN = 7, /* only where the text begins */
    PS_RE_END = 8,   /* only where it ends */
    PS_RE_MATCH = 9,
};

typedef struct {
    int32_t operation;
    int32_t a;
    int32_t b;
} ps_re_instruction;

/* `sets` are 259 bytes each: whether each ASCII character is in it (by byte, 0 for those from 128 on), whether all others
 * are, whether everything but one ASCII character is, and which one that is. A program jumps only forward or over
 * instructions that match something. */
typedef struct {
    const ps_re_instruction *instructions;
    const uint8_t *sets;
    const uint8_t *texts;
    int32_t slots; /* positions that are saved, at most 20: 2 i and 2 i + 1 are where group i begins and ends */
} ps_re_program;

/* spans[row * slots + slot]: from the row's beginning, -1 where the group has no part in the match, all of them without
 * a match. PS_NOT_HANDLED: a text would take too long or is too long; PS_CORRUPT: `offsets` leave `data`. */
PS_EXPORT int32_t pystachio_regex_spans(const ps_re_program *program, const int64_t *offsets, const uint8_t *data,
                                        int64_t data_bytes, int64_t rows, int32_t *spans);

/* Each row with what group 0 spans replaced by `count` parts: a group's text (parts[i] >= 0) or the next piece of
 * `literals`, whose length is -1 - parts[i]. Without `to` only the offsets (rows + 1) are made. */
PS_EXPORT void pystachio_regex_replace(const int64_t *offsets, const uint8_t *data, int64_t rows, const int32_t *spans,
                                       int32_t slots, const int32_t *parts, int32_t count, const uint8_t *literals,
                                       int64_t *to_offsets, uint8_t *to);

#endif
