/* Stored values of fixed width to numbers of the asked width, with their range. */

#include "internal.h"

int32_t ps_stored_width(const ps_chunk *chunk) {
    switch (chunk->physical_type) {
    case TYPE_INT32:
    case TYPE_FLOAT:
        return 4;
    case TYPE_INT64:
    case TYPE_DOUBLE:
        return 8;
    case TYPE_FIXED:
        return chunk->type_length;
    default:
        return 0;
    }
}

/* Values that do not fit are cut here; the range tells afterwards. */
#define CONVERSION(NAME, STORED, WANTED, LEAST, MOST)                                          \
    PS_CLONES static void NAME(const uint8_t *restrict in, int64_t count, void *restrict out,  \
                               ps_bounds *bounds) {                                            \
        STORED low = MOST, high = LEAST;                                                       \
        WANTED *values = out;                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                  \
            STORED value;                                                                      \
            memcpy(&value, in + (size_t)i * sizeof value, sizeof value);                       \
            low = value < low ? value : low;                                                   \
            high = value > high ? value : high;                                                \
            values[i] = (WANTED)value;                                                         \
        }                                                                                      \
        bounds->low = low < bounds->low ? low : bounds->low;                                   \
        bounds->high = high > bounds->high ? high : bounds->high;                              \
    }

#define CONVERSIONS(NAME, STORED, LEAST, MOST)                                                 \
    CONVERSION(NAME##_1, STORED, int8_t, LEAST, MOST)                                          \
    CONVERSION(NAME##_2, STORED, int16_t, LEAST, MOST)                                         \
    CONVERSION(NAME##_4, STORED, int32_t, LEAST, MOST)                                         \
    CONVERSION(NAME##_8, STORED, int64_t, LEAST, MOST)

CONVERSIONS(int32_to, int32_t, INT32_MIN, INT32_MAX)
CONVERSIONS(uint32_to, uint32_t, 0, UINT32_MAX)
CONVERSIONS(int64_to, int64_t, INT64_MIN, INT64_MAX)

typedef void conversion(const uint8_t *restrict in, int64_t count, void *restrict out, ps_bounds *bounds);

/* By kind of the stored number and by the binary logarithm of the wanted width. */
enum { FROM_INT32, FROM_UINT32, FROM_INT64 };
static conversion *const conversions[3][4] = {
    {int32_to_1, int32_to_2, int32_to_4, int32_to_8},
    {uint32_to_1, uint32_to_2, uint32_to_4, uint32_to_8},
    {int64_to_1, int64_to_2, int64_to_4, int64_to_8},
};

/* The range of values that are in their place already. */
PS_CLONES static void measure_int64(const int64_t *values, int64_t count, ps_bounds *bounds) {
    int64_t low = bounds->low, high = bounds->high;
    for (int64_t i = 0; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    *bounds = (ps_bounds){low, high};
}

PS_CLONES static void measure_int32(const int32_t *values, int64_t count, ps_bounds *bounds) {
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (int64_t i = 0; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    bounds->low = low < bounds->low ? low : bounds->low;
    bounds->high = high > bounds->high ? high : bounds->high;
}

static int binary_logarithm(int32_t width) { return width == 1 ? 0 : width == 2 ? 1 : width == 4 ? 2 : 3; }

static int check_width(int32_t width, const ps_bounds *bounds) {
    if (width == 8) return PS_OK;
    int64_t limit = INT64_C(1) << (8 * width - 1);
    return bounds->low >= -limit && bounds->high < limit ? PS_OK : PS_TOO_NARROW;
}

static int convert_integers(int kind, int32_t width, const uint8_t *in, int64_t count, void *out, ps_bounds *bounds) {
    if (in != out) {
        conversions[kind][binary_logarithm(width)](in, count, out, bounds);
    } else if (width == 8) {
        measure_int64(out, count, bounds);
    } else {
        measure_int32(out, count, bounds);
    }
    return check_width(width, bounds);
}

/* A big-endian two's complement number of `length` bytes; false when it needs more than 64 bits. */
PS_INLINE bool read_decimal(const uint8_t *in, int32_t length, int64_t *value) {
    uint64_t bits = in[0] & 0x80 ? UINT64_MAX : 0;
    const uint8_t sign = (uint8_t)bits;
    int32_t skipped = length > 8 ? length - 8 : 0;
    for (int32_t i = 0; i < skipped; i++)
        if (in[i] != sign) return false;
    for (int32_t i = skipped; i < length; i++) bits = bits << 8 | in[i];
    *value = (int64_t)bits;
    return (uint8_t)(*value < 0 ? 0xff : 0) == sign;
}

static int convert_decimals(int32_t length, int32_t width, const uint8_t *in, int64_t count, void *out,
                            ps_bounds *bounds) {
    enum { BLOCK = 512 };
    int64_t values[BLOCK];
    for (int64_t done = 0; done < count;) {
        int64_t block = count - done < BLOCK ? count - done : BLOCK;
        for (int64_t i = 0; i < block; i++, in += length)
            if (!read_decimal(in, length, &values[i])) return PS_NOT_HANDLED;
        uint8_t *to = (uint8_t *)out + done * width;
        int status = convert_integers(FROM_INT64, width, (const uint8_t *)values, block, to, bounds);
        if (status != PS_OK) return status;
        done += block;
    }
    return PS_OK;
}

int ps_convert(const ps_chunk *chunk, const ps_fixed *shape, const uint8_t *in, int64_t count, void *out,
               ps_bounds *bounds) {
    if (count == 0) return PS_OK;
    switch (shape->conversion) {
    case PS_SIGNED:
        return convert_integers(chunk->physical_type == TYPE_INT32 ? FROM_INT32 : FROM_INT64, shape->width, in, count,
                                out, bounds);
    case PS_UNSIGNED:
        return convert_integers(FROM_UINT32, shape->width, in, count, out, bounds);
    case PS_DECIMAL:
        return convert_decimals(chunk->type_length, shape->width, in, count, out, bounds);
    default:
        if (in != out) memcpy(out, in, (size_t)count * (size_t)shape->width);
        return PS_OK;
    }
}
