#include "wide.h"

int32_t ps_instructions = PS_PLAIN;

static int32_t of_processor(void) {
#if PS_HAS_WIDE
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("popcnt")) return PS_PLAIN;
    if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return PS_AVX512;
    return PS_AVX2;
#else
    return PS_PLAIN;
#endif
}

__attribute__((constructor)) static void find_instructions(void) { ps_instructions = of_processor(); }

int32_t pystachio_instructions(void) { return ps_instructions; }

int32_t pystachio_use_instructions(int32_t most) {
    int32_t there = of_processor();
    ps_instructions = most < there ? most : there;
    return ps_instructions;
}
