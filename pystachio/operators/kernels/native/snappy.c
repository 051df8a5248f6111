/* Snappy's raw format. https://github.com/google/snappy/blob/main/format_description.txt
 *
 * Most elements are short: they are copied with moves of fixed size that may run past their end, as long as the margins
 * below are kept; what they spoil is written again by the next element. Near the ends nothing runs past. */

#include "internal.h"

/* An element in the fast loop is at most 64 bytes, written 16 or 8 at a time; a literal reads 64 bytes behind its
 * tag. */
enum { OUT_MARGIN = 64 + 16, IN_MARGIN = 1 + 64 };

PS_INLINE void move16(uint8_t *to, const uint8_t *from) {
    uint8_t block[16]; /* through a register: the ranges may overlap */
    memcpy(block, from, 16);
    memcpy(to, block, 16);
}

/* At most 64 bytes; those up to `length` come out right unless the ranges overlap in them. */
PS_INLINE void move(uint8_t *to, const uint8_t *from, size_t length) {
    move16(to, from);
    if (length > 16) {
        move16(to + 16, from + 16);
        if (length > 32) {
            move16(to + 32, from + 32);
            move16(to + 48, from + 48);
        }
    }
}

/* Repeats the `offset` bytes before `out` for `length` bytes, which are more, but at most 64. */
PS_INLINE void repeat(uint8_t *out, size_t offset, size_t length) {
    const uint8_t *const end = out + length;
    while (offset < 8) { /* each move makes the repeated pattern twice as long */
        memcpy(out, &(uint64_t){load64(out - offset)}, 8);
        out += offset;
        offset *= 2;
    }
    for (; out < end; out += 8) memcpy(out, &(uint64_t){load64(out - offset)}, 8);
}

/* The elements that start inside the margins; stops at a literal that is longer than 60 bytes and at an offset of 32
 * bits. Kinds, lengths and offsets of copies vary from one to the next: what depends on them has no branch that would
 * be predicted wrongly. False for a copy of what is not there. */
static bool decompress_inside_margins(ps_bytes *input, uint8_t **output, const uint8_t *start, const uint8_t *out_end) {
    const uint8_t *in = input->at;
    uint8_t *out = *output;
    bool is_sound = true;
    while (input->end - in >= IN_MARGIN && out_end - out >= OUT_MARGIN) {
        uint32_t tag = in[0], kind = tag & 3;
        if (kind == 0) {
            size_t length = (tag >> 2) + 1;
            if (length > 60) break;
            move(out, in + 1, length);
            in += 1 + length;
            out += length;
            continue;
        }
        if (kind == 3) break;
        /* Kind 1: three bits of length above 4, eleven of offset; kind 2: six bits of length above 1, 16 of offset. */
        uint32_t is_near = kind & 1;
        size_t length = (tag >> 2 & (63 - 56 * is_near)) + 1 + 3 * is_near;
        size_t offset = (load16(in + 1) & 0xffffu >> (8 * is_near)) | (tag & 0xe0 * is_near) << 3;
        if (PS_UNLIKELY(offset - 1 >= (size_t)(out - start))) {
            is_sound = false;
            break;
        }
        in += 1 + kind;
        if (PS_LIKELY(length <= offset)) {
            move(out, out - offset, length);
        } else {
            repeat(out, offset, length);
        }
        out += length;
    }
    input->at = in;
    *output = out;
    return is_sound;
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

static bool read_preamble(ps_bytes *in, size_t out_length) {
    uint64_t claimed = 0;
    for (unsigned shift = 0;; shift += 7) {
        if (in->at == in->end || shift > 28) return false;
        claimed |= (uint64_t)(*in->at & 0x7f) << shift;
        if (*in->at++ < 0x80) return claimed == out_length;
    }
}

const uint8_t *ps_snappy_stored(const uint8_t *source, size_t in_length, size_t out_length) {
    ps_bytes in = {source, source + in_length};
    size_t length, offset;
    if (!read_preamble(&in, out_length) || in.at == in.end || (*in.at & 3) != 0) return NULL;
    return read_element(&in, &length, &offset) && length == out_length && bytes_left(in) == length ? in.at : NULL;
}

bool ps_snappy_decompress(const uint8_t *source, size_t in_length, uint8_t *out, size_t out_length) {
    ps_bytes in = {source, source + in_length};
    uint8_t *const start = out;
    uint8_t *const out_end = out + out_length;
    if (!read_preamble(&in, out_length)) return false;
    while (in.at < in.end) {
        if (!decompress_inside_margins(&in, &out, start, out_end)) return false;
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
