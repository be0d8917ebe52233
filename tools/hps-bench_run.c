/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-bench: the load. Each worker has its own client and slots, and shares only struct bench_live.
 *
 * A slot is one call in flight. Closed loop: when the call of a slot has ended, the slot starts the
 * next one, on the thread of the client. Open loop: starts are due at fixed times, whether or not a
 * slot is free, and latency counts from the due time.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "base/text.h"
#include "tools/hps-bench.h"
#include "tools/rows.h"

enum {
    TURN_US = 20 * 1000,
    DRAIN_US = 30 * 1000 * 1000,
    READY_US = 1000,
    CONNECT_US = 10 * 1000 * 1000
};

struct bench_slot {
    struct bench_worker *worker;
    struct bench_slot *next; /* list of idle slots */
    hps_key *keys;           /* [n_keys_all] */
    float *weights;          /* [n_keys_all]; NULL: all 1 */
    uint8_t *key_status;     /* [n_keys_all]; NULL: without --verify */
    struct hpsd_query *queries;
    struct hpsd_result *results;
    uint64_t start_us; /* start of the call, or its due time */
};

/* ---- replies --------------------------------------------------------------------------------- */

static void count_tier(struct bench_counts *counts, const struct hpsd_tier *tier)
{
    for (unsigned i = 0; i < BENCH_TIERS_MAX; i++) {
        struct bench_tier *into = &counts->tiers[i];
        if (into->name[0] == '\0') {
            (void)snprintf(into->name, sizeof(into->name), "%s", tier->name);
        }
        if (strcmp(into->name, tier->name) == 0) {
            into->found_keys += tier->found_keys;
            return;
        }
    }
}

static void take_result(struct bench_slot *slot, uint64_t table)
{
    struct bench_worker *worker = slot->worker;
    const struct bench_plan *plan = worker->plan;
    const struct hpsd_result *result = &slot->results[table];
    struct bench_counts *counts = &worker->counts;

    counts->n_keys += plan->tables[table].n_keys;
    counts->n_unique += result->n_unique;
    counts->n_defaulted += result->n_defaulted;
    counts->n_unknown += result->n_unknown;
    for (uint32_t i = 0; i < result->n_tiers; i++) {
        count_tier(counts, &result->tiers[i]);
    }
    if (plan->verify) {
        bench_verify(worker, &plan->tables[table], &slot->queries[table], result);
    }
}

