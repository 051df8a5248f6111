/* Thrift's compact protocol, as far as page headers and footers need it.
 * https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md */
#ifndef PYSTACHIO_THRIFT_H
#define PYSTACHIO_THRIFT_H

#include "internal.h"

enum {
    THRIFT_STOP,
    THRIFT_TRUE,
    THRIFT_FALSE,
    THRIFT_BYTE,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BINARY,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT,
};

PS_INLINE bool read_varint(ps_bytes *in, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (in->at == in->end) return false;
        uint8_t byte = *in->at++;
        if (shift == 63 && byte > 1) return false; /* beyond 64 bits */
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

PS_INLINE bool read_bool(int type, bool *value) {
    *value = type == THRIFT_TRUE;
    return type == THRIFT_TRUE || type == THRIFT_FALSE;
}

/* The next field of a struct: its number (relative to the last one) and type; THRIFT_STOP ends the struct. */
PS_INLINE bool read_field(ps_bytes *in, int *type, int32_t *field) {
    if (in->at == in->end) return false;
    uint8_t byte = *in->at++;
    *type = byte & 0x0f;
    if (*type == THRIFT_STOP) return true;
    if (byte >> 4) {
        *field += byte >> 4;
        return *field < 1 << 16;
    }
    uint64_t raw;
    if (!read_varint(in, &raw) || raw > UINT16_MAX) return false;
    *field = (int32_t)(raw >> 1) ^ -(int32_t)(raw & 1);
    return true;
}

/* Moves behind a value; `nested` counts how deep it lies, from 1 on. */
bool ps_skip(ps_bytes *in, int type, int nested);

#endif
