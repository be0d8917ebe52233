/* SPDX-License-Identifier: Apache-2.0
 *
 * Warm-ups and refills of memory.
 *
 * - Warm-up with hot keys: in the background after a start and a switch, and for a bounded time
 *   before a switch.
 * - Refill of host memory: after a start.
 * - Refill of tables that are cached whole: before a load is published, and in the background after
 *   a start or switch.
 *
 * Threads: loader (starts, loads), warmup (after a switch), switch (before one; saves). So no admin
 * thread waits for them, and bounded work never waits for unbounded work.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/catalog/internal.h"
#include "server/load/whole.h"

enum { AGE_S = 300 }; /* period of aging the counts if nothing is saved */

struct warm_task {
    struct hps_task task;
    struct hps_catalog *catalog;
    struct hps_version *version; /* pinned */
    struct catalog_entry *entry; /* of the version; only with a waiter */
    struct hps_switch *waiter;   /* NULL: the version serves already */
    uint64_t deadline_us;        /* only with a waiter */
};

/* ---- one warm-up or refill ------------------------------------------------------------------- */

struct warm_up {
    struct warm_up *next; /* in catalog->warm_ups */
    struct hps_catalog *catalog;
    const struct hps_version *version;
    const atomic_bool *cancel;
    bool behind;                 /* useful only while the version is the active one */
    uint64_t n_keys, n_keys_all; /* protected by the catalog's lock */
};

static uint64_t host_bytes(const struct hps_catalog *catalog, const struct hps_version *version)
{
    struct hps_store_usage usage = {0};
    if (version->n_tiers > 0 && version->tiers[0]->store == catalog_host(catalog)) {
        version->tiers[0]->store->ops->space_usage(version->tiers[0], &usage);
    }
    return usage.used_bytes;
}

/* Bytes in the host map that must stay. If the version is active, the other versions of its model
 * may lose theirs. out_wanted: the version is not unloading, and is active if `behind`. */
static uint64_t bytes_kept(const struct warm_up *ctx, bool *out_wanted)
{
    uint64_t bytes = 0;
    *out_wanted = false;
    for (struct catalog_model *model = ctx->catalog->models; model != NULL; model = model->next) {
        struct catalog_entry *mine = NULL;
        for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
            mine = entry->version == ctx->version ? entry : mine;
        }
        bool active = mine != NULL && model->active == ctx->version->number;
        *out_wanted = *out_wanted ||
                      (mine != NULL && mine->state != ENTRY_UNLOADING && (active || !ctx->behind));
        for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
            if (entry == mine || (!active && entry->host != NULL)) {
                bytes += host_bytes(ctx->catalog, entry->version);
            }
        }
    }
    return bytes;
}

static bool go_on(void *arg, const struct hps_warmup_report *so_far, uint64_t *out_free_bytes)
{
    struct warm_up *ctx = arg;
    struct hps_catalog *catalog = ctx->catalog;
    bool wanted;
    hps_lock_acquire(&catalog->lock);
    ctx->n_keys = so_far->n_keys;
    ctx->n_keys_all = so_far->n_keys_all;
    uint64_t kept = bytes_kept(ctx, &wanted);
    hps_lock_release(&catalog->lock);
    uint64_t budget = catalog->options.env.host_bytes_max;
    *out_free_bytes = budget > kept ? budget - kept : 0;
    return wanted && !atomic_load(&catalog->closing) && !atomic_load(ctx->cancel);
}

void catalog_warm_progress(const struct hps_catalog *catalog, const struct hps_version *version,
                           uint64_t *out_n_done, uint64_t *out_n_all)
{
    const struct warm_up *one = catalog->warm_ups;
    while (one != NULL && one->version != version) {
        one = one->next;
    }
    *out_n_done = one != NULL ? one->n_keys : 0;
    *out_n_all = one != NULL ? one->n_keys_all : 0;
}

static void warm_up_link(struct warm_up *ctx)
{
    hps_lock_acquire(&ctx->catalog->lock);
    ctx->next = ctx->catalog->warm_ups;
    ctx->catalog->warm_ups = ctx;
    hps_lock_release(&ctx->catalog->lock);
}