static void take_reply(struct bench_slot *slot, const struct hpsd_reply *reply)
{
    const struct bench_plan *plan = slot->worker->plan;

    slot->worker->counts.reply_bytes += reply->bytes;
    atomic_fetch_add_explicit(&slot->worker->live->bytes_done, reply->bytes, memory_order_relaxed);
    for (uint64_t t = 0; t < plan->n_tables; t++) {
        take_result(slot, t);
    }
    hpsd_free(reply->memory); /* the next reply gets this memory, while it is in the cache */
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void fill_slots(struct bench_worker *worker);

static void make_idle(struct bench_slot *slot)
{
    HPS_ASSERT(slot->worker->n_idle < slot->worker->n_slots);
    slot->next = slot->worker->idle;
    slot->worker->idle = slot;
    slot->worker->n_idle++;
}

static void count_end(struct bench_slot *slot, enum hpsd_status status, const char *message)
{
    struct bench_worker *worker = slot->worker;
    struct bench_counts *counts = &worker->counts;

    counts->n_by_code[(unsigned)status < BENCH_CODES ? (unsigned)status : 2]++;
    if (status == HPSD_OK) {
        counts->n_ok++;
        hps_hist_add(&worker->latency_us, hps_clock_us() - slot->start_us);
        atomic_fetch_add_explicit(&worker->live->keys_done, worker->plan->n_keys_all,
                                  memory_order_relaxed);
    } else {
        atomic_fetch_add_explicit(&worker->live->errors, 1, memory_order_relaxed);
        if (counts->error_text[0] == '\0') {
            (void)snprintf(counts->error_text, sizeof(counts->error_text), "%s: %s",
                           hpsd_status_text(status), message);
        }
    }
    atomic_fetch_add_explicit(&worker->live->requests_done, 1, memory_order_relaxed);
}

static void on_done(void *ctx, const struct hpsd_reply *reply, const struct hpsd_error *error)
{
    struct bench_slot *slot = ctx;
    struct bench_worker *worker = slot->worker;

    hps_lock_acquire(&worker->lock);
    if (reply != NULL) {
        take_reply(slot, reply);
    }
    count_end(slot, error->status, error->text);
    make_idle(slot);
    /* Without a server calls fail at once: then the other thread goes on. */
    if (reply != NULL) {
        fill_slots(worker);
    }
    if (reply == NULL || worker->n_idle == worker->n_slots) {
        hps_cond_signal(&worker->wake);
    }
    hps_lock_release(&worker->lock);
}

/* Between 0 and 2, in exact steps. */
static float draw_weight(struct hps_random *random)
{
    return (float)(hps_random_next(random) >> 40) * 0x1p-23F;
}

static void draw_keys(struct bench_slot *slot, uint64_t number)
{
    struct bench_worker *worker = slot->worker;
    const struct bench_plan *plan = worker->plan;
    const struct bench_table *table = &plan->tables[number];
    const struct hps_zipf *zipf = &table->zipf;
    hps_key *keys = slot->keys + table->first_key;
    float *weights = slot->weights == NULL ? NULL : slot->weights + table->first_key;

    for (uint64_t i = 0; i < table->n_keys; i++) {
        uint64_t row = hps_zipf_row(zipf, hps_zipf_rank(zipf, &worker->random));
        keys[i] = hps_rowgen_key(row, plan->hashed);
    }
    for (uint64_t i = 0; weights != NULL && i < table->n_keys; i++) {
        weights[i] = draw_weight(&worker->random);
    }
    slot->queries[number] = (struct hpsd_query){
        .table = table->name,
        .keys = keys,
        .n_keys = table->n_keys,
        .pooling = plan->pooling,
        .n_bags = table->n_bags,
        .offsets = table->offsets,
        .weights = weights,
        .key_status = slot->key_status == NULL ? NULL : slot->key_status + table->first_key,
    };
}

static void start_call(struct bench_slot *slot, uint64_t intended_us)
{
    const struct bench_plan *plan = slot->worker->plan;
    struct hpsd_error error;

    for (uint64_t t = 0; t < plan->n_tables; t++) {
        draw_keys(slot, t);
    }
    const struct hpsd_lookup lookup = {
        .model = plan->model,
        .queries = slot->queries,
        .n_queries = plan->n_tables,
        .concat = plan->concat,
        .output_type = plan->output_type,
        .miss_policy = plan->miss_policy,
        .max_wait_us = plan->max_wait_us,
        .timeout_us = plan->timeout_us,
        .stream = plan->stream,
        .results = slot->results,
    };
    slot->start_us = intended_us == 0 ? hps_clock_us() : intended_us;
    if (hpsd_lookup_start(slot->worker->client, &lookup, on_done, slot, NULL, &error) != HPSD_OK) {
        count_end(slot, error.status, error.text);
        make_idle(slot);
    }
}

/* Due time of the n-th start of this worker; workers alternate. */
static uint64_t due_us(const struct bench_worker *worker, uint64_t n)
{
    double number = (double)n * (double)worker->plan->n_threads + (double)worker->index;

    return atomic_load(&worker->live->start_us) + (uint64_t)(number * 1e6 / worker->plan->rate);
}

/* Takes one more request; false: none is left or due. */
static bool take_request(struct bench_worker *worker, uint64_t now_us, uint64_t *out_intended_us)
{
    HPS_ASSERT(worker->idle != NULL);
    const struct bench_plan *plan = worker->plan;
    uint64_t intended_us = 0;

    if (atomic_load_explicit(&worker->live->stop, memory_order_relaxed) ||
        (worker->end_us != 0 && now_us >= worker->end_us)) {
        return false;
    }
    if (plan->rate > 0) {
        intended_us = due_us(worker, worker->n_due_taken);
        if (intended_us > now_us) {
            return false;
        }
    }
    if (plan->n_requests != 0 &&
        atomic_fetch_add(&worker->live->requests_started, 1) >= plan->n_requests) {
        return false;
    }
    worker->n_due_taken++;
    *out_intended_us = intended_us;
    return true;
}

static void fill_slots(struct bench_worker *worker)
{
    uint64_t intended_us;

    for (uint64_t tries = worker->n_idle; tries > 0 && worker->idle != NULL; tries--) {
        if (!take_request(worker, hps_clock_us(), &intended_us)) {
            return;
        }
        struct bench_slot *slot = worker->idle;
        worker->idle = slot->next;
        worker->n_idle--;
        start_call(slot, intended_us);
    }
}

/* ---- worker ---------------------------------------------------------------------------------- */

static bool is_over(const struct bench_worker *worker, uint64_t now_us)
{
    const struct bench_plan *plan = worker->plan;

    return atomic_load(&worker->live->stop) || (worker->end_us != 0 && now_us >= worker->end_us) ||
           (plan->n_requests != 0 &&
            atomic_load(&worker->live->requests_started) >= plan->n_requests);
}

/* The lock is held, except while it waits. */
static void run_load(struct bench_worker *worker)
{
    HPS_ASSERT(worker->n_idle == worker->n_slots);
    const struct bench_plan *plan = worker->plan;
    uint64_t start_us = atomic_load(&worker->live->start_us);
    uint64_t now_us = hps_clock_us();

    worker->end_us = plan->duration_us == 0 ? 0 : start_us + plan->duration_us;
    while (!is_over(worker, now_us)) {
        uint64_t wait_us = TURN_US;
        fill_slots(worker);
        if (plan->rate > 0 && worker->idle != NULL) {
            uint64_t next_us = due_us(worker, worker->n_due_taken);
            now_us = hps_clock_us();
            wait_us = next_us <= now_us ? 0 : next_us - now_us;
            wait_us = wait_us < TURN_US ? wait_us : TURN_US;
        }
        (void)hps_cond_wait_until(&worker->wake, &worker->lock, hps_clock_us() + wait_us);
        now_us = hps_clock_us();
    }
    /* An interrupt ends the load earlier. */
    uint64_t end_us = worker->end_us < now_us ? worker->end_us : now_us;
    for (uint64_t n = worker->n_due_taken; plan->rate > 0 && due_us(worker, n) < end_us; n++) {
        worker->counts.n_unsent++;
    }
    uint64_t drain_end_us = now_us + DRAIN_US;
    while (worker->n_idle < worker->n_slots && hps_clock_us() < drain_end_us) {
        (void)hps_cond_wait_until(&worker->wake, &worker->lock, drain_end_us);
    }
}

static hps_status slot_init(struct bench_worker *worker, struct bench_slot *slot)
{
    HPS_ASSERT(worker->plan->n_tables > 0 && worker->plan->n_keys_all > 0);
    const struct bench_plan *plan = worker->plan;
    size_t n = plan->n_keys_all;

    slot->worker = worker;
    slot->keys = hps_calloc(n, sizeof(*slot->keys));
    slot->queries = hps_calloc(plan->n_tables, sizeof(*slot->queries));
    slot->results = hps_calloc(plan->n_tables, sizeof(*slot->results));
    slot->weights = plan->weighted ? hps_calloc(n, sizeof(*slot->weights)) : NULL;
    slot->key_status = plan->verify ? hps_calloc(n, 1) : NULL;
    make_idle(slot);
    return slot->keys == NULL || slot->queries == NULL || slot->results == NULL ||
                   (plan->weighted && slot->weights == NULL) ||
                   (plan->verify && slot->key_status == NULL)
               ? HPS_NO_MEMORY
               : HPS_OK;
}

static hps_status no_memory(struct bench_worker *worker)
{
    (void)snprintf(worker->err.text, sizeof(worker->err.text), "no memory for %" PRIu64 " calls",
                   worker->n_slots);
    return HPS_NO_MEMORY;
}

static hps_status worker_open(struct bench_worker *worker)
{
    HPS_ASSERT(worker->index < worker->plan->n_threads);
    const struct bench_plan *plan = worker->plan;
    struct hpsd_options options = plan->connect;

    options.connections = (uint32_t)(plan->n_connections / plan->n_threads +
                                     (worker->index < plan->n_connections % plan->n_threads));
    worker->n_slots = options.connections * plan->concurrency;
    worker->slots = hps_calloc(worker->n_slots, sizeof(*worker->slots));
    if (worker->slots == NULL) {
        return no_memory(worker);
    }
    for (uint64_t i = 0; i < worker->n_slots; i++) {
        if (slot_init(worker, &worker->slots[i]) != HPS_OK) {
            return no_memory(worker);
        }
    }
    enum hpsd_status status = hpsd_open(&options, &worker->client, &worker->err);
    if (status == HPSD_OK) {
        status = hpsd_connect(worker->client, CONNECT_US, &worker->err);
    }
    return hps_status_of_grpc((int)status);
}

static void worker_close(struct bench_worker *worker)
{
    hpsd_close(worker->client);
    for (uint64_t i = 0; worker->slots != NULL && i < worker->n_slots; i++) {
        hps_free(worker->slots[i].keys);
        hps_free(worker->slots[i].weights);
        hps_free(worker->slots[i].key_status);
        hps_free(worker->slots[i].queries);
        hps_free(worker->slots[i].results);
    }
    bench_check_free(&worker->check);
    hps_free(worker->slots);
    hps_cond_fini(&worker->wake);
    hps_lock_fini(&worker->lock);
}

void *bench_worker_run(void *ctx)
{
    struct bench_worker *worker = ctx;
    struct bench_live *live = worker->live;

    hps_lock_init(&worker->lock, HPS_LOCK_BENCH);
    hps_cond_init(&worker->wake);
    worker->random.state = hps_mix64(worker->plan->seed) + worker->index;
    worker->status = worker_open(worker);
    if (worker->status != HPS_OK) {
        atomic_store(&live->stop, true);
    }
    atomic_fetch_add(&live->n_ready, 1);
    hps_lock_acquire(&worker->lock);
    while (worker->status == HPS_OK && !atomic_load(&live->stop) &&
           atomic_load(&live->start_us) == 0) {
        (void)hps_cond_wait_until(&worker->wake, &worker->lock, hps_clock_us() + READY_US);
    }
    if (worker->status == HPS_OK && !atomic_load(&live->stop)) {
        run_load(worker);
    }
    hps_lock_release(&worker->lock);
    atomic_store(&live->stop, atomic_load(&live->stop) || worker->status != HPS_OK);
    worker_close(worker);
    atomic_fetch_sub(&live->n_running, 1);
    return NULL;
}
