/* Views of strings: see views.h. */
#include "views.h"

#include "internal.h"
#include "slots.h"

#define AHEAD 16

PS_INLINE int64_t position_at(const void *positions, int32_t width, int64_t i) {
    if (positions == NULL) return i;
    return width == 4 ? ((const int32_t *)positions)[i] : ((const int64_t *)positions)[i];
}

PS_INLINE int64_t view_texts(const int64_t *restrict offsets, const uint8_t *data, int64_t length,
                             const void *restrict positions, int32_t width, int64_t count, ps_view *restrict out) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = position_at(positions, width, i);
        if (PS_UNLIKELY((uint64_t)at >= (uint64_t)length)) return -1;
        out[i].address = (uint64_t)(uintptr_t)data + (uint64_t)offsets[at];
        out[i].length = offsets[at + 1] - offsets[at];
        total += out[i].length;
    }
    return total;
}

int64_t pystachio_view_texts(const int64_t *offsets, const uint8_t *data, int64_t length, const void *positions,
                             int32_t width, int64_t count, ps_view *out) {
    if (positions == NULL) return view_texts(offsets, data, length, NULL, 0, count, out);
    if (width == 4) return view_texts(offsets, data, length, positions, 4, count, out);
    return width == 8 ? view_texts(offsets, data, length, positions, 8, count, out) : -1;
}

PS_INLINE int64_t block_offset(const int64_t *bases, const uint16_t *within, int64_t i) {
    return bases[i / PS_BLOCK_ENTRIES] + within[i];
}

PS_INLINE int64_t view_blocks(const int64_t *restrict bases, const uint16_t *restrict within, const uint8_t *data,
                              int64_t length, const void *restrict positions, int32_t width, int64_t count,
                              ps_view *restrict out) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = position_at(positions, width, i);
        if (PS_UNLIKELY((uint64_t)at >= (uint64_t)length)) return -1;
        int64_t begin = block_offset(bases, within, at);
        out[i].address = (uint64_t)(uintptr_t)data + (uint64_t)begin;
        out[i].length = block_offset(bases, within, at + 1) - begin;
        total += out[i].length;
    }
    return total;
}

int64_t pystachio_view_blocks(const int64_t *bases, const uint16_t *within, const uint8_t *data, int64_t length,
                              const void *positions, int32_t width, int64_t count, ps_view *out) {
    if (positions == NULL) return view_blocks(bases, within, data, length, NULL, 0, count, out);
    if (width == 4) return view_blocks(bases, within, data, length, positions, 4, count, out);
    return width == 8 ? view_blocks(bases, within, data, length, positions, 8, count, out) : -1;
}

int64_t pystachio_block_offsets(const int64_t *restrict bases, const uint16_t *restrict within, int64_t first,
                                int64_t count, int64_t *restrict out) {
    int64_t done = 0, origin = block_offset(bases, within, first);
    while (done < count) {
        int64_t entry = first + done, left = PS_BLOCK_ENTRIES - entry % PS_BLOCK_ENTRIES;
        int64_t base = bases[entry / PS_BLOCK_ENTRIES] - origin;
        if (left > count - done) left = count - done;
        for (int64_t j = 0; j < left; j++) out[done + j] = base + within[entry + j];
        done += left;
    }
    return origin;
}

int32_t pystachio_pack_offsets(const int64_t *restrict offsets, int64_t entries, int64_t *restrict bases,
                               uint16_t *restrict within) {
    for (int64_t block = 0; block * PS_BLOCK_ENTRIES < entries; block++) {
        int64_t first = block * PS_BLOCK_ENTRIES, left = entries - first, base = offsets[first];
        int64_t count = left < PS_BLOCK_ENTRIES ? left : PS_BLOCK_ENTRIES;
        uint64_t all = 0;
        bases[block] = base;
        for (int64_t j = 0; j < count; j++) {
            uint64_t distance = (uint64_t)offsets[first + j] - (uint64_t)base;
            all |= distance;
            within[first + j] = (uint16_t)distance;
        }
        if (all > UINT16_MAX) return 0;
        for (int64_t j = count; j < PS_BLOCK_ENTRIES; j++) within[first + j] = 0;
    }
    return 1;
}

