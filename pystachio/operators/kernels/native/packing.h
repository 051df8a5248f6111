/* Integers in as many bits as their block needs: frame of reference and bit packing, in the interleaved order of
 * "The FastLanes Compression Layout" (Afroozeh and Boncz, VLDB 2023), which any vector unit and any GPU unpacks at the
 * speed of memory.
 *
 * A block has 1024 values of `8 * width` bits each, the last one as many as are left. Its values less their lowest one,
 * divided by what divides them all, take 0 to `8 * width` bits each. Rows of `128 / width` neighbouring values are
 * packed beside each other: value `i` of a row is lane `i`, and lane `i` of each row follows upon lane `i` of the row
 * before. So a block takes 128 bytes for each bit.
 *
 * What is packed: the lowest value of each block (int64), its bits (uint8, padded to a multiple of 8 bytes), and the
 * blocks. Numbers are little-endian. */
#ifndef PYSTACHIO_PACKING_H
#define PYSTACHIO_PACKING_H

#include "decode.h"

/* What divides the difference of any two of the `rows` signed integers of `width` bytes that are valid (NULL: all);
 * 0 where there is no difference. */
PS_EXPORT uint64_t pystachio_common_divisor(const void *values, int32_t width, int64_t rows, const uint8_t *validity);

/* Packs them; what is not valid becomes the lowest value of its block. The bytes that `out` took, or -1 when it would
 * take more than `capacity`. */
PS_EXPORT int64_t pystachio_pack(const void *values, int32_t width, int64_t rows, const uint8_t *validity,
                                 uint64_t divisor, uint8_t *out, int64_t capacity);

/* The other way, with the lowest and the highest value in `ends`. PS_CORRUPT where `nbytes` are not what `rows`
 * integers of `width` bytes may be packed as. */
int32_t ps_unpack(const uint8_t *packed, int64_t nbytes, int32_t width, int64_t rows, uint64_t divisor, void *out,
                  int64_t ends[2]);

#endif