static void warm_up_unlink(struct warm_up *ctx)
{
    hps_lock_acquire(&ctx->catalog->lock);
    struct warm_up **at = &ctx->catalog->warm_ups;
    while (*at != ctx) {
        HPS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = ctx->next;
    hps_lock_release(&ctx->catalog->lock);
}

/* deadline_us: 0: in the background */
static void warm_up(struct hps_catalog *catalog, struct hps_version *version, uint64_t deadline_us,
                    const atomic_bool *cancel)
{
    struct warm_up ctx = {
        .catalog = catalog, .version = version, .cancel = cancel, .behind = deadline_us == 0};
    const struct hps_warmup_limits limits = {cancel, deadline_us, go_on, &ctx};
    struct hps_warmup_report report;
    warm_up_link(&ctx);
    hps_warmup_run(catalog->warmup, version, &limits, &report);
    warm_up_unlink(&ctx);
    if (report.end == HPS_WARMUP_FAILED) {
        HPS_LOG(WARN, "warmup",
                "warm-up failed: a store failed; rows are cached as lookups need them",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_STR("error", report.error.text));
    }
    if (report.n_keys == 0 && report.end == HPS_WARMUP_DONE) {
        return; /* no hot keys were known */
    }
    HPS_LOG(INFO, "warmup", "memory warmed up", HPS_STR("model", version->model),
            HPS_I64("version", version->number), HPS_STR("end", hps_warmup_end_text(report.end)),
            HPS_U64("keys", report.n_keys), HPS_U64("rows", report.n_rows),
            HPS_U64("gpu_rows", report.n_gpu_rows), HPS_U64("duration_us", report.duration_us));
}

/* behind: useful only while the version is the active one */
static void refill_caches(struct hps_catalog *catalog, struct hps_version *version, bool behind,
                          const atomic_bool *cancel)
{
    struct warm_up ctx = {
        .catalog = catalog, .version = version, .cancel = cancel, .behind = behind};
    const struct hps_warmup_limits limits = {cancel, 0, go_on, &ctx};
    struct hps_warmup_report report;
    if (!hps_whole_useful(version)) {
        return;
    }
    warm_up_link(&ctx);
    hps_whole_refill(version, &limits, &report);
    warm_up_unlink(&ctx);
    if (report.end == HPS_WARMUP_FAILED) {
        HPS_LOG(
            WARN, "warmup",
            "embedding caches not refilled: a store failed; rows are cached as lookups need them",
            HPS_STR("model", version->model), HPS_I64("version", version->number),
            HPS_STR("error", report.error.text));
    }
    HPS_LOG(INFO, "warmup", "embedding caches filled", HPS_STR("model", version->model),
            HPS_I64("version", version->number), HPS_STR("end", hps_warmup_end_text(report.end)),
            HPS_U64("keys", report.n_keys), HPS_U64("gpu_rows", report.n_gpu_rows),
            HPS_U64("duration_us", report.duration_us));
}

/* ---- in the background ----------------------------------------------------------------------- */

static void task_free(struct warm_task *task)
{
    hps_version_unpin(task->version);
    hps_free(task);
}

static struct warm_task *task_new(struct hps_catalog *catalog, struct hps_version *version,
                                  void (*run)(struct hps_task *task), struct hps_switch *waiter)
{
    struct warm_task *task = hps_calloc(1, sizeof(*task));
    if (task != NULL) {
        *task = (struct warm_task){
            .task = {.run = run}, .catalog = catalog, .version = version, .waiter = waiter};
        hps_version_pin(version);
    }
    return task;
}

static void run_behind(struct hps_task *base)
{
    struct warm_task *task = (struct warm_task *)base;
    struct hps_catalog *catalog = task->catalog;
    if (hps_warmup_useful(catalog->warmup, task->version)) {
        warm_up(catalog, task->version, 0, &catalog->closing);
    }
    refill_caches(catalog, task->version, true, &catalog->closing);
    task_free(task);
}

static void run_whole(struct hps_task *base)
{
    struct warm_task *task = (struct warm_task *)base;
    refill_caches(task->catalog, task->version, false, &task->catalog->closing);
    task_free(task);
}

static void post_task(struct hps_pool *pool, struct warm_task *task)
{
    if (task != NULL && hps_pool_post(pool, &task->task) != HPS_OK) {
        task_free(task);
    }
}

void catalog_warm_whole(struct hps_catalog *catalog, struct hps_pool *pool,
                        struct hps_version *version)
{
    if (hps_whole_useful(version)) {
        post_task(pool, task_new(catalog, version, run_whole, NULL));
    }
}

void catalog_warm_behind(struct hps_catalog *catalog, struct hps_pool *pool,
                         struct hps_version *version)
{
    if (hps_warmup_useful(catalog->warmup, version) || hps_whole_useful(version)) {
        post_task(pool, task_new(catalog, version, run_behind, NULL));
    }
}

/* Put all rows of a serving version into the host map, if they fit. */
static hps_status refill_host(struct hps_catalog *catalog, struct hps_version *version,
                              struct hps_error *err)
{
    const struct hps_load_env *env = &catalog->options.env;
    HPS_ASSERT(hps_store_role(version->tiers[0]->store) == HPS_ROLE_HOST);
    uint64_t needed = hps_load_host_bytes(env, version->tables, version->n_tables);
    hps_lock_acquire(&catalog->lock);
    uint64_t used = catalog_host_used(catalog);
    hps_lock_release(&catalog->lock);
    if (used - host_bytes(catalog, version) + needed > env->host_bytes_max) {
        HPS_LOG(INFO, "catalog",
                "host memory not refilled: not all rows fit; rows are cached as lookups need them",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_U64("needed_bytes", needed), HPS_U64("budget_bytes", env->host_bytes_max));
        return HPS_OK;
    }
    return hps_load_refill_host(env, version, &catalog->closing, err);
}

static void run_refill(struct hps_task *base)
{
    struct warm_task *task = (struct warm_task *)base;
    const struct hps_version *version = task->version;
    struct hps_error err = {0};
    hps_status status = refill_host(task->catalog, task->version, &err);
    if (status != HPS_OK && status != HPS_CANCELLED) {
        HPS_LOG(WARN, "catalog",
                "host memory not refilled: a store failed; rows are cached as lookups need them",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_STR("error", err.text[0] != '\0' ? err.text : hps_status_text(status)));
    }
    task_free(task);
}

void catalog_warm_refill(struct hps_catalog *catalog, struct hps_pool *pool,
                         struct hps_version *version)
{
    const struct hps_store *durable = catalog_durable(catalog);
    if (catalog_host(catalog) != NULL && durable != NULL &&
        (durable->ops->caps & HPS_STORE_SCANS) != 0) {
        post_task(pool, task_new(catalog, version, run_refill, NULL));
    }
}

/* ---- before a switch ------------------------------------------------------------------------- */

/* Time for a warm-up before the version becomes active, in microseconds; 0: none is useful. Lock
 * not held. */
static uint64_t time_before(struct hps_catalog *catalog, const struct catalog_model *model,
                            const struct hps_version *version)
{
    hps_lock_acquire(&catalog->lock);
    uint64_t us = (uint64_t)catalog->warmup_timeout_s * 1000000;
    bool takes_over = model->active != 0 && model->active != version->number;
    hps_lock_release(&catalog->lock);
    return takes_over && hps_warmup_useful(catalog->warmup, version) ? us : 0;
}

void catalog_warm_load(struct hps_load *load)
{
    struct hps_catalog *catalog = load->catalog;
    struct hps_version *version = load->entry->version;
    uint64_t us = load->activate ? time_before(catalog, load->model, version) : 0;
    bool whole = hps_whole_useful(version);
    if (us == 0 && !whole) {
        return;
    }
    atomic_store(&load->progress.stage, "warm");
    refill_caches(catalog, version, false, &load->progress.cancel);
    if (us > 0) {
        warm_up(catalog, version, hps_clock_us() + us, &load->progress.cancel);
    }
    atomic_store(&load->progress.stage, "done");
}

static void activate_now(struct hps_catalog *catalog, const char *model, int64_t number,
                         struct hps_switch *waiter)
{
    struct hps_error err = {0};
    err.status =
        hps_catalog_activate(catalog, model, number, waiter->force, &waiter->switched, &err);
    waiter->done(waiter, &err);
}

/* Until let_go, keep_versions does not unload the version. */
static void hold(struct warm_task *task, struct catalog_entry *entry)
{
    hps_lock_acquire(&task->catalog->lock);
    HPS_ASSERT(task->entry == NULL && entry->version == task->version);
    task->entry = entry;
    entry->n_switching++;
    hps_lock_release(&task->catalog->lock);
}

static void let_go(struct warm_task *task)
{
    hps_lock_acquire(&task->catalog->lock);
    HPS_ASSERT(task->entry->n_switching > 0);
    task->entry->n_switching--;
    hps_lock_release(&task->catalog->lock);
    task_free(task);
}

static void run_switch(struct hps_task *base)
{
    struct warm_task *task = (struct warm_task *)base;
    struct hps_catalog *catalog = task->catalog;
    struct hps_version *version = task->version;
    struct hps_error err = {0};
    HPS_ASSERT(task->waiter != NULL && task->entry != NULL);
    warm_up(catalog, version, task->deadline_us, &catalog->closing);
    if (atomic_load(&catalog->closing)) {
        hps_ignore(hps_error_set(&err, HPS_UNAVAILABLE, "the server stops"));
        task->waiter->done(task->waiter, &err);
    } else {
        activate_now(catalog, version->model, version->number, task->waiter);
    }
    let_go(task);
}

void hps_catalog_switch(struct hps_catalog *catalog, const char *name, int64_t number,
                        struct hps_switch *waiter)
{
    struct catalog_model *model;
    struct catalog_entry *entry;
    struct warm_task *task = NULL;
    struct hps_error err = {0};
    uint64_t us = 0;
    if (catalog_check_lag(catalog, name, number, &err) != HPS_OK) {
        waiter->done(waiter, &err);
        return;
    }
    hps_lock_acquire(&catalog->switch_lock);
    if (catalog_resident(catalog, name, number, &model, &entry, &err) == HPS_OK &&
        (waiter->force || catalog_check_active(catalog, model, entry, &err) == HPS_OK)) {
        us = time_before(catalog, model, entry->version); /* 0: activated at once, or rejected */
    }
    if (us > 0) {
        task = task_new(catalog, entry->version, run_switch, waiter);
    }
    if (task != NULL) {
        task->deadline_us = hps_clock_us() + us; /* before the task waits for other switches */
        hold(task, entry);
    }
    hps_lock_release(&catalog->switch_lock);
    if (task != NULL && hps_pool_post(catalog->switcher, &task->task) == HPS_OK) {
        return;
    }
    if (task != NULL) {
        let_go(task);
    }
    activate_now(catalog, name, number, waiter);
}

/* ---- saving ---------------------------------------------------------------------------------- */

static void save(struct hps_catalog *catalog, bool age)
{
    hps_lock_acquire(&catalog->lock);
    bool write = catalog->hot_keys_save_s > 0;
    hps_lock_release(&catalog->lock);
    hps_warmup_save(catalog->warmup, write, age);
}

static void run_save(struct hps_task *task)
{
    struct hps_catalog *catalog = HPS_CONTAINER_OF(task, struct hps_catalog, save);
    save(catalog, true);
    atomic_store(&catalog->saving, false);
}

void hps_catalog_tick(struct hps_catalog *catalog)
{
    uint64_t now_us = hps_clock_us();
    catalog_expect_all(catalog);
    catalog_tidy(catalog);
    hps_lock_acquire(&catalog->lock);
    for (struct hps_load *load = catalog->loads; load != NULL; load = load->next) {
        uint32_t table = atomic_load(&load->progress.table);
        hps_load_progress_log(
            &load->progress, load->model_name, load->number,
            table < load->source.n_tables ? load->source.tables[table].files.name : "", now_us);
    }
    uint64_t period_us =
        (uint64_t)(catalog->hot_keys_save_s > 0 ? catalog->hot_keys_save_s : AGE_S) * 1000000;
    hps_lock_release(&catalog->lock);
    if (now_us - catalog->saved_us < period_us || atomic_exchange(&catalog->saving, true)) {
        return;
    }
    catalog->saved_us = now_us;
    catalog->save.run = run_save;
    if (hps_pool_post(catalog->switcher, &catalog->save) != HPS_OK) {
        atomic_store(&catalog->saving, false);
    }
}

void catalog_warm_stop(struct hps_catalog *catalog)
{
    if (catalog->warmer == NULL) {
        return;
    }
    HPS_ASSERT(catalog->loader == NULL); /* it posts to these pools */
    hps_pool_free(catalog->switcher);    /* first, because a switch posts to the other */
    hps_pool_free(catalog->warmer);
    catalog->switcher = NULL;
    catalog->warmer = NULL;
    if (catalog->opened) { /* otherwise the recovered hot keys are not known */
        save(catalog, false);
    }
}
