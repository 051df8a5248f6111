/* Dictionary codes: unpacked in blocks that stay in the first-level cache, looked up from there. */

#include "hybrid.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define PS_AVX2
#include <immintrin.h>
#endif

enum { BLOCK = 1024 };

#ifdef PS_AVX2
static bool has_avx2;

/* How eight values of each width are moved to the lanes of a vector. */
enum { WIDEST = 25 };
static uint8_t picks_of[WIDEST + 1][32];
static uint32_t shifts_of[WIDEST + 1][8];

/* The first byte of the upper four of eight values. */
PS_INLINE unsigned upper_byte(unsigned width) { return 4 * width / 8; }

__attribute__((constructor)) static void make_lanes(void) {
    has_avx2 = __builtin_cpu_supports("avx2");
    for (unsigned width = 1; width <= WIDEST; width++)
        for (unsigned lane = 0; lane < 8; lane++) {
            unsigned bit = lane * width - (lane < 4 ? 0 : 8 * upper_byte(width));
            for (unsigned byte = 0; byte < 4; byte++) picks_of[width][4 * lane + byte] = (uint8_t)(bit / 8 + byte);
            shifts_of[width][lane] = bit % 8;
        }
}

/* Eight values of at most 25 bits at a time: the four bytes around each are moved to a lane, then shifted and masked.
 * Returns how many values it unpacked; the rest is too close to the end of the input for its wide loads. */
__attribute__((target("avx2"))) static int64_t unpack_avx2(ps_bytes in, unsigned width, uint32_t *out, int64_t count,
                                                           uint32_t *highest) {
    const unsigned second = upper_byte(width);
    const __m256i picks = _mm256_loadu_si256((const __m256i *)picks_of[width]);
    const __m256i shifts = _mm256_loadu_si256((const __m256i *)shifts_of[width]);
    const __m256i mask = _mm256_set1_epi32((int)((1u << width) - 1));
    __m256i largest = _mm256_setzero_si256();
    int64_t done = 0;
    for (; done + 8 <= count && bytes_left(in) >= second + 16; done += 8, in.at += width) {
        __m128i lower = _mm_loadu_si128((const __m128i *)in.at);
        __m128i upper = _mm_loadu_si128((const __m128i *)(in.at + second));
        __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1);
        __m256i lanes = _mm256_shuffle_epi8(bytes, picks);
        __m256i values = _mm256_and_si256(_mm256_srlv_epi32(lanes, shifts), mask);
        largest = _mm256_max_epu32(largest, values);
        _mm256_storeu_si256((__m256i *)(out + done), values);
    }
    uint32_t lanes[8];
    _mm256_storeu_si256((__m256i *)lanes, largest);
    for (int lane = 0; lane < 8; lane++) *highest = lanes[lane] > *highest ? lanes[lane] : *highest;
    return done;
}
#endif

/* `count` values of `width` bits, which `in` holds; returns the highest. */
static uint32_t unpack(ps_bytes in, unsigned width, uint32_t *out, int64_t count) {
    uint32_t highest = 0;
    int64_t done = 0;
    if (width == 0) {
        memset(out, 0, (size_t)count * sizeof *out);
        return 0;
    }
#ifdef PS_AVX2
    if (has_avx2 && width <= WIDEST) done = unpack_avx2(in, width, out, count, &highest);
#endif
    const uint64_t mask = (UINT64_C(1) << width) - 1;
    for (; done < count; done++) {
        size_t bit = (size_t)done * width;
        const uint8_t *at = in.at + bit / 8;
        uint64_t word = 0;
        if (in.end - at >= 8) {
            word = load64(at);
        } else {
            memcpy(&word, at, (size_t)(in.end - at));
        }
        out[done] = (uint32_t)(word >> (bit % 8) & mask);
        highest = out[done] > highest ? out[done] : highest;
    }
    return highest;
}

/* A table with what speeds up looking things up in it. */
typedef struct {
    const ps_table *table;
    bool is_small; /* all of it fits `small`: one vector */
    uint8_t small[16];
} lookup;

