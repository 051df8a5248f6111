/* XXH3 of long inputs, as its specification has it, and the range of what it reads, piece by piece. */

#include "checksum.h"

#include <string.h>

#include "bounds.h"
#include "wide.h"

#define STRIPE_BYTES 64
#define LANES 8
#define SECRET_BYTES 192
#define SECRET_STEP 8
#define STRIPES_PER_BLOCK ((SECRET_BYTES - STRIPE_BYTES) / SECRET_STEP)
#define BLOCK_BYTES (STRIPES_PER_BLOCK * STRIPE_BYTES)

/* Read twice while it is in the first-level cache. */
#define PIECE_BYTES (16 * BLOCK_BYTES)

#define PRIME32_1 0x9E3779B1U
#define PRIME32_2 0x85EBCA77U
#define PRIME32_3 0xC2B2AE3DU
#define PRIME64_1 0x9E3779B185EBCA87U
#define PRIME64_2 0xC2B2AE3D27D4EB4FU
#define PRIME64_3 0x165667B19E3779F9U
#define PRIME64_4 0x85EBCA77C2B2AE63U
#define PRIME64_5 0x27D4EB2F165667C5U
#define PRIME_OF_THE_END 0x165667919E3779F9U

static const uint8_t secret[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d,
    0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0,
    0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0,
    0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b,
    0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac,
    0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51,
    0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34,
    0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49,
    0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8,
    0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b,
    0x40, 0x7e,
};

static inline uint64_t word(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* `stripes` adjacent stripes, the first one with the secret from `key` on. */
static void add_stripes(uint64_t sums[LANES], const uint8_t *bytes, const uint8_t *key, int64_t stripes) {
    for (int64_t stripe = 0; stripe < stripes; stripe++, bytes += STRIPE_BYTES, key += SECRET_STEP) {
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t value = word(bytes + 8 * lane), mixed = value ^ word(key + 8 * lane);
            sums[lane ^ 1] += value;
            sums[lane] += (uint64_t)(uint32_t)mixed * (mixed >> 32);
        }
    }
}

static void add_blocks(uint64_t sums[LANES], const uint8_t *bytes, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++) {
        add_stripes(sums, bytes + block * BLOCK_BYTES, secret, STRIPES_PER_BLOCK);
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t mixed = sums[lane] ^ (sums[lane] >> 47) ^ word(secret + SECRET_BYTES - STRIPE_BYTES + 8 * lane);
            sums[lane] = mixed * PRIME32_1;
        }
    }
}

#if PS_HAS_WIDE
#define WIDE_LANES 4

__attribute__((target("avx2"))) static void add_blocks_avx2(uint64_t sums[LANES], const uint8_t *bytes, int64_t blocks) {
    const uint8_t *last_key = secret + SECRET_BYTES - STRIPE_BYTES;
    const __m256i prime = _mm256_set1_epi64x(PRIME32_1);
    __m256i halves[LANES / WIDE_LANES];
    for (int half = 0; half < LANES / WIDE_LANES; half++)
        halves[half] = _mm256_loadu_si256((const __m256i *)(sums + half * WIDE_LANES));
    for (int64_t block = 0; block < blocks; block++, bytes += BLOCK_BYTES) {
        for (int stripe = 0; stripe < STRIPES_PER_BLOCK; stripe++) {
            const __m256i *from = (const __m256i *)(bytes + stripe * STRIPE_BYTES);
            const __m256i *key = (const __m256i *)(secret + stripe * SECRET_STEP);
            for (int half = 0; half < LANES / WIDE_LANES; half++) {
                __m256i value = _mm256_loadu_si256(from + half);
                __m256i mixed = _mm256_xor_si256(value, _mm256_loadu_si256(key + half));
                __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
                __m256i swapped = _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2));
                halves[half] = _mm256_add_epi64(_mm256_add_epi64(halves[half], swapped), product);
            }
        }
        for (int half = 0; half < LANES / WIDE_LANES; half++) {
            __m256i mixed = _mm256_xor_si256(halves[half], _mm256_srli_epi64(halves[half], 47));
            mixed = _mm256_xor_si256(mixed, _mm256_loadu_si256((const __m256i *)last_key + half));
            __m256i low = _mm256_mul_epu32(mixed, prime);
            __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
            halves[half] = _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
        }
    }
    for (int half = 0; half < LANES / WIDE_LANES; half++)
        _mm256_storeu_si256((__m256i *)(sums + half * WIDE_LANES), halves[half]);
}
#endif

static uint64_t product_folded(uint64_t left, uint64_t right) {
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)left * right;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t end(const uint64_t sums[LANES], int64_t nbytes) {
    uint64_t value = (uint64_t)nbytes * PRIME64_1;
    for (int lane = 0; lane < LANES; lane += 2) {
        const uint8_t *key = secret + 11 + 8 * lane;
        value += product_folded(sums[lane] ^ word(key), sums[lane + 1] ^ word(key + 8));
    }
    value = (value ^ (value >> 37)) * PRIME_OF_THE_END;
    return value ^ (value >> 32);
}

static void widen(int64_t ends[2], const uint8_t *values, int32_t width, int64_t nbytes) {
    int64_t found[2];
    if (width == 0 || nbytes == 0) return;
    pystachio_value_range(values, width, nbytes / width, found);
    if (found[0] < ends[0]) ends[0] = found[0];
    if (found[1] > ends[1]) ends[1] = found[1];
}

uint64_t ps_checksum(const uint8_t *bytes, int64_t nbytes, int32_t width, int64_t ends[2]) {
    uint64_t sums[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    int64_t done = 0, in_blocks = (nbytes - 1) / BLOCK_BYTES * BLOCK_BYTES;
    ends[0] = INT64_MAX;
    ends[1] = INT64_MIN;
    while (done < in_blocks) {
        int64_t piece = in_blocks - done < PIECE_BYTES ? in_blocks - done : PIECE_BYTES;
#if PS_HAS_WIDE
        if (has_avx2())
            add_blocks_avx2(sums, bytes + done, piece / BLOCK_BYTES);
        else
#endif
            add_blocks(sums, bytes + done, piece / BLOCK_BYTES);
        widen(ends, bytes + done, width, piece);
        done += piece;
    }
    add_stripes(sums, bytes + done, secret, (nbytes - 1 - done) / STRIPE_BYTES);
    add_stripes(sums, bytes + nbytes - STRIPE_BYTES, secret + SECRET_BYTES - STRIPE_BYTES - 7, 1);
    widen(ends, bytes + done, width, nbytes - done);
    return end(sums, nbytes);
}
