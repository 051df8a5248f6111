/* Which loops may be used that are written with AVX2 or AVX-512 instructions, where compilers find none that are as
 * fast: they are there where PS_HAS_WIDE, and run where the processor has them. */
#ifndef PYSTACHIO_WIDE_H
#define PYSTACHIO_WIDE_H

#include <stdint.h>

#include "decode.h"

#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>
#define PS_HAS_WIDE 1
#else
#define PS_HAS_WIDE 0
#endif

enum { PS_PLAIN = 0, PS_AVX2 = 1, PS_AVX512 = 2 };

/* What the loops use: the most that the processor has, or less when asked for. */
extern int32_t ps_instructions;

static inline int has_avx2(void) { return ps_instructions >= PS_AVX2; }
static inline int has_avx512(void) { return ps_instructions >= PS_AVX512; }

PS_EXPORT int32_t pystachio_instructions(void);

/* Use `most` of them, or what the processor has if that is less. Returns which. For tests, while nothing else runs. */
PS_EXPORT int32_t pystachio_use_instructions(int32_t most);

#endif
