/* Bits to bytes: definition levels and booleans; and values to the rows that have one. */

#include "hybrid.h"

/* Eight bits, one per byte, the lowest first. */
PS_INLINE uint64_t spread_byte(uint8_t byte) {
    uint64_t bits = (byte * UINT64_C(0x0101010101010101)) & UINT64_C(0x8040201008040201);
    return ((bits + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7) & UINT64_C(0x0101010101010101);
}

PS_CLONES void ps_expand_bits(const uint8_t *in, int64_t count, uint8_t *out) {
    int64_t whole = count / 8;
    for (int64_t i = 0; i < whole; i++) {
        uint64_t bytes = spread_byte(in[i]);
        memcpy(out + 8 * i, &bytes, 8);
    }
    for (int64_t i = 8 * whole; i < count; i++) out[i] = in[i / 8] >> (i % 8) & 1;
}

PS_CLONES static int64_t sum_bytes(const uint8_t *bytes, int64_t count) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++) sum += bytes[i];
    return sum;
}

int64_t ps_read_bits(ps_bytes in, int64_t count, uint8_t *out, bool skip_ones) {
    int64_t done = 0, ones = 0;
    while (done < count) {
        ps_run run;
        if (!ps_next_run(&in, 1, &run)) return -1;
        int64_t length = run.count < count - done ? run.count : count - done;
        if (run.is_packed) {
            ps_expand_bits(run.packed.at, length, out + done);
            ones += sum_bytes(out + done, length);
        } else {
            if (run.value > 1) return -1;
            if (skip_ones && run.value == 1 && length == count) return count;
            memset(out + done, (int)run.value, (size_t)length);
            ones += run.value ? length : 0;
        }
        done += length;
    }
    return ones;
}

/* From the last row to the first, so that no value is overwritten before it has moved. A row without a value reads some
 * value at or before its own place and makes nothing of it. */
#define SPREAD(TYPE)                                                                 \
    {                                                                                \
        TYPE *rows = values;                                                         \
        for (int64_t row = count - 1, next = present; row >= 0; row--) {             \
            next -= valid[row];                                                      \
            rows[row] = valid[row] ? rows[next] : 0;                                 \
        }                                                                            \
        break;                                                                       \
    }

void ps_spread(void *values, int32_t width, const uint8_t *valid, int64_t count, int64_t present) {
    switch (width) {
    case 1:
        SPREAD(uint8_t)
    case 2:
        SPREAD(uint16_t)
    case 4:
        SPREAD(uint32_t)
    default:
        SPREAD(uint64_t)
    }
}

void ps_spread_offsets(int64_t *offsets, const uint8_t *valid, int64_t count, int64_t present) {
    for (int64_t row = count - 1; row >= 0; row--) {
        offsets[row + 1] = offsets[present];
        present -= valid[row];
    }
}
