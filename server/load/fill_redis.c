/* SPDX-License-Identifier: Apache-2.0
 *
 * A Redis above a durable store: what a load gives it, read back from that store, which has the
 * rows by then. On the loader thread.
 */
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/log.h"
#include "server/load/loader_internal.h"
#include "server/load/records.h"

enum { PAUSE_STEP_MS = 20 };

struct spread {
    struct loader_run *run;
    struct hps_store_load *load;
    const struct hps_table *table;
    uint64_t hash_max; /* rows whose hash is beyond it stay below */
    struct hps_error *err;
    bool began;  /* redis has been there */
    bool failed; /* redis did */
};

static hps_status spread_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct spread *spread = ctx;
    struct loader_run *run = spread->run;
    const struct hps_table *table = spread->table;
    for (uint32_t i = 0; i < n;) {
        if (atomic_load(&run->progress->cancel)) {
            return hps_error_set(spread->err, HPS_CANCELLED, "the load was cancelled");
        }
        uint32_t n_kept = 0;
        for (; i < n && n_kept < run->batch; i++) {
            if (hps_mix64(hps_mix64((uint64_t)keys[i]) + table->id) <= spread->hash_max) {
                run->keys[n_kept] = keys[i];
                memcpy(run->rows + (size_t)n_kept++ * table->row_bytes,
                       rows + (size_t)i * table->row_bytes, table->row_bytes);
            }
        }
        hps_status status = run->env->redis->ops->bulk->add(spread->load, table, run->keys,
                                                            run->rows, n_kept, spread->err);
        if (status != HPS_OK) {
            spread->failed = true;
            return status;
        }
    }
    atomic_fetch_add(&run->progress->rows_done, n);
    return HPS_OK;
}

/* A failure of the durable store, or that it was cancelled, ends the load; one of redis does not.
 */
static hps_status spread_tables(struct spread *spread, struct hps_error *err)
{
    struct loader_run *run = spread->run;
    const struct hps_store_ops *from = run->env->durable->ops;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < run->version->n_tables; i++) {
        spread->table = &run->version->tables[i];
        atomic_store(&run->progress->table, i);
        status = loader_batch_room(run, spread->table, err);
        if (status == HPS_OK) {
            status = from->scan(run->durable_space, spread->table, spread_rows, spread, err);
        }
    }
    return status;
}

static hps_status spread_once(struct spread *spread, struct hps_error *err)
{
    struct loader_run *run = spread->run;
    const struct hps_store_ops *ops = run->env->redis->ops;
    spread->load = NULL;
    atomic_store(&run->progress->rows_done, 0);
    hps_status status = ops->bulk->begin(run->redis_space, 0, 0, &spread->load, err);
    spread->began = spread->began || status == HPS_OK;
    spread->failed = status != HPS_OK && status != HPS_PRECONDITION;
    if (status == HPS_OK) {
        status = spread_tables(spread, err);
    }
    if (status == HPS_OK) {
        status = ops->bulk->commit(spread->load, err);
        spread->failed = status != HPS_OK;
    }
    if (status != HPS_OK && spread->load != NULL) {
        ops->bulk->abort(spread->load);
    }
    return status;
}

/* False: the load was cancelled meanwhile. */
static bool pause_load(const struct loader_run *run, uint32_t pause_ms)
{
    const struct timespec step = {0, PAUSE_STEP_MS * 1000 * 1000};
    for (uint32_t ms = 0; ms < pause_ms && !atomic_load(&run->progress->cancel);
         ms += PAUSE_STEP_MS) {
        nanosleep(&step, NULL);
    }
    return !atomic_load(&run->progress->cancel);
}

/* Again, if it was there and went: a fail-over is over by then. Not if it was away from the start:
 * that may take long. */
static hps_status spread_all(struct spread *spread, struct hps_error *err)
{
    static const uint32_t pauses_ms[] = {0, 2000, 4000, 8000};
    hps_status status = spread_once(spread, err);
    for (size_t i = 0; i < sizeof(pauses_ms) / sizeof(pauses_ms[0]); i++) {
        if (!spread->failed || !spread->began || status != HPS_UNAVAILABLE) {
            break;
        }
        if (!pause_load(spread->run, pauses_ms[i])) {
            spread->failed = false;
            return hps_error_set(err, HPS_CANCELLED, "the load was cancelled");
        }
        status = spread_once(spread, err);
    }
    return status;
}

/* Until the version is published it is down as one that nobody uses, in case that this process
 * ends. */
hps_status loader_fill_redis(struct loader_run *run, struct hps_error *err)
{
    double ratio = run->env->redis_fill_ratio;
    struct spread spread = {.run = run, .err = err};
    hps_status status = hps_records_put_unused(run->env->durable, run->version, err);
    if (status == HPS_OK) {
        status = loader_open_redis(run, err);
    }
    if (status != HPS_OK || ratio <= 0) {
        return status;
    }
    uint64_t n_rows = atomic_load(&run->progress->rows_done);
    spread.hash_max = ratio >= 1 ? UINT64_MAX : (uint64_t)(ratio * 0x1p64);
    atomic_store(&run->progress->stage, "fill");
    status = spread_all(&spread, err);
    if (spread.failed) {
        HPS_LOG(WARN, "catalog", "redis was not filled: it begins empty",
                HPS_STR("model", run->version->model), HPS_I64("version", run->version->number),
                HPS_STR("error", err->text));
    }
    atomic_store(&run->progress->rows_done, n_rows);
    return spread.failed || status == HPS_PRECONDITION ? HPS_OK : status;
}
