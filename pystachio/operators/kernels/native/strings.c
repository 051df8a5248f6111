/* Strings: plain pages to offsets and bytes, dictionary codes to the same. */

#include "internal.h"

/* Short strings are moved 16 bytes at a time; what is written behind their end is overwritten by the next one. */
PS_INLINE void copy_text(uint8_t *to, const uint8_t *from, size_t length, size_t to_room, size_t from_room) {
    if (PS_LIKELY(length <= 32 && to_room >= 32 && from_room >= 32)) {
        memcpy(to, from, 16);
        if (length > 16) memcpy(to + 16, from + 16, 16);
    } else {
        memcpy(to, from, length);
    }
}

bool ps_read_strings(ps_bytes in, int64_t count, int64_t *offsets, uint8_t *data, int64_t capacity) {
    int64_t used = offsets[0];
    for (int64_t i = 0; i < count; i++) {
        size_t left = bytes_left(in);
        if (left < 4) return false;
        size_t length = load32(in.at);
        in.at += 4;
        left -= 4;
        if (length > left || (int64_t)length > capacity - used) return false;
        copy_text(data + used, in.at, length, (size_t)(capacity - used), left);
        in.at += length;
        used += (int64_t)length;
        offsets[i + 1] = used;
    }
    return true;
}

int64_t pystachio_text_offsets(const int32_t *codes, const uint8_t *validity, int64_t count,
                               const int64_t *dictionary_offsets, int64_t *offsets) {
    int64_t used = offsets[0];
    for (int64_t i = 0; i < count; i++) {
        if (!validity || validity[i]) used += dictionary_offsets[codes[i] + 1] - dictionary_offsets[codes[i]];
        offsets[i + 1] = used;
    }
    return used;
}

void pystachio_text_gather(const int32_t *codes, int64_t count, const int64_t *dictionary_offsets,
                           const uint8_t *dictionary, int64_t dictionary_bytes, const int64_t *offsets, uint8_t *data,
                           int64_t data_capacity) {
    for (int64_t i = 0; i < count; i++) {
        size_t length = (size_t)(offsets[i + 1] - offsets[i]);
        if (length == 0) continue;
        int64_t from = dictionary_offsets[codes[i]];
        copy_text(data + offsets[i], dictionary + from, length, (size_t)(data_capacity - offsets[i]),
                  (size_t)(dictionary_bytes - from));
    }
}
