/* Searches in strings: row i is data[offsets[i]] to data[offsets[i + 1]], of `data_bytes` in all. */
#ifndef PYSTACHIO_TEXT_H
#define PYSTACHIO_TEXT_H

#include "decode.h"

/* matches[row]: whether it is piece 0, then anything with pieces 1 to count - 2 in that order in it, then the last
 * piece. Piece i is pieces[ends[i - 1]] to pieces[ends[i]]; the inner ones are not empty. PS_CORRUPT when `offsets` leave
 * `data`. */
PS_EXPORT int32_t pystachio_match_pieces(const int64_t *offsets, const uint8_t *data, int64_t data_bytes, int64_t rows,
                                         const uint8_t *pieces, const int64_t *ends, int64_t count, uint8_t *matches);

/* matches[row]: whether its first `most` bytes, 7 at the most, of which it may have fewer, are one of the `count` texts,
 * a multiple of 8: each the bytes of a word from the lowest on, their number being the highest byte. PS_CORRUPT when
 * `offsets` leave `data`. */
PS_EXPORT int32_t pystachio_match_beginnings(const int64_t *offsets, const uint8_t *data, int64_t data_bytes,
                                             int64_t rows, int32_t most, const uint64_t *texts, int32_t count,
                                             uint8_t *matches);

/* lengths[row]: its characters. PS_CORRUPT when `offsets` leave `data`; PS_NOT_HANDLED for a text of 2^31 bytes. */
PS_EXPORT int32_t pystachio_text_lengths(const int64_t *offsets, const uint8_t *data, int64_t data_bytes, int64_t rows,
                                         int32_t *lengths);

#endif
