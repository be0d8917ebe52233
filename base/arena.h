/* SPDX-License-Identifier: Apache-2.0
 *
 * Bump allocator for the life of one request. It keeps its first chunk over resets, adds chunks up
 * to a hard maximum, and frees all of them at once. Used by one thread at a time.
 */
#ifndef HPS_BASE_ARENA_H
#define HPS_BASE_ARENA_H

#include <stddef.h>

#include "base/status.h"

struct hps_arena;

/* Create an arena with a first chunk of bytes_first, and at most bytes_max in all chunks. NULL: no
 * memory. */
struct hps_arena *hps_arena_new(size_t bytes_first, size_t bytes_max);
void hps_arena_free(struct hps_arena *arena); /* no effect if NULL */
/* Free all allocations, and all chunks except the first. */
void hps_arena_reset(struct hps_arena *arena);
/* Allocate memory, 16-byte aligned and uninitialised. NULL: no memory, or bytes_max would be
 * exceeded. */
void *hps_arena_alloc(struct hps_arena *arena, size_t size);
/* Same, zeroed. Also NULL if count * size overflows. */
void *hps_arena_calloc(struct hps_arena *arena, size_t count, size_t size);
/* A copy of text[size] with a NUL. NULL: same as hps_arena_alloc. */
char *hps_arena_strndup(struct hps_arena *arena, const char *text, size_t size);
size_t hps_arena_used(const struct hps_arena *arena); /* bytes allocated since the last reset */

#endif
