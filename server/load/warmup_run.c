/* SPDX-License-Identifier: Apache-2.0
 *
 * Inserts the rows of hot keys into the host map and the embedding caches of a version, in batches,
 * the hottest first. Each batch is a walk down the tiers. On the thread that warms up.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/thread.h"
#include "cache/gpu/tier.h"
#include "cache/lookup/tiers.h"
#include "server/load/loader.h"
#include "server/load/warmup_internal.h"

enum { PAUSE_US_MAX = 50 * 1000 };

const char *hps_warmup_end_text(enum hps_warmup_end end)
{
    static const char *const texts[] = {[HPS_WARMUP_DONE] = "done",
                                        [HPS_WARMUP_NO_CAPACITY] = "no room",
                                        [HPS_WARMUP_TIME] = "time is up",
                                        [HPS_WARMUP_STOPPED] = "stopped",
                                        [HPS_WARMUP_FAILED] = "failed"};
    HPS_ASSERT((unsigned)end < sizeof(texts) / sizeof(texts[0]));
    return texts[end];
}

/* The hot keys of one table, hottest first, and how many of them go to each tier. */
struct queue {
    const struct hps_table *table;
    struct hps_hot_key *keys;
    uint32_t n_host; /* reduced when the map has no capacity left */
    uint32_t n_gpu;
    uint32_t at; /* keys before it are done */
};

struct run {
    struct hps_version *version;
    const struct hps_warmup_limits *limits;
    struct hps_warmup_report *report;
    struct hps_metric *rows_metric;
    struct queue *queues; /* [n_tables] */
    hps_key *keys;        /* [WARMUP_BATCH_KEYS_MAX] */
    uint32_t *slots;      /* [WARMUP_BATCH_KEYS_MAX] */
    uint8_t *rows;        /* for a batch of any table */
    bool full;            /* a table found no capacity in the map */
};

static bool host_useful(const struct hps_warmup *warmup, const struct hps_version *version)
{
    return version->n_tiers > 1 && version->tiers[0]->store == warmup->options.host &&
           (warmup->options.host->ops->caps & HPS_STORE_INSERTS) != 0 &&
           !hps_version_host_complete(version);
}

static bool gpu_useful(const struct hps_version *version)
{
    return version->gpu != NULL && version->gpu_warms;
}

bool hps_warmup_useful(struct hps_warmup *warmup, const struct hps_version *version)
{
    if (!host_useful(warmup, version) && !gpu_useful(version)) {
        return false;
    }
    hps_lock_acquire(&warmup->lock);
    bool known = warmup_model(warmup, version->model, false) != NULL;
    hps_lock_release(&warmup->lock);
    return known;
}

static uint32_t queue_end(const struct queue *queue)
{
    return queue->n_host > queue->n_gpu ? queue->n_host : queue->n_gpu;
}

/* Copies the counts, because lookups change them. */
static hps_status open_queues(struct hps_warmup *warmup, struct run *run)
{
    const struct hps_version *version = run->version;
    bool host = host_useful(warmup, version);
    bool gpu = gpu_useful(version);
    hps_status status = HPS_OK;
    size_t row_bytes = 0;
    for (uint32_t i = 0; status == HPS_OK && i < version->n_tables; i++) {
        const struct hps_table *table = &version->tables[i];
        size_t bytes = (size_t)warmup_batch_keys(table) * table->row_bytes;
        struct queue *queue = &run->queues[i];
        queue->table = table;
        row_bytes = bytes > row_bytes ? bytes : row_bytes;
        hps_lock_acquire(&warmup->lock);
        struct warm_model *model = warmup_model(warmup, version->model, false);
        struct warm_table *known =
            model != NULL ? warmup_table(model, table->name, strlen(table->name)) : NULL;
        hps_lock_release(&warmup->lock);
        uint32_t n = 0;
        if (known != NULL) {
            status = hps_hot_top(known->hot, &queue->keys, &n);
        }
        queue->n_host = host ? n : 0;
        uint64_t n_gpu = gpu ? hps_gpu_space_rows_max(version->gpu, i) : 0;
        queue->n_gpu = n < n_gpu ? n : (uint32_t)n_gpu;
        HPS_ASSERT(queue_end(queue) <= n);
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        run->report->n_keys_all += queue_end(&run->queues[i]);
    }
    run->keys = hps_calloc(WARMUP_BATCH_KEYS_MAX, sizeof(*run->keys));
    run->slots = hps_calloc(WARMUP_BATCH_KEYS_MAX, sizeof(*run->slots));
    run->rows = hps_alloc(row_bytes);
    if (run->keys == NULL || run->slots == NULL || run->rows == NULL) {
        return HPS_NO_MEMORY;
    }
    return status;
}

