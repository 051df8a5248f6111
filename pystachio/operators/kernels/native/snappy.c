/* Snappy's raw format. https://github.com/google/snappy/blob/main/format_description.txt
 *
 * Most elements are short: they are copied with moves of fixed size that may run past their end, as long as the margins
 * below are kept; what they spoil is written again by the next element. Near the ends nothing runs past. */

#include "internal.h"

/* A round of the fast loop writes a literal of at most 60 bytes or a short one and a copy of at most 64, 16 or 8 bytes
 * at a time; a literal reads 64 bytes behind its tag. */
enum { OUT_MARGIN = 64 + 64 + 16, IN_MARGIN = 1 + 64 + 16 };

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

/* What a copy's tag says: its length, and bits 8 to 10 of its offset, which are in their place. */
#define COPY(TAG) (((TAG)&3) == 1 ? (((TAG) >> 2 & 7) + 4) | (TAG) >> 5 << 8 : ((TAG) >> 2) + 1)
#define COPIES_4(TAG) COPY(TAG), COPY((TAG) + 1), COPY((TAG) + 2), COPY((TAG) + 3)
#define COPIES_16(TAG) COPIES_4(TAG), COPIES_4((TAG) + 4), COPIES_4((TAG) + 8), COPIES_4((TAG) + 12)
#define COPIES_64(TAG) COPIES_16(TAG), COPIES_16((TAG) + 16), COPIES_16((TAG) + 32), COPIES_16((TAG) + 48)
static const uint16_t copies[256] = {COPIES_64(0), COPIES_64(64), COPIES_64(128), COPIES_64(192)};

/* Rising numbers of eight bytes are copies of the number before, with a literal between each two. The last eight bytes
 * stay in a register: reading back what was just written in pieces would wait until it has reached the cache. Starts
 * with a copy of `length` bytes, whose tag is behind `input`; returns the first element's place that is another. */
PS_INLINE const uint8_t *repeat_words(const uint8_t *in, uint8_t **output, size_t length, const uint8_t *in_limit,
                                      const uint8_t *out_limit) {
    uint8_t *out = *output;
    uint64_t last = load64(out - 8);
    for (;;) {
        memcpy(out, &last, 8);
        memcpy(out + 8, &last, 8);
        if (PS_UNLIKELY(length > 16))
            for (size_t at = 16; at < length; at += 8) memcpy(out + at, &last, 8);
        out += length;
        last = last >> (8 * length & 63) | last << (-(8 * length) & 63);
        if (in > in_limit || out > out_limit) break;
        size_t tag = in[0];
        if ((tag & 3) == 0) {
            if (tag > 7 << 2) break;
            uint64_t literal = load64(in + 1);
            memcpy(out, &literal, 8);
            length = (tag >> 2) + 1;
            in += 1 + length;
            out += length;
            last = last >> 1 >> (8 * length - 1) | literal << (64 - 8 * length);
            tag = in[0];
        }
        length = copies[tag] & 0xff;
        if ((tag & 0xe3) == 1 && in[1] == 8) {
            in += 2;
        } else if ((tag & 3) == 2 && load16(in + 1) == 8) {
            in += 3;
        } else {
            break;
        }
    }
    *output = out;
    return in;
}

/* The elements that start inside the margins; stops at a literal that is longer than 60 bytes and at an offset of 32
 * bits. Kinds, lengths and offsets of copies vary from one to the next: what depends on them has no branch that would
 * be predicted wrongly, and one load of eight bytes serves a short literal and the copy behind it. False for a copy of
 * what is not there. */
PS_INLINE bool decompress_inside(ps_bytes *input, uint8_t **output, const uint8_t *start, const uint8_t *out_end) {
    const uint8_t *in = input->at;
    uint8_t *out = *output;
    bool is_sound = true;
    if (input->end - in < IN_MARGIN || out_end - out < OUT_MARGIN) return true;
    const uint8_t *const in_limit = input->end - IN_MARGIN, *const out_limit = out_end - OUT_MARGIN;
    while (in <= in_limit && out <= out_limit) {
        uint64_t bytes = load64(in);
        size_t tag = bytes & 0xff, kind = tag & 3;
        if (kind == 0) {
            size_t length = (tag >> 2) + 1;
            if (length > 60) break;
            in += 1 + length;
            if (length > 4) {
                move(out, in - length, length);
                out += length;
                continue;
            }
            memcpy(out, &(uint64_t){bytes >> 8}, 8);
            out += length;
            bytes >>= 8 + 8 * length;
            tag = bytes & 0xff;
            kind = tag & 3;
            if (kind == 0) continue;
        }
        /* Kind 1 has eight bits of offset behind the tag, kind 2 sixteen, kind 3 (left to the caller) here none. */
        size_t length = copies[tag] & 0xff;
        size_t offset = (bytes >> 8 & (UINT64_C(0xffff00ff0000) >> (16 * kind) & 0xffff)) | (copies[tag] & 0xff00);
        if (PS_UNLIKELY(offset - 1 >= (size_t)(out - start))) {
            is_sound = kind == 3;
            break;
        }
        in += 1 + kind;
        if (PS_UNLIKELY(offset == 8)) {
            in = repeat_words(in, &out, length, in_limit, out_limit);
        } else if (PS_LIKELY(length <= offset)) {
            move(out, out - offset, length);
            out += length;
        } else {
            repeat(out, offset, length);
            out += length;
        }
    }
    input->at = in;
    *output = out;
    return is_sound;
}

PS_CLONES static bool decompress_inside_margins(ps_bytes *input, uint8_t **output, const uint8_t *start,
                                                const uint8_t *out_end) {
    return decompress_inside(input, output, start, out_end);
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
