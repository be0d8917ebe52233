/* SPDX-License-Identifier: Apache-2.0
 *
 * Bump allocator. Chunks double in size; bytes_max bounds the sum of their capacities. Used by one
 * thread at a time.
 */
#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/poison.h"

enum { ALIGN = 16 };

struct chunk {
    alignas(ALIGN) struct chunk *older;
    size_t size; /* bytes after the header */
    size_t used;
};

struct hps_arena {
    struct chunk *newest;
    struct chunk *first;
    size_t held; /* sum of chunk sizes */
    size_t bytes_max;
    size_t used;
    bool (*on_grow)(void *ctx, size_t bytes);
    void *ctx;
};

/* Each chunk is within its size; together they are within the maximum. */
static bool arena_sane(const struct hps_arena *arena)
{
    size_t held = 0;

    for (const struct chunk *chunk = arena->newest; chunk != NULL; chunk = chunk->older) {
        held += chunk->size;
        if (chunk->used > chunk->size || (chunk->older == NULL) != (chunk == arena->first)) {
            return false;
        }
    }
    return held == arena->held && held <= arena->bytes_max && arena->used <= held;
}

static uint8_t *chunk_data(struct chunk *chunk)
{
    return (uint8_t *)(chunk + 1);
}

static struct chunk *chunk_new(size_t size, struct chunk *older)
{
    if (size > SIZE_MAX - sizeof(struct chunk)) {
        return NULL;
    }
    struct chunk *chunk = hps_alloc(sizeof(*chunk) + size);
    if (chunk == NULL) {
        return NULL;
    }
    chunk->older = older;
    chunk->size = size;
    chunk->used = 0;
    HPS_POISON(chunk_data(chunk), size);
    return chunk;
}

static void chunk_free(struct chunk *chunk)
{
    HPS_UNPOISON(chunk_data(chunk), chunk->size);
    hps_free(chunk);
}

struct hps_arena *hps_arena_new(size_t bytes_first, size_t bytes_max)
{
    HPS_ASSERT(bytes_first <= bytes_max);
    struct hps_arena *arena = hps_calloc(1, sizeof(*arena));
    if (arena == NULL) {
        return NULL;
    }
    arena->first = chunk_new(bytes_first, NULL);
    if (arena->first == NULL) {
        hps_free(arena);
        return NULL;
    }
    arena->newest = arena->first;
    arena->held = bytes_first;
    arena->bytes_max = bytes_max;
    return arena;
}

void hps_arena_reset(struct hps_arena *arena)
{
    HPS_DEBUG_ASSERT(arena_sane(arena));
    while (arena->newest != arena->first) {
        struct chunk *chunk = arena->newest;
        arena->newest = chunk->older;
        chunk_free(chunk);
    }
    arena->first->used = 0;
    arena->held = arena->first->size;
    arena->used = 0;
    HPS_POISON(chunk_data(arena->first), arena->first->size);
    HPS_DEBUG_ASSERT(arena_sane(arena));
}

void hps_arena_free(struct hps_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    hps_arena_reset(arena);
    chunk_free(arena->first);
    hps_free(arena);
}

/* Makes the newest chunk have at least `need` free bytes. */
static bool arena_grow(struct hps_arena *arena, size_t need)
{
    HPS_ASSERT(arena->held <= arena->bytes_max);
    size_t space = arena->bytes_max - arena->held;
    if (need > space) {
        return false;
    }
    size_t size = arena->newest->size <= space / 2 ? arena->newest->size * 2 : space;
    if (size < need) {
        size = need;
    }
    if (arena->on_grow != NULL && !arena->on_grow(arena->ctx, size)) {
        return false;
    }
    struct chunk *chunk = chunk_new(size, arena->newest);
    if (chunk == NULL) {
        return false;
    }
    arena->newest = chunk;
    arena->held += size;
    HPS_ASSERT(arena->held <= arena->bytes_max && size >= need);
    return true;
}

void *hps_arena_alloc(struct hps_arena *arena, size_t size)
{
    if (size > arena->bytes_max) {
        return NULL;
    }
    size_t asked = size != 0 ? size : 1;
    if (asked > SIZE_MAX - (ALIGN - 1)) {
        return NULL;
    }
    size_t need = (asked + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (need > arena->newest->size - arena->newest->used && !arena_grow(arena, need)) {
        return NULL;
    }
    struct chunk *chunk = arena->newest;
    HPS_DEBUG_ASSERT(need <= chunk->size - chunk->used);
    void *ptr = chunk_data(chunk) + chunk->used;
    chunk->used += need;
    arena->used += need;
    HPS_UNPOISON(ptr, asked);
    return ptr;
}

void *hps_arena_calloc(struct hps_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        return NULL;
    }
    void *ptr = hps_arena_alloc(arena, bytes);
    if (ptr != NULL) {
        memset(ptr, 0, bytes);
    }
    return ptr;
}

char *hps_arena_strndup(struct hps_arena *arena, const char *text, size_t size)
{
    if (size == SIZE_MAX) {
        return NULL;
    }
    char *copy = hps_arena_alloc(arena, size + 1);
    if (copy != NULL) {
        memcpy(copy, text, size);
        copy[size] = '\0';
    }
    return copy;
}

void hps_arena_on_grow(struct hps_arena *arena, bool (*on_grow)(void *ctx, size_t bytes), void *ctx)
{
    arena->on_grow = on_grow;
    arena->ctx = ctx;
}

size_t hps_arena_used(const struct hps_arena *arena)
{
    return arena->used;
}
