/* Memory that a thread uses again from chunk to chunk: a fresh page of memory costs more than decoding into it. */

#include <pthread.h>
#include <stdlib.h>

#include "internal.h"

/* A page is seldom above a megabyte; a block above this is not kept. */
enum { MOST_KEPT = 16 << 20 };

typedef struct {
    void *block[SCRATCH_USES];
    size_t size[SCRATCH_USES];
} scratch;

static pthread_key_t key;
static bool has_key;

static void drop(void *value) {
    scratch *own = value;
    for (int use = 0; use < SCRATCH_USES; use++) free(own->block[use]);
    free(own);
}

__attribute__((constructor)) static void make_key(void) { has_key = pthread_key_create(&key, drop) == 0; }

static scratch *own_scratch(void) {
    if (!has_key) return NULL;
    scratch *own = pthread_getspecific(key);
    if (!own) {
        own = calloc(1, sizeof *own);
        if (own && pthread_setspecific(key, own) != 0) {
            free(own);
            own = NULL;
        }
    }
    return own;
}

void *ps_scratch(int use, size_t size) {
    scratch *own = own_scratch();
    if (!own) return NULL;
#ifdef PS_SANITISED
    const bool is_exact = true; /* so that the sanitiser sees what goes beyond it */
#else
    const bool is_exact = false;
#endif
    if (own->size[use] < size || !own->block[use] || is_exact) {
        size_t rounded = is_exact ? size : size + size / 4 + 64;
        free(own->block[use]);
        own->block[use] = malloc(rounded);
        own->size[use] = own->block[use] ? rounded : 0;
    }
    return own->block[use];
}

void ps_scratch_trim(void) {
    scratch *own = own_scratch();
    for (int use = 0; own && use < SCRATCH_USES; use++)
        if (own->size[use] > MOST_KEPT) {
            free(own->block[use]);
            own->block[use] = NULL;
            own->size[use] = 0;
        }
}
