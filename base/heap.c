/* SPDX-License-Identifier: Apache-2.0
 *
 * The replaceable heap. The only file that calls malloc, calloc, realloc and free.
 */
#include "base/heap.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

/* glibc before 2.41, which clients and tools use, has a thread cache for malloc (blocks up to 1,032
 * bytes), but not for calloc. For large blocks only calloc knows which pages are zero already. */
enum { SMALL_BYTES_MAX = 1024 };

static void *libc_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return malloc(size);
}

static void *libc_calloc(void *ctx, size_t size)
{
    (void)ctx;
    return calloc(1, size);
}

static void *libc_realloc(void *ctx, void *ptr, size_t size)
{
    (void)ctx;
    return realloc(ptr, size);
}

static void libc_free(void *ctx, void *ptr)
{
    (void)ctx;
    free(ptr);
}

static const struct hps_heap libc_heap = {NULL, libc_alloc, libc_calloc, libc_realloc, libc_free};
static const struct hps_heap *heap = &libc_heap;

void hps_heap_set(const struct hps_heap *replacement)
{
    heap = replacement != NULL ? replacement : &libc_heap;
}

void *hps_alloc(size_t size)
{
    return heap->alloc(heap->ctx, size != 0 ? size : 1);
}

void *hps_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        return NULL;
    }
    if (bytes > SMALL_BYTES_MAX) {
        return heap->calloc(heap->ctx, bytes);
    }
    void *ptr = hps_alloc(bytes);
    return ptr != NULL ? memset(ptr, 0, bytes) : NULL;
}

void *hps_realloc(void *ptr, size_t size)
{
    return heap->realloc(heap->ctx, ptr, size != 0 ? size : 1);
}

void hps_free(void *ptr)
{
    if (ptr != NULL) {
        heap->free(heap->ctx, ptr);
    }
}

/* The word before the aligned pointer holds the start of the block. */
void *hps_alloc_aligned(size_t align, size_t size)
{
    HPS_ASSERT(align >= sizeof(void *));
    HPS_ASSERT((align & (align - 1)) == 0);
    if (size > SIZE_MAX - align - sizeof(void *)) {
        return NULL;
    }
    char *raw = hps_alloc(size + align + sizeof(void *));
    if (raw == NULL) {
        return NULL;
    }
    uintptr_t start = ((uintptr_t)raw + sizeof(void *) + align - 1) & ~(uintptr_t)(align - 1);
    memcpy((char *)start - sizeof(void *), &raw, sizeof(raw));
    return (char *)start;
}

void hps_free_aligned(void *ptr)
{
    if (ptr == NULL) {
        return;
    }
    char *raw;
    memcpy(&raw, (char *)ptr - sizeof(void *), sizeof(raw));
    hps_free(raw);
}

char *hps_strndup(const char *text, size_t size)
{
    char *copy = hps_alloc(size + 1);
    if (copy != NULL) {
        memcpy(copy, text, size);
        copy[size] = '\0';
    }
    return copy;
}

char *hps_strdup(const char *text)
{
    return hps_strndup(text, strlen(text));
}