static lookup prepare(const ps_table *table) {
    lookup made = {.table = table};
#ifdef PS_AVX2
    made.is_small = has_avx2 && table->entries && table->width == 1 && table->length <= 16;
    if (made.is_small) memcpy(made.small, table->entries, (size_t)table->length);
#endif
    return made;
}

#ifdef PS_AVX2
/* Returns how many rows it has done: whole vectors. */
__attribute__((target("avx2"))) static int64_t look_up_small(const lookup *look, const uint32_t *codes, int64_t count,
                                                             uint8_t *to) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)look->small));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packing works in halves */
    int64_t done = 0;
    for (; done + 32 <= count; done += 32) {
        const __m256i *from = (const __m256i *)(codes + done);
        __m256i low = _mm256_packus_epi32(_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1));
        __m256i high = _mm256_packus_epi32(_mm256_loadu_si256(from + 2), _mm256_loadu_si256(from + 3));
        __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
        _mm256_storeu_si256((__m256i *)(to + done), _mm256_shuffle_epi8(table, bytes));
    }
    return done;
}
#endif

#define LOOK_UP(TYPE)                                                                \
    {                                                                                \
        const TYPE *entries = table->entries;                                        \
        TYPE *restrict to = (TYPE *)out + row;                                       \
        for (int64_t i = done; i < count; i++) to[i] = entries[codes[i]];            \
        break;                                                                       \
    }

/* Codes are below the table's length. */
static void look_up(const lookup *look, const uint32_t *restrict codes, int64_t count, void *out, int64_t row) {
    const ps_table *table = look->table;
    int64_t done = 0;
    if (!table->entries) {
        memcpy((uint32_t *)out + row, codes, (size_t)count * sizeof *codes);
        return;
    }
#ifdef PS_AVX2
    if (look->is_small) done = look_up_small(look, codes, count, (uint8_t *)out + row);
#endif
    switch (table->width) {
    case 1:
        LOOK_UP(uint8_t)
    case 2:
        LOOK_UP(uint16_t)
    case 4:
        LOOK_UP(uint32_t)
    default:
        LOOK_UP(uint64_t)
    }
}

#define REPEAT(TYPE)                                                                 \
    {                                                                                \
        TYPE value = ((const TYPE *)entries)[code];                                  \
        TYPE *to = (TYPE *)out + row;                                                \
        for (int64_t i = 0; i < count; i++) to[i] = value;                           \
        break;                                                                       \
    }

static void repeat(const ps_table *table, uint32_t code, int64_t count, void *out, int64_t row) {
    const void *entries = table->entries;
    int32_t width = table->width;
    uint32_t itself = code;
    if (!entries) {
        entries = &itself;
        width = 4;
        code = 0;
    }
    switch (width) {
    case 1:
        REPEAT(uint8_t)
    case 2:
        REPEAT(uint16_t)
    case 4:
        REPEAT(uint32_t)
    default:
        REPEAT(uint64_t)
    }
}

static bool read_packed(ps_bytes in, unsigned width, int64_t count, const lookup *look, void *out, int64_t row) {
    uint32_t codes[BLOCK];
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t length = count - done < BLOCK ? count - done : BLOCK;
        if (unpack(in, width, codes, length) >= look->table->length) return false;
        look_up(look, codes, length, out, row + done);
        if (length == BLOCK) in.at += BLOCK / 8 * width;
    }
    return true;
}

bool ps_read_codes(ps_bytes in, int64_t count, const ps_table *table, void *out) {
    if (count == 0) return true;
    if (in.at == in.end) return false;
    unsigned width = *in.at++;
    if (width > 32) return false;
    const lookup look = prepare(table);
    for (int64_t row = 0; row < count;) {
        ps_run run;
        if (!ps_next_run(&in, width, &run)) return false;
        int64_t length = run.count < count - row ? run.count : count - row;
        if (run.is_packed) {
            if (!read_packed(run.packed, width, length, &look, out, row)) return false;
        } else if (length) {
            if (run.value >= table->length) return false;
            repeat(table, run.value, length, out, row);
        }
        row += length;
    }
    return true;
}
