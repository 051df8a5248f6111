/* Gathers and counting sorts: random access, with the addresses known ahead. */
#include "gather.h"

#include "internal.h"
#include "slots.h"

#define AHEAD 16

#define DEFINE_CHECK(NAME, POSITION, UNSIGNED)                                                                         \
    PS_CLONES static int NAME(const POSITION *positions, int64_t count, int64_t length) {                              \
        UNSIGNED largest = 0;                                                                                          \
        for (int64_t i = 0; i < count; i++)                                                                            \
            if ((UNSIGNED)positions[i] > largest) largest = (UNSIGNED)positions[i];                                    \
        return count == 0 || (uint64_t)largest < (uint64_t)length;                                                     \
    }

DEFINE_CHECK(are_inside_4, int32_t, uint32_t)
DEFINE_CHECK(are_inside_8, int64_t, uint64_t)

PS_INLINE int64_t position_at(const void *positions, int32_t width, int64_t i) {
    return width == 4 ? ((const int32_t *)positions)[i] : ((const int64_t *)positions)[i];
}

PS_INLINE int32_t offsets_of(const int64_t *restrict offsets, int64_t length, const void *restrict positions,
                             int32_t width, int64_t count, int64_t *restrict out) {
    int64_t used = 0;
    out[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = position_at(positions, width, i);
        if (PS_UNLIKELY((uint64_t)at >= (uint64_t)length)) return PS_CORRUPT;
        used += offsets[at + 1] - offsets[at];
        out[i + 1] = used;
    }
    return PS_OK;
}

int32_t pystachio_gather_offsets(const int64_t *offsets, int64_t length, const void *positions, int32_t position_width,
                                 int64_t count, int64_t *out) {
    if (position_width == 4) return offsets_of(offsets, length, positions, 4, count, out);
    if (position_width == 8) return offsets_of(offsets, length, positions, 8, count, out);
    return PS_NOT_HANDLED;
}

/* Short strings are moved 16 bytes at a time; what is written behind their end is overwritten by the next one. */
PS_INLINE void bytes_of(const int64_t *offsets, const uint8_t *data, int64_t data_bytes, const void *positions,
                        int32_t width, int64_t count, const int64_t *to_offsets, uint8_t *out, int64_t out_bytes) {
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) prefetch(data + offsets[position_at(positions, width, i + AHEAD)]);
        int64_t from = offsets[position_at(positions, width, i)], to = to_offsets[i], length = to_offsets[i + 1] - to;
        if (PS_LIKELY(length <= 64 && out_bytes - to >= 64 && data_bytes - from >= 64)) {
            memcpy(out + to, data + from, 16);
            if (length > 16) memcpy(out + to + 16, data + from + 16, 16);
            if (length > 32) memcpy(out + to + 32, data + from + 32, 32);
        } else if (length > 0) {
            memcpy(out + to, data + from, (size_t)length);
        }
    }
}

int32_t pystachio_gather_bytes(const int64_t *offsets, const uint8_t *data, int64_t data_bytes, const void *positions,
                               int32_t position_width, int64_t count, const int64_t *to_offsets, uint8_t *out,
                               int64_t out_bytes) {
    if (position_width == 4)
        bytes_of(offsets, data, data_bytes, positions, 4, count, to_offsets, out, out_bytes);
    else if (position_width == 8)
        bytes_of(offsets, data, data_bytes, positions, 8, count, to_offsets, out, out_bytes);
    else
        return PS_NOT_HANDLED;
    return PS_OK;
}

#define DEFINE_RANGES(NAME, GROUP, CHECK)                                                                              \
    static int32_t NAME(const GROUP *restrict row_groups, int64_t rows, int64_t groups, int32_t *restrict offsets,     \
                        int32_t *restrict next, int32_t *restrict order) {                                             \
        if (!CHECK(row_groups, rows, groups)) return PS_CORRUPT;                                                       \
        memset(offsets, 0, (size_t)(groups + 1) * sizeof *offsets);                                                    \
        for (int64_t i = 0; i < rows; i++) offsets[row_groups[i] + 1]++;                                               \
        for (int64_t group = 0; group < groups; group++) {                                                             \
            next[group] = offsets[group];                                                                              \
            offsets[group + 1] += offsets[group];                                                                      \
        }                                                                                                              \
        for (int64_t i = 0; i < rows; i++) order[next[row_groups[i]]++] = (int32_t)i;                                  \
        return PS_OK;                                                                                                  \
    }

