/* SPDX-License-Identifier: Apache-2.0
 *
 * Seeding of a shared store above a durable one: it gets its share of the rows of a load, read back
 * from the durable store. On the loader thread.
 */
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "server/load/loader_internal.h"
#include "server/load/records.h"

struct seed {
    struct loader_run *run;
    struct hps_store_load *load;
    const struct hps_table *table;
    uint64_t hash_max; /* rows with a higher hash are left out */
    struct hps_error *err;
    bool began;  /* the shared store has answered once */
    bool failed; /* the shared store failed */
};

static const struct hps_store_ops *shared_ops(const struct loader_run *run)
{
    return run->targets[HPS_ROLE_SHARED].store->ops;
}

static hps_status seed_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct seed *seed = ctx;
    struct loader_run *run = seed->run;
    const struct hps_table *table = seed->table;
    for (uint32_t i = 0; i < n;) {
        if (atomic_load(&run->progress->cancel)) {
            return hps_error_set(seed->err, HPS_CANCELLED, "the load was cancelled");
        }
        uint32_t n_kept = 0;
        for (; i < n && n_kept < run->batch; i++) {
            if (hps_mix64(hps_mix64((uint64_t)keys[i]) + table->id) <= seed->hash_max) {
                run->keys[n_kept] = keys[i];
                memcpy(run->rows + (size_t)n_kept++ * table->row_bytes,
                       rows + (size_t)i * table->row_bytes, table->row_bytes);
            }
        }
        hps_status status =
            shared_ops(run)->bulk->add(seed->load, table, run->keys, run->rows, n_kept, seed->err);
        if (status != HPS_OK) {
            seed->failed = true;
            return status;
        }
    }
    atomic_fetch_add(&run->progress->rows_done, n);
    return HPS_OK;
}

/* A failure of the durable store or a cancel ends the load. A failure of the shared store does not.
 */
static hps_status seed_tables(struct seed *seed, struct hps_error *err)
{
    struct loader_run *run = seed->run;
    struct hps_space *durable = run->targets[HPS_ROLE_DURABLE].space;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < run->version->n_tables; i++) {
        seed->table = &run->version->tables[i];
        atomic_store(&run->progress->table, i);
        status = loader_batch_alloc(run, seed->table, err);
        if (status == HPS_OK) {
            status = durable->store->ops->scan(durable, seed->table, seed_rows, seed, err);
        }
    }
    return status;
}

static hps_status seed_once(struct seed *seed, struct hps_error *err)
{
    struct loader_run *run = seed->run;
    const struct hps_store_ops *ops = shared_ops(run);
    seed->load = NULL;
    atomic_store(&run->progress->rows_done, 0);
    hps_status status =
        ops->bulk->begin(run->targets[HPS_ROLE_SHARED].space, 0, 0, &seed->load, err);
    seed->began = seed->began || status == HPS_OK;
    seed->failed = status != HPS_OK && status != HPS_PRECONDITION;
    if (status == HPS_OK) {
        status = seed_tables(seed, err);
    }
    if (status == HPS_OK) {
        status = ops->bulk->commit(seed->load, err);
        seed->failed = status != HPS_OK;
    }
    if (status != HPS_OK && seed->load != NULL) {
        ops->bulk->abort(seed->load);
    }
    return status;
}

/* Retries if the shared store answered and then failed, because a failover ends soon. A store that
 * was unreachable from the start is not retried. */
static hps_status seed_all(struct seed *seed, struct hps_error *err)
{
    static const uint32_t pauses_s[] = {0, 2, 4, 8};
    hps_status status = seed_once(seed, err);
    for (size_t i = 0; i < sizeof(pauses_s) / sizeof(pauses_s[0]); i++) {
        if (!seed->failed || !seed->began || status != HPS_UNAVAILABLE) {
            break;
        }
        if (hps_thread_pause(pauses_s[i] * UINT64_C(1000000), &seed->run->progress->cancel)) {
            seed->failed = false;
            return hps_error_set(err, HPS_CANCELLED, "the load was cancelled");
        }
        status = seed_once(seed, err);
    }
    return status;
}

/* The space is recorded as unused until the version is published, in case this process ends before.
 */
hps_status loader_seed_shared(struct loader_run *run, struct hps_error *err)
{
    double ratio = run->env->shared_seed_ratio;
    struct seed seed = {.run = run, .err = err};
    hps_status status =
        hps_records_put_unused(run->targets[HPS_ROLE_DURABLE].store, run->version, err);
    if (status == HPS_OK) {
        status = loader_open_space(run, HPS_ROLE_SHARED, err);
    }
    if (status != HPS_OK || ratio <= 0) {
        return status;
    }
    uint64_t n_rows = atomic_load(&run->progress->rows_done);
    seed.hash_max = ratio >= 1 ? UINT64_MAX : (uint64_t)(ratio * 0x1p64);
    atomic_store(&run->progress->stage, "fill");
    status = seed_all(&seed, err);
    if (seed.failed) {
        HPS_LOG(WARN, "catalog", "shared tier not seeded: writing to it failed; it starts empty",
                HPS_STR("tier", shared_ops(run)->name), HPS_STR("model", run->version->model),
                HPS_I64("version", run->version->number), HPS_STR("error", err->text));
    }
    atomic_store(&run->progress->rows_done, n_rows);
    return seed.failed || status == HPS_PRECONDITION ? HPS_OK : status;
}