PS_INLINE int64_t take_views(const ps_view *restrict views, int64_t length, const void *restrict positions,
                             int32_t width, int64_t count, ps_view *restrict out) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = position_at(positions, width, i);
        if (PS_UNLIKELY((uint64_t)at >= (uint64_t)length)) return -1;
        out[i] = views[at];
        total += views[at].length;
    }
    return total;
}

int64_t pystachio_take_views(const ps_view *views, int64_t length, const void *positions, int32_t width, int64_t count,
                             ps_view *out) {
    if (width == 4) return take_views(views, length, positions, 4, count, out);
    return width == 8 ? take_views(views, length, positions, 8, count, out) : -1;
}

/* Most strings are short: two moves that overlap, and no call. */
void pystachio_copy_views(const ps_view *views, int64_t count, int64_t *offsets, uint8_t *out) {
    int64_t to = 0;
    offsets[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) prefetch((const void *)(uintptr_t)views[i + AHEAD].address);
        const uint8_t *from = (const uint8_t *)(uintptr_t)views[i].address;
        int64_t length = views[i].length;
        if (length >= 16) {
            if (length <= 64) {
                memcpy(out + to, from, 16);
                if (length > 32) memcpy(out + to + 16, from + 16, 16);
                if (length > 48) memcpy(out + to + 32, from + 32, 16);
                memcpy(out + to + length - 16, from + length - 16, 16);
            } else {
                memcpy(out + to, from, (size_t)length);
            }
        } else if (length >= 8) {
            memcpy(out + to, from, 8);
            memcpy(out + to + length - 8, from + length - 8, 8);
        } else {
            for (int64_t j = 0; j < length; j++) out[to + j] = from[j];
        }
        to += length;
        offsets[i + 1] = to;
    }
}

PS_INLINE void prefetch_text(ps_view view) {
    const uint8_t *text = (const uint8_t *)(uintptr_t)view.address;
    prefetch(text);
    if (view.length > 64) prefetch(text + 64);
}

/* Ends overlap where the length is no multiple of 16. */
PS_INLINE int same_text(const uint8_t *left, const uint8_t *right, int64_t length) {
    if (length < 16) return memcmp(left, right, (size_t)length) == 0;
    uint64_t differing = 0;
    int64_t i = 0;
    for (; i + 16 <= length; i += 16)
        differing |= (load64(left + i) ^ load64(right + i)) | (load64(left + i + 8) ^ load64(right + i + 8));
    i = length - 16;
    differing |= (load64(left + i) ^ load64(right + i)) | (load64(left + i + 8) ^ load64(right + i + 8));
    return differing == 0;
}

PS_INLINE int32_t same_views(const ps_view *views, const uint8_t *validity, int64_t count, const void *models,
                             int32_t width) {
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            int64_t model = position_at(models, width, i + AHEAD);
            if (PS_UNLIKELY((uint64_t)model >= (uint64_t)count)) return -1;
            if (model != i + AHEAD) {
                prefetch_text(views[i + AHEAD]);
                prefetch_text(views[model]);
            }
        }
        int64_t model = position_at(models, width, i);
        if (PS_UNLIKELY((uint64_t)model >= (uint64_t)count)) return -1;
        if (model == i) continue;
        if (validity != NULL) {
            if (validity[i] != validity[model]) return 0;
            if (!validity[i]) continue;
        }
        ps_view mine = views[i], other = views[model];
        if (mine.length != other.length) return 0;
        if (mine.address == other.address || mine.length == 0) continue;
        if (!same_text((const uint8_t *)(uintptr_t)mine.address, (const uint8_t *)(uintptr_t)other.address, mine.length))
            return 0;
    }
    return 1;
}

int32_t pystachio_same_views(const ps_view *views, const uint8_t *validity, int64_t count, const void *models,
                             int32_t width) {
    if (width == 4) return same_views(views, validity, count, models, 4);
    return width == 8 ? same_views(views, validity, count, models, 8) : -1;
}
