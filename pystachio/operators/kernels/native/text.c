/* Searches in strings: 16 places at a time by the first and the last byte of what is sought (Mula, "SIMD-friendly
 * algorithms for substring searching"). */
#include "text.h"

#include "internal.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#define STEP 16
#endif

typedef struct {
    const uint8_t *bytes;
    int64_t length;
} ps_piece;

PS_INLINE int is_piece(const uint8_t *at, ps_piece piece) {
    return piece.length == 0 || memcmp(at, piece.bytes, (size_t)piece.length) == 0;
}

/* The first place in data[from..last] where the piece begins, -1 for none. Reads up to `end`. */
PS_INLINE int64_t find_piece(const uint8_t *data, int64_t from, int64_t last, int64_t end, ps_piece piece) {
    int64_t tail = piece.length - 1;
#if defined(STEP)
    __m128i head_byte = _mm_set1_epi8((char)piece.bytes[0]), tail_byte = _mm_set1_epi8((char)piece.bytes[tail]);
    for (; from <= last && end - from >= tail + STEP; from += STEP) {
        __m128i heads = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(data + from)), head_byte);
        __m128i tails = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(data + from + tail)), tail_byte);
        uint32_t places = (uint32_t)_mm_movemask_epi8(_mm_and_si128(heads, tails));
        if (last - from < STEP - 1) places &= ((uint32_t)2 << (last - from)) - 1;
        for (; places; places &= places - 1) {
            int64_t at = from + __builtin_ctz(places);
            if (tail < 2 || memcmp(data + at + 1, piece.bytes + 1, (size_t)(tail - 1)) == 0) return at;
        }
    }
#else
    (void)end;
#endif
    for (; from <= last; from++)
        if (data[from] == piece.bytes[0] && data[from + tail] == piece.bytes[tail] && is_piece(data + from, piece))
            return from;
    return -1;
}

static ps_piece piece_at(const uint8_t *pieces, const int64_t *ends, int64_t i) {
    int64_t begin = i ? ends[i - 1] : 0;
    return (ps_piece){pieces + begin, ends[i] - begin};
}

int32_t pystachio_match_pieces(const int64_t *offsets, const uint8_t *data, int64_t data_bytes, int64_t rows,
                               const uint8_t *pieces, const int64_t *ends, int64_t count, uint8_t *matches) {
    ps_piece prefix = piece_at(pieces, ends, 0), suffix = piece_at(pieces, ends, count - 1);
    for (int64_t row = 0; row < rows; row++) {
        int64_t from = offsets[row], stop = offsets[row + 1];
        if (PS_UNLIKELY(from < 0 || stop < from || stop > data_bytes)) return PS_CORRUPT;
        matches[row] = 0;
        if (stop - from < prefix.length + suffix.length || !is_piece(data + from, prefix) ||
            !is_piece(data + stop - suffix.length, suffix))
            continue;
        from += prefix.length;
        stop -= suffix.length;
        int64_t i = 1;
        for (; i < count - 1; i++) {
            ps_piece piece = piece_at(pieces, ends, i);
            from = find_piece(data, from, stop - piece.length, data_bytes, piece);
            if (from < 0) break;
            from += piece.length;
        }
        matches[row] = i >= count - 1;
    }
    return PS_OK;
}

PS_CLONES static int is_ascii(const uint8_t *data, int64_t bytes) {
    uint8_t all = 0;
    for (int64_t i = 0; i < bytes; i++) all |= data[i];
    return all < 0x80;
}

PS_CLONES static int32_t match_beginnings(const int64_t *restrict offsets, const uint8_t *restrict data,
                                          int64_t data_bytes, int64_t rows, int32_t most,
                                          const uint64_t *restrict texts, int32_t count, uint8_t *restrict matches) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t from = offsets[row], stop = offsets[row + 1];
        if (PS_UNLIKELY(from < 0 || stop < from || stop > data_bytes)) return PS_CORRUPT;
        uint64_t length = (uint64_t)(stop - from < most ? stop - from : most), text = 0;
        if (data_bytes - from >= 8)
            memcpy(&text, data + from, 8);
        else
            memcpy(&text, data + from, (size_t)length);
        text = (text & (((uint64_t)1 << 8 * length) - 1)) | length << 56;
        uint64_t found = 0;
        for (int32_t i = 0; i < count; i += 8)
            for (int32_t j = 0; j < 8; j++) found |= texts[i + j] == text;
        matches[row] = (uint8_t)found;
    }
    return PS_OK;
}

int32_t pystachio_match_beginnings(const int64_t *offsets, const uint8_t *data, int64_t data_bytes, int64_t rows,
                                   int32_t most, const uint64_t *texts, int32_t count, uint8_t *matches) {
    return match_beginnings(offsets, data, data_bytes, rows, most, texts, count, matches);
}

int32_t pystachio_text_lengths(const int64_t *offsets, const uint8_t *data, int64_t data_bytes, int64_t rows,
                               int32_t *lengths) {
    enum { BLOCK = 256 };
    for (int64_t first = 0; first < rows; first += BLOCK) {
        int64_t last = first + BLOCK < rows ? first + BLOCK : rows;
        for (int64_t row = first; row < last; row++) {
            int64_t bytes = offsets[row + 1] - offsets[row];
            if (PS_UNLIKELY(offsets[row] < 0 || bytes < 0 || offsets[row + 1] > data_bytes)) return PS_CORRUPT;
            if (PS_UNLIKELY(bytes > INT32_MAX)) return PS_NOT_HANDLED;
            lengths[row] = (int32_t)bytes;
        }
        if (is_ascii(data + offsets[first], offsets[last] - offsets[first])) continue;
        for (int64_t row = first; row < last; row++) {
            int32_t characters = 0;
            for (int64_t i = offsets[row]; i < offsets[row + 1]; i++) characters += (data[i] & 0xC0) != 0x80;
            lengths[row] = characters;
        }
    }
    return PS_OK;
}
