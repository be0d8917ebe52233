/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocation from the process heap. All memory comes from here. So tests can count allocations or
 * make them fail, and third-party libraries can use the same heap. A result of NULL means that
 * there is no memory. Any thread.
 */
#ifndef HPS_BASE_HEAP_H
#define HPS_BASE_HEAP_H

#include <stddef.h>

/* The functions of a heap, with the contracts of malloc, calloc, realloc and free. */
struct hps_heap {
    void *ctx; /* passed to each function */
    void *(*alloc)(void *ctx, size_t size);
    /* Returns zeroed memory. It need not clear pages that the kernel has just provided. */
    void *(*calloc)(void *ctx, size_t size);
    void *(*realloc)(void *ctx, void *ptr, size_t size);
    void (*free)(void *ctx, void *ptr);
};

void *hps_alloc(size_t size);                /* uninitialised; size 0 allocates 1 byte */
void *hps_calloc(size_t count, size_t size); /* zeroed; overflow of count * size gives NULL */
void *hps_realloc(void *ptr, size_t size);   /* on failure (NULL) the old block stays valid */
void *hps_alloc_aligned(size_t align, size_t size); /* free with hps_free_aligned */
char *hps_strdup(const char *text);
char *hps_strndup(const char *text, size_t size);
void hps_free(void *ptr); /* no effect if NULL */
void hps_free_aligned(void *ptr);

/* Replace the heap; NULL: use the heap of libc again. No memory of the current heap may be in
 * use. */
void hps_heap_set(const struct hps_heap *heap);

#endif
