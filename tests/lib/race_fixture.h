/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of races between lookups and updates: random numbers, the first error, lookups
 * that run as in the service, a gpu tier on the simulated device, and threads.
 */
#ifndef HPS_TESTS_LIB_RACE_FIXTURE_H
#define HPS_TESTS_LIB_RACE_FIXTURE_H

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/heap.h"
#include "cache/device/sim/sim.h"
#include "cache/gpu/internal.h"
#include "cache/lookup/lookup.h"
#include "cache/update/update.h"

enum { RACE_GPU_SLAB = 4 << 20, RACE_TABLES_MAX = 3, RACE_THREADS_MAX = 8 };

static inline uint64_t race_draw(uint64_t *seed)
{
    *seed += HPS_HASH_GOLDEN;
    return hps_mix64(*seed);
}

/* Counts errors and keeps the text of the first one. Any thread. */
struct race_wrong {
    pthread_mutex_t lock;
    atomic_uint n;
    char text[600]; /* read it after the threads have ended */
};

static inline void race_report(struct race_wrong *wrong, const char *format, ...)
{
    va_list args;

    pthread_mutex_lock(&wrong->lock);
    if (atomic_fetch_add(&wrong->n, 1) == 0) {
        va_start(args, format);
        (void)vsnprintf(wrong->text, sizeof(wrong->text), format, args);
        va_end(args);
    }
    pthread_mutex_unlock(&wrong->lock);
}

/* ---- lookups --------------------------------------------------------------------------------- */

struct race_lookup {
    struct hps_lookup lookup;
    struct hps_arena *arena;
    atomic_bool answered;
};

static inline void race_on_answered(struct hps_lookup *lookup)
{
    atomic_store(&((struct race_lookup *)lookup)->answered, true); /* `lookup` is the first field */
}

static inline void race_ask_gpu(struct race_lookup *race)
{
    atomic_store(&race->answered, false);
    if (hps_lookup_ask_gpu(&race->lookup)) {
        while (!atomic_load(&race->answered)) {
            sched_yield();
        }
    }
}

/* Run a lookup from its plan to the last tier. The caller unrefs the block. */
static inline hps_status race_lookup_run(struct race_lookup *race, struct hps_error *err)
{
    struct hps_lookup *lookup = &race->lookup;
    bool done = false;
    hps_status status = hps_lookup_plan(lookup, err);

    lookup->gpu_done = race_on_answered;
    if (status == HPS_OK) {
        status = hps_lookup_take_block(lookup);
    }
    if (status == HPS_OK) {
        race_ask_gpu(race);
        status = hps_lookup_run_memory(lookup, &done, err);
    }
    if (status == HPS_OK && !done) {
        race_ask_gpu(race);
        status = hps_lookup_run_gpu(lookup, &done, err);
    }
    return status == HPS_OK && !done ? hps_lookup_run_rest(lookup, err) : status;
}

/* ---- the gpu --------------------------------------------------------------------------------- */

/* A gpu tier above the version's tiers, with memory for half of n_rows of each table. */
static inline struct hps_gpu_tier *race_gpu_open(struct hps_version *version,
                                                 struct hps_block_pool *blocks, uint64_t n_rows,
                                                 uint64_t queue_bytes_max)
{
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){.seed = 7});
    const struct hps_gpu_tier_options options = {.driver = &sim.driver,
                                                 .cache = {.arena_bytes = 1 << 20,
                                                           .gather_bytes = 1 << 20,
                                                           .stage_bytes = 1 << 20,
                                                           .sample_rate = 1},
                                                 .blocks = blocks,
                                                 .queue_bytes_max = queue_bytes_max,
                                                 .stall_us_max = UINT64_C(600) * 1000 * 1000};
    struct hps_gpu_share shares[RACE_TABLES_MAX];
    const struct hps_gpu_space_options space = {.model = "m",
                                                .number = 1,
                                                .tables = version->tables,
                                                .shares = shares,
                                                .n_tables = version->n_tables};
    struct hps_gpu_tier *gpu = NULL;
    struct hps_error err;

    for (uint32_t t = 0; t < version->n_tables; t++) {
        shares[t] = (struct hps_gpu_share){.n_rows = n_rows, .n_rows_cached = n_rows / 2};
    }
    assert_int_equal(hps_gpu_tier_open(&options, &gpu, &err), HPS_OK);
    assert_int_equal(hps_gpu_space_open(gpu, &space, &version->gpu, &err), HPS_OK);
    hps_gpu_space_active(version->gpu, true);
    return gpu;
}

static inline void race_gpu_close(struct hps_gpu_tier *gpu, struct hps_version *version)
{
    if (gpu != NULL) {
        hps_gpu_tier_drain(gpu);
        hps_gpu_space_close(version->gpu);
        hps_gpu_tier_close(gpu);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

struct race_thread {
    void *(*run)(void *arg);
    void *arg;
};

/* Start all threads, and wait until they end. */
static inline void race_run(const struct race_thread *threads, unsigned n)
{
    pthread_t ids[RACE_THREADS_MAX];

    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(pthread_create(&ids[i], NULL, threads[i].run, threads[i].arg), 0);
    }
    for (unsigned i = 0; i < n; i++) {
        pthread_join(ids[i], NULL);
    }
}

#endif
