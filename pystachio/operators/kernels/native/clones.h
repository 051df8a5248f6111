/* PS_CLONES before a function: the compiler makes it once per generation of x86-64 processors, and the loader takes the
 * best that the machine has. Loops in functions that are inlined into it are vectorised accordingly. */
#ifndef PYSTACHIO_CLONES_H
#define PYSTACHIO_CLONES_H

#include <stdint.h> /* says whether this is glibc */

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define PS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PS_CLONES
#endif

#define PS_INLINE static inline __attribute__((always_inline))

#endif