/* The table with the hottest next key; NULL: all are done. */
static struct queue *hottest(struct run *run)
{
    struct queue *best = NULL;
    for (uint32_t i = 0; i < run->version->n_tables; i++) {
        struct queue *queue = &run->queues[i];
        if (queue->at < queue_end(queue) &&
            (best == NULL || queue->keys[queue->at].count > best->keys[best->at].count)) {
            best = queue;
        }
    }
    return best;
}

/* Walk the next n keys of the queue down the tiers, which inserts their rows into the open tiers
 * above. A shared tier may be unreachable. Its rows with updates that this version lacks are not
 * inserted. */
static hps_status walk_batch(struct run *run, struct queue *queue, uint32_t n,
                             struct hps_walk *walk)
{
    const struct hps_batch batch = {
        .keys = run->keys, .slots = run->slots, .rows = run->rows, .n = n};
    /* no cancel: a walk that has begun is finished */
    struct hps_walk_call call = {.purpose = HPS_WALK_WARM};
    struct hps_error err;

    HPS_ASSERT(n > 0 && n <= WARMUP_BATCH_KEYS_MAX);
    HPS_ASSERT(n <= queue_end(queue) - queue->at);
    for (uint32_t i = 0; i < n; i++) {
        HPS_DEBUG_ASSERT(i == 0 ||
                         queue->keys[queue->at + i].count <= queue->keys[queue->at + i - 1].count);
        run->keys[i] = queue->keys[queue->at + i].key;
        run->slots[i] = i;
    }
    call.closed |= queue->at < queue->n_host ? 0 : hps_tier_bit(HPS_TIER_HOST);
    call.closed |= queue->at < queue->n_gpu ? 0 : hps_tier_bit(HPS_TIER_GPU);
    hps_walk_init(walk, run->version, queue->table, &batch);
    hps_status status = hps_walk_rest(walk, &call, &err);
    return status == HPS_OK ? walk->reports[HPS_TIER_HOST].insert_status : status;
}

void hps_warmup_pause_after(const struct hps_warmup_limits *limits, uint64_t start_us)
{
    uint64_t us = hps_clock_us() - start_us;
    hps_thread_pause(us < PAUSE_US_MAX ? us : PAUSE_US_MAX, limits->cancel);
}

/* The map has no capacity left for this table: its other keys are for the device only. */
static void end_host(struct run *run, struct queue *queue)
{
    HPS_ASSERT(queue->at <= queue->n_host);
    queue->n_host = queue->at;
    run->full = true;
}

/* A newly active version gets its caches a little later. False: they are coming, wait. If the table
 * gets no cache, its other keys are for the map only. */
static bool settle_gpu(const struct run *run, struct queue *queue)
{
    const struct hps_gpu_space *gpu = run->version->gpu;
    HPS_ASSERT(gpu != NULL || queue->n_gpu == 0);
    if (queue->at >= queue->n_gpu || hps_gpu_space_caches(gpu, queue->table->id)) {
        return true;
    }
    if (hps_gpu_space_coming(gpu)) {
        return false;
    }
    queue->n_gpu = queue->at; /* other tables may have caches */
    return true;
}

/* Number of keys in the next batch; 0: none of this table. room_bytes: capacity of the host map */
static uint32_t next_batch(struct run *run, struct queue *queue, uint64_t free_bytes)
{
    HPS_ASSERT(queue->at <= queue_end(queue)); /* equal if settle_gpu has shortened it */
    uint64_t n_fit = free_bytes / hps_load_host_row_bytes(queue->table->row_bytes);
    uint32_t n = warmup_batch_keys(queue->table);
    if (queue->at < queue->n_host && n_fit == 0) {
        end_host(run, queue);
    }
    bool to_host = queue->at < queue->n_host;
    uint32_t n_left = (to_host ? queue->n_host : queue_end(queue)) - queue->at;
    if (queue->at < queue->n_gpu && n_left > queue->n_gpu - queue->at) {
        n_left = queue->n_gpu - queue->at; /* colder keys have no place on the device */
    }
    n = n < n_left ? n : n_left;
    return to_host && n > n_fit ? (uint32_t)n_fit : n;
}

