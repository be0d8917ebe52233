/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock and the stripes: see stamps.h. Readers run on any thread; one thread per version
 * writes.
 *
 * Memory order: a reader that loads the clock of the end of a batch (acquire) sees everything that
 * the batch did (release). 64 bits never wrap: an old stripe must not appear new.
 */
#include "cache/version/stamps.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/hash.h"

enum { STRIPES_LOG2 = 20, N_STRIPES = 1 << STRIPES_LOG2 };

/* Stripes that were never marked are 0, less than any clock. */
#define CLOCK_START UINT64_C(2)

struct hps_stamps {
    _Atomic uint64_t clock;
    char pad[64 - sizeof(uint64_t)]; /* the clock is read by every walk */
    _Atomic uint64_t stripes[N_STRIPES];
};

/* Mapped, not allocated: most versions see few updates, and untouched pages cost nothing. */
struct hps_stamps *hps_stamps_new(void)
{
    void *pages = mmap(NULL, sizeof(struct hps_stamps), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return NULL;
    }
    struct hps_stamps *stamps = pages;
    atomic_init(&stamps->clock, CLOCK_START);
    return stamps;
}

void hps_stamps_free(struct hps_stamps *stamps)
{
    if (stamps != NULL) {
        int failed = munmap(stamps, sizeof(*stamps));
        HPS_ASSERT(failed == 0);
    }
}

static size_t stripe_of(uint32_t table_id, hps_key key)
{
    return (size_t)(hps_mix64(key + table_id * HPS_HASH_GOLDEN) >> (64 - STRIPES_LOG2));
}

uint64_t hps_stamps_now(const struct hps_stamps *stamps)
{
    return stamps == NULL ? CLOCK_START
                          : atomic_load_explicit(&stamps->clock, memory_order_acquire);
}

bool hps_stamp_unchanged(const struct hps_stamps *stamps, uint32_t table_id, hps_key key,
                         uint64_t since)
{
    if (stamps == NULL) {
        return true;
    }
    const _Atomic uint64_t *stripe = &stamps->stripes[stripe_of(table_id, key)];
    return atomic_load_explicit(stripe, memory_order_acquire) < since;
}

bool hps_stamp_guard_fresh(const void *ctx, uint32_t i)
{
    const struct hps_stamp_guard *guard = ctx;
    return hps_stamp_unchanged(guard->stamps, guard->table_id, guard->keys[i], guard->since);
}

/* For the updater, the only thread that writes the clock. */
static uint64_t clock_of(const struct hps_stamps *stamps)
{
    return atomic_load_explicit(&stamps->clock, memory_order_relaxed);
}

/* If the clock is odd already, the last batch failed half-way, and this one gets the same time. */
void hps_stamps_begin(struct hps_stamps *stamps)
{
    uint64_t clock = clock_of(stamps);
    atomic_store_explicit(&stamps->clock, clock | 1, memory_order_release);
}

void hps_stamps_mark(struct hps_stamps *stamps, uint32_t table_id, const hps_key *keys, uint32_t n)
{
    uint64_t clock = clock_of(stamps);
    HPS_ASSERT(clock % 2 == 1);
    for (uint32_t i = 0; i < n; i++) {
        atomic_store_explicit(&stamps->stripes[stripe_of(table_id, keys[i])], clock,
                              memory_order_release);
    }
}

void hps_stamps_end(struct hps_stamps *stamps)
{
    uint64_t clock = clock_of(stamps);
    HPS_ASSERT(clock % 2 == 1);
    atomic_store_explicit(&stamps->clock, clock + 1, memory_order_release);
}
