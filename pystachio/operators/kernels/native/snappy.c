/* Snappy's raw format. https://github.com/google/snappy/blob/main/format_description.txt
 *
 * Most elements are short: they are copied with fixed-size moves that may run past their end, as long as the margins
 * below are kept; what they spoil is written again by the next element. Near the ends every byte is checked. */

#include "internal.h"

/* A copy is at most 64 bytes and moves 16 at a time, so it writes at most 15 more. */
enum { OUT_MARGIN = 64 + 16, IN_MARGIN = 1 + 4 + 16 };

PS_INLINE void move8(uint8_t *to, const uint8_t *from) { memcpy(to, from, 8); }

PS_INLINE void move16(uint8_t *to, const uint8_t *from) {
    uint8_t block[16]; /* through a register: the ranges may overlap */
    memcpy(block, from, 16);
    memcpy(to, block, 16);
}

/* Repeats the `offset` bytes before `out`, at most 64 bytes, inside the margin. */
PS_INLINE void copy_inside_margin(uint8_t *out, size_t offset, size_t length) {
    const uint8_t *from = out - offset;
    if (PS_LIKELY(offset >= 16)) {
        move16(out, from);
        if (length > 16) {
            move16(out + 16, from + 16);
            if (length > 32) {
                move16(out + 32, from + 32);
                move16(out + 48, from + 48);
            }
        }
        return;
    }
    if (offset == 8) { /* equal 64-bit numbers: the most frequent short distance in columns */
        uint64_t word = load64(from);
        for (size_t i = 0; i < length; i += 16) {
            memcpy(out + i, &word, 8);
            memcpy(out + i + 8, &word, 8);
        }
        return;
    }
    uint8_t *end = out + length;
    while (offset < 8) { /* each move makes the repeated pattern twice as long */
        uint64_t word = load64(from);
        memcpy(out, &word, 8);
        out += offset;
        offset *= 2;
    }
    for (; out < end; out += 8) move8(out, out - offset);
}

/* The element behind `tag`: its length, and for a copy its offset. False when it is cut off. */
static bool read_element(ps_bytes *in, size_t *length, size_t *offset) {
    uint8_t tag = *in->at++;
    size_t extra = (size_t)(tag & 3);
    *length = (size_t)(tag >> 2) + 1;
    *offset = 0;
    if (extra == 0) {
        if (*length <= 60) return true;
        extra = *length - 60;
        if (bytes_left(*in) < extra) return false;
        *length = 0;
        for (size_t i = 0; i < extra; i++) *length |= (size_t)in->at[i] << (8 * i);
        *length += 1;
    } else if (extra == 1) {
        if (bytes_left(*in) < 1) return false;
        *length = (size_t)((tag >> 2) & 7) + 4;
        *offset = (size_t)(tag >> 5) << 8 | in->at[0];
    } else {
        extra = extra == 2 ? 2 : 4;
        if (bytes_left(*in) < extra) return false;
        *offset = extra == 2 ? load16(in->at) : load32(in->at);
    }
    in->at += extra;
    return true;
}

bool ps_snappy_decompress(const uint8_t *source, size_t in_length, uint8_t *out, size_t out_length) {
    ps_bytes in = {source, source + in_length};
    uint8_t *const start = out;
    uint8_t *const out_end = out + out_length;

    uint64_t claimed = 0;
    for (unsigned shift = 0;; shift += 7) {
        if (in.at == in.end || shift > 28) return false;
        claimed |= (uint64_t)(*in.at & 0x7f) << shift;
        if (*in.at++ < 0x80) break;
    }
    if (claimed != out_length) return false;

    while (in.at < in.end) {
        while (in.end - in.at >= IN_MARGIN && out_end - out >= OUT_MARGIN) {
            uint32_t tag = in.at[0];
            size_t length, offset;
            if ((tag & 3) == 0) {
                length = (tag >> 2) + 1;
                if (PS_LIKELY(length <= 16)) {
                    move16(out, in.at + 1);
                    in.at += 1 + length;
                    out += length;
                    continue;
                }
                break; /* a longer literal: its bounds are checked below */
            }
            if ((tag & 3) == 1) {
                length = ((tag >> 2) & 7) + 4;
                offset = (size_t)(tag >> 5) << 8 | in.at[1];
                in.at += 2;
            } else {
                length = (tag >> 2) + 1;
                offset = (tag & 1) ? load32(in.at + 1) : load16(in.at + 1);
                in.at += (tag & 1) ? 5 : 3;
            }
            if (PS_UNLIKELY(offset - 1 >= (size_t)(out - start))) return false;
            copy_inside_margin(out, offset, length);
            out += length;
        }
        if (in.at == in.end) break;
        size_t length, offset;
        bool is_literal = (*in.at & 3) == 0;
        if (!read_element(&in, &length, &offset) || length > (size_t)(out_end - out)) return false;
        if (is_literal) {
            if (length > bytes_left(in)) return false;
            memcpy(out, in.at, length);
            in.at += length;
        } else {
            if (offset - 1 >= (size_t)(out - start)) return false;
            for (size_t i = 0; i < length; i++) out[i] = out[i - offset];
        }
        out += length;
    }
    return out == out_end;
}
