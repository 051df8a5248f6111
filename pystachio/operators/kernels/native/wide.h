/* Whether loops may be used that are written with AVX-512 instructions, which compilers do not find by themselves: they
 * are there where PS_HAS_WIDE, and run where the processor has them. */
#ifndef PYSTACHIO_WIDE_H
#define PYSTACHIO_WIDE_H

#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>
#define PS_HAS_WIDE 1

static inline int has_wide_loops(void) {
    static int known = -1;
    if (known < 0) {
        __builtin_cpu_init();
        known = __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    }
    return known;
}
#else
#define PS_HAS_WIDE 0
#endif

#endif
