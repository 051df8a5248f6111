/* CRC-32 of IEEE 802.3, as in gzip, eight bytes at a time (Kounavis and Berry, "A Systematic Approach to Building High
 * Performance Software-Based CRC Generators", 2005). */

#include "internal.h"

static uint32_t tables[8][256];

__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
        tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++)
            tables[table][byte] = tables[table - 1][byte] >> 8 ^ tables[0][tables[table - 1][byte] & 0xff];
}

uint32_t ps_crc32(uint32_t crc, const uint8_t *bytes, size_t length) {
    crc = ~crc;
    for (; length >= 8; length -= 8, bytes += 8) {
        uint32_t low = load32(bytes) ^ crc, high = load32(bytes + 4);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
              tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^ tables[1][high >> 16 & 0xff] ^
              tables[0][high >> 24];
    }
    for (; length; length--) crc = crc >> 8 ^ tables[0][(crc ^ *bytes++) & 0xff];
    return ~crc;
}
