/* SPDX-License-Identifier: Apache-2.0
 *
 * The only way to memory of the process heap, so that tests can count and fail allocations and
 * third-party libraries can be pointed at it. Any thread. NULL means no memory: handle it.
 */
#ifndef HPS_BASE_HEAP_H
#define HPS_BASE_HEAP_H

#include <stddef.h>

struct hps_heap {
    void *ctx;
    void *(*alloc)(void *ctx, size_t size);
    /* Of large blocks, zeroed: memory fresh from the kernel is already. */
    void *(*calloc)(void *ctx, size_t size);
    void *(*realloc)(void *ctx, void *ptr, size_t size);
    void (*free)(void *ctx, void *ptr);
};

void *hps_alloc(size_t size);                /* uninitialised; size 0 is 1 */
void *hps_calloc(size_t count, size_t size); /* zeroed; overflow of count * size gives NULL */
void *hps_realloc(void *ptr, size_t size);   /* on NULL the old block stays valid */
void *hps_alloc_aligned(size_t align, size_t size); /* free with hps_free_aligned */
char *hps_strdup(const char *text);
char *hps_strndup(const char *text, size_t size);
void hps_free(void *ptr); /* NULL is legal */
void hps_free_aligned(void *ptr);

/* Replace the heap (NULL restores libc's). Only while no memory of the other heap is alive. */
void hps_heap_set(const struct hps_heap *heap);

#endif
