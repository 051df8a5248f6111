/* Strings where they lie, as addresses and lengths: rows move without their bytes. Addresses are the engine's own. */
#ifndef PYSTACHIO_VIEWS_H
#define PYSTACHIO_VIEWS_H

#include "decode.h"

typedef struct {
    uint64_t address;
    int64_t length;
} ps_view;

/* The strings at `positions` (NULL: all `count` = `length` of them) of a column as views. Returns the sum of their
 * lengths; -1 when a position is not in [0, length), or for another width than 4 or 8. */
PS_EXPORT int64_t pystachio_view_texts(const int64_t *offsets, const uint8_t *data, int64_t length,
                                       const void *positions, int32_t width, int64_t count, ps_view *out);

/* Offsets in two bytes: that of entry i is bases[i / PS_BLOCK_ENTRIES] + within[i]. */
#define PS_BLOCK_ENTRIES 64

/* As `view_texts`, of a column with such offsets. */
PS_EXPORT int64_t pystachio_view_blocks(const int64_t *bases, const uint16_t *within, const uint8_t *data,
                                        int64_t length, const void *positions, int32_t width, int64_t count,
                                        ps_view *out);

/* The offsets of entries [first, first + count), at least one, less that of `first`, which is returned. */
PS_EXPORT int64_t pystachio_block_offsets(const int64_t *bases, const uint16_t *within, int64_t first, int64_t count,
                                          int64_t *out);

/* The `entries` of `offsets` as such: `within` has room for whole blocks, and what is behind the last entry is 0.
 * Returns 1; 0 where an entry is not in the 64 KiB from its block's first one on. */
PS_EXPORT int32_t pystachio_pack_offsets(const int64_t *offsets, int64_t entries, int64_t *bases, uint16_t *within);

/* `view_texts` for the views at `positions`. */
PS_EXPORT int64_t pystachio_take_views(const ps_view *views, int64_t length, const void *positions, int32_t width,
                                       int64_t count, ps_view *out);

/* The bytes, one string behind the other, with offsets (from 0, [count + 1]); `out` has room for the sum of lengths. */
PS_EXPORT void pystachio_copy_views(const ps_view *views, int64_t count, int64_t *offsets, uint8_t *out);

/* The hash of each, as of other strings (hash.h). */
PS_EXPORT void pystachio_hash_views(const ps_view *views, int64_t rows, uint64_t *hashes);

/* 1 when each row's string equals that of row models[row], or both are not valid (NULL: all are), else 0; -1 when a
 * model is not in [0, count), or for another width than 4 or 8. */
PS_EXPORT int32_t pystachio_same_views(const ps_view *views, const uint8_t *validity, int64_t count, const void *models,
                                       int32_t width);

#endif