DEFINE_RANGES(ranges_4, int32_t, are_inside_4)
DEFINE_RANGES(ranges_8, int64_t, are_inside_8)

int32_t pystachio_ranges(const void *row_groups, int32_t width, int64_t rows, int64_t groups, int32_t *offsets,
                         int32_t *next, int32_t *order) {
    if (rows > INT32_MAX) return PS_NOT_HANDLED;
    if (width == 4) return ranges_4(row_groups, rows, groups, offsets, next, order);
    if (width == 8) return ranges_8(row_groups, rows, groups, offsets, next, order);
    return PS_NOT_HANDLED;
}

#define DEFINE_RANGES_OF(NAME, GROUP, CHECK)                                                                           \
    static int32_t NAME(const int32_t *restrict offsets, int64_t length, const GROUP *restrict groups, int64_t count,  \
                        int32_t *restrict starts, int32_t *restrict counts) {                                          \
        if (!CHECK(groups, count, length - 1)) return PS_CORRUPT;                                                      \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            starts[i] = offsets[groups[i]];                                                                            \
            counts[i] = offsets[groups[i] + 1] - starts[i];                                                            \
        }                                                                                                              \
        return PS_OK;                                                                                                  \
    }

DEFINE_RANGES_OF(ranges_of_4, int32_t, are_inside_4)
DEFINE_RANGES_OF(ranges_of_8, int64_t, are_inside_8)

int32_t pystachio_ranges_of(const int32_t *offsets, int64_t length, const void *groups, int32_t width, int64_t count,
                            int32_t *starts, int32_t *counts) {
    if (width == 4) return ranges_of_4(offsets, length, groups, count, starts, counts);
    if (width == 8) return ranges_of_8(offsets, length, groups, count, starts, counts);
    return PS_NOT_HANDLED;
}

/* Without a branch on whether a code is new: that is as hard to guess as codes are random. */
#define DEFINE_NUMBER_CODES(NAME, CODE, CHECK)                                                                         \
    static int64_t NAME(const CODE *restrict codes, int64_t rows, int64_t span, int32_t *restrict occupants,           \
                        int32_t *restrict numbers, int32_t *restrict first) {                                          \
        if (!CHECK(codes, rows, span)) return -1;                                                                      \
        int32_t known = 0;                                                                                             \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            int32_t occupant = occupants[codes[i]];                                                                    \
            first[known] = (int32_t)i;                                                                                 \
            known += occupant == 0;                                                                                    \
            occupant = occupant ? occupant : known;                                                                    \
            occupants[codes[i]] = occupant;                                                                            \
            numbers[i] = occupant - 1;                                                                                 \
        }                                                                                                              \
        return known;                                                                                                  \
    }

DEFINE_NUMBER_CODES(number_codes_4, int32_t, are_inside_4)
DEFINE_NUMBER_CODES(number_codes_8, int64_t, are_inside_8)

int64_t pystachio_number_codes(const void *codes, int32_t width, int64_t rows, int64_t span, int32_t *occupants,
                               int32_t *numbers, int32_t *first) {
    if (width == 4) return number_codes_4(codes, rows, span, occupants, numbers, first);
    if (width == 8) return number_codes_8(codes, rows, span, occupants, numbers, first);
    return -1;
}

int64_t pystachio_pairs(const int32_t *starts, const int32_t *counts, int64_t rows, const int32_t *order,
                        int64_t order_rows, int64_t limit, ps_cursor *cursor, int32_t *probe, int32_t *build) {
    int64_t row = cursor->row, used = cursor->used, made = 0;
    while (row < rows && made < limit) {
        int64_t start = (int64_t)starts[row] + used, count = (int64_t)counts[row] - used;
        if (count <= 0) {
            row++;
            used = 0;
            continue;
        }
        int64_t taken = count < limit - made ? count : limit - made;
        if (start < 0 || taken > order_rows - start) return -1;
        for (int64_t i = 0; i < taken; i++) {
            probe[made + i] = (int32_t)row;
            build[made + i] = order ? order[start + i] : (int32_t)(start + i);
        }
        made += taken;
        used += taken;
    }
    cursor->row = row;
    cursor->used = used;
    return made;
}
