/* SPDX-License-Identifier: Apache-2.0
 *
 * A bump allocator, usually one for each request. It adds chunks of memory up to a hard maximum.
 * All allocations are freed together. An arena may be used by one thread at a time.
 */
#ifndef HPS_BASE_ARENA_H
#define HPS_BASE_ARENA_H

#include <stddef.h>

#include "base/status.h"

struct hps_arena;

/* Create an arena with a first chunk of bytes_first bytes. All chunks together have at most
 * bytes_max bytes. NULL: no memory. */
struct hps_arena *hps_arena_new(size_t bytes_first, size_t bytes_max);
void hps_arena_free(struct hps_arena *arena); /* no effect if NULL */
/* Free all allocations. Keeps the first chunk for later allocations and frees the other chunks. */
void hps_arena_reset(struct hps_arena *arena);
/* Allocate memory, 16-byte aligned and uninitialised. NULL: no memory, or bytes_max would be
 * exceeded. */
void *hps_arena_alloc(struct hps_arena *arena, size_t size);
/* Allocate count * size bytes, 16-byte aligned and zeroed. NULL: as hps_arena_alloc, or count *
 * size overflows. */
void *hps_arena_calloc(struct hps_arena *arena, size_t count, size_t size);
/* Copy text[size] into the arena and append a NUL. NULL: as hps_arena_alloc. */
char *hps_arena_strndup(struct hps_arena *arena, const char *text, size_t size);
/* Sets a callback, which the arena calls before it adds a chunk of `bytes`. If it returns false,
 * the allocation fails. NULL: no callback. */
void hps_arena_on_grow(struct hps_arena *arena, bool (*on_grow)(void *ctx, size_t bytes),
                       void *ctx);
size_t hps_arena_used(const struct hps_arena *arena); /* bytes allocated since the last reset */

#endif