static void note_batch(struct run *run, struct queue *queue, uint32_t n,
                       const struct hps_walk *walk, hps_status status)
{
    struct hps_warmup_report *report = run->report;
    const struct hps_tier_report *host = &walk->reports[HPS_TIER_HOST];
    bool to_host = queue->at < queue->n_host;
    queue->at += n;
    report->n_keys += n;
    report->n_rows += host->n_inserted;
    report->n_gpu_rows += walk->reports[HPS_TIER_GPU].n_inserted;
    hps_metric_add(run->rows_metric, host->n_inserted);
    if (status != HPS_OK) {
        report->end = status == HPS_DATA_LOSS ? report->end : HPS_WARMUP_FAILED;
        hps_ignore(hps_error_set(&report->error, status, "table \"%s\": %s", queue->table->name,
                                 hps_status_text(status)));
    } else if (to_host &&
               (host->n_evicted > 0 || (host->n_no_capacity > 0 && host->n_inserted == 0))) {
        /* Colder keys would evict hotter ones that lookups have not used yet. */
        end_host(run, queue);
    }
}

/* Run one batch. False: it was the last one. */
static bool run_some(struct run *run)
{
    struct hps_warmup_report *report = run->report;
    struct queue *queue = hottest(run);
    uint64_t start_us = hps_clock_us();
    uint64_t free_bytes = 0;
    if (queue == NULL) {
        report->end = run->full ? HPS_WARMUP_NO_CAPACITY : HPS_WARMUP_DONE;
        return false;
    }
    if (run->limits->deadline_us != 0 && start_us >= run->limits->deadline_us) {
        report->end = HPS_WARMUP_TIME;
        return false;
    }
    if (!run->limits->go_on(run->limits->ctx, report, &free_bytes)) {
        report->end = HPS_WARMUP_STOPPED;
        return false;
    }
    if (!settle_gpu(run, queue)) {
        hps_gpu_space_await(run->version->gpu, WARMUP_LOOK_US);
        return true;
    }
    uint32_t n = next_batch(run, queue, free_bytes);
    if (n > 0) { /* else the map has no capacity, also for other tables */
        struct hps_walk walk;
        hps_status status = walk_batch(run, queue, n, &walk);
        note_batch(run, queue, n, &walk, status);
        hps_warmup_pause_after(run->limits, start_us);
    }
    return report->end == HPS_WARMUP_DONE;
}

void hps_warmup_run(struct hps_warmup *warmup, struct hps_version *version,
                    const struct hps_warmup_limits *limits, struct hps_warmup_report *out_report)
{
    HPS_ASSERT(version->n_tiers > 0);
    HPS_ASSERT(limits->go_on != NULL);
    struct hps_warmup_report report = {.end = HPS_WARMUP_DONE};
    struct run run = {.version = version,
                      .limits = limits,
                      .report = &report,
                      .rows_metric = warmup->rows,
                      .queues = hps_calloc(version->n_tables, sizeof(*run.queues))};
    uint64_t start_us = hps_clock_us();
    hps_status status = run.queues != NULL ? open_queues(warmup, &run) : HPS_NO_MEMORY;
    if (status != HPS_OK) {
        report.end = HPS_WARMUP_FAILED;
        hps_ignore(hps_error_set(&report.error, status, "no memory for the hot keys"));
    }
    while (status == HPS_OK && run_some(&run)) {
    }
    for (uint32_t i = 0; run.queues != NULL && i < version->n_tables; i++) {
        hps_free(run.queues[i].keys);
    }
    hps_free(run.queues);
    hps_free(run.keys);
    hps_free(run.slots);
    hps_free(run.rows);
    if (report.error.status != HPS_OK) { /* a damaged row fails its batch only */
        report.end = HPS_WARMUP_FAILED;
    }
    report.duration_us = hps_clock_us() - start_us;
    *out_report = report;
}
