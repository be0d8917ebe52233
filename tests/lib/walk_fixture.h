/* SPDX-License-Identifier: Apache-2.0
 *
 * Walkers: each walks the tiers of a fixture for keys from .. to of table t0, on the caller's or
 * its own thread.
 */
#ifndef HPS_TESTS_LIB_WALK_FIXTURE_H
#define HPS_TESTS_LIB_WALK_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cache/lookup/tiers.h"
#include "tests/lib/lookup_fixture.h"
#include "tests/lib/pause.h"

enum { WALKER_KEYS_MAX = 20000, WALKER_ROW_BYTES = 16 };

struct walker {
    struct fixture *fx;
    pthread_t thread;
    hps_key from;
    struct hps_walk walk;
    struct hps_walk_call call;
    struct hps_error err;
    hps_status status;
    atomic_bool cancel;
    _Atomic(unsigned) n_looks; /* calls of walker_cancelled */
    hps_key keys[WALKER_KEYS_MAX];
    uint32_t slots[WALKER_KEYS_MAX];
    uint8_t rows[WALKER_KEYS_MAX * WALKER_ROW_BYTES];
};

static inline bool walker_cancelled(const void *ctx)
{
    struct walker *walker = (struct walker *)ctx;

    walker->n_looks++;
    return walker->cancel;
}

static inline void walker_begin(struct walker *walker, hps_key from, hps_key to)
{
    uint32_t n = (uint32_t)(to - from);

    walker->from = from;
    for (uint32_t i = 0; i < n; i++) {
        walker->keys[i] = from + i;
        walker->slots[i] = i;
    }
    struct hps_batch batch = {
        .keys = walker->keys, .slots = walker->slots, .rows = walker->rows, .n = n};
    memset(walker->rows, 0, (size_t)n * WALKER_ROW_BYTES);
    hps_walk_init(&walker->walk, &walker->fx->version, &walker->fx->tables[0], &batch);
    walker->call.cancelled = walker_cancelled;
    walker->call.cancelled_ctx = walker;
    walker->n_looks = 0;
}

static inline void *walker_run(void *arg)
{
    struct walker *walker = arg;

    walker->status = hps_walk_rest(&walker->walk, &walker->call, &walker->err);
    return NULL;
}

static inline hps_status walker_walk(struct walker *walker, hps_key from, hps_key to)
{
    walker_begin(walker, from, to);
    walker_run(walker);
    return walker->status;
}

static inline void walker_start(struct walker *walker, hps_key from, hps_key to)
{
    walker_begin(walker, from, to);
    assert_int_equal(pthread_create(&walker->thread, NULL, walker_run, walker), 0);
}

/* A walk checks once before it queries the host, then each time that it has waited a while for
 * another walk. */
static inline void walker_until_it_waits(const struct walker *walker)
{
    while (walker->n_looks < 2) {
        brief_pause();
    }
}

static inline hps_status walker_join(struct walker *walker)
{
    assert_int_equal(pthread_join(walker->thread, NULL), 0);
    return walker->status;
}

#endif
