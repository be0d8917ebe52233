/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-bench: the load. Runs on worker threads. Each has its own loop, connections and slots, and
 * shares only struct bench_live.
 *
 * A slot is one call in flight. Closed loop: when the call of a slot has ended, the slot starts the
 * next one. Open loop: starts are due at fixed times, whether or not a slot is free, and latency
 * counts from the due time.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "base/text.h"
#include "client/lookup.h"
#include "net/loop.h"
#include "tools/hps-bench.h"

enum { TURN_US = 20 * 1000, REQUEST_BYTES_MAX = 64 << 20, DRAIN_US = 30 * 1000 * 1000 };

struct bench_slot {
    struct bench_worker *worker;
    struct hps_grpc_channel *channel;
    struct bench_slot *next; /* list of idle slots */
    struct hps_buf request;
    hps_key *keys;  /* [n_tables][n_keys] */
    float *weights; /* [n_tables][n_keys]; NULL: all 1 */
    struct hps_client_lookup_query *queries;
    uint64_t start_us; /* start of the call, or its due time */
    /* Progress of the reply: the next row of the current table, or of the matrix. */
    uint64_t table_at;
    uint64_t row_at;
    bool broken;
};

/* ---- replies --------------------------------------------------------------------------------- */

static void count_tier(struct bench_counts *counts, const struct hps_client_lookup_tier *tier)
{
    HPS_ASSERT(tier->name.data != NULL);
    for (unsigned i = 0; i < BENCH_TIERS_MAX; i++) {
        struct bench_tier *into = &counts->tiers[i];
        if (into->name[0] == '\0' && tier->name.size > 0 && tier->name.size < sizeof(into->name)) {
            memcpy(into->name, tier->name.data, tier->name.size);
        }
        if (strlen(into->name) == tier->name.size &&
            memcmp(into->name, tier->name.data, tier->name.size) == 0) {
            into->found_keys += tier->found_keys;
            return;
        }
    }
}

static void break_slot(struct bench_slot *slot, const char *text)
{
    HPS_ASSERT(text[0] != '\0');
    struct bench_counts *counts = &slot->worker->counts;

    slot->broken = true;
    if (counts->error_text[0] == '\0') {
        (void)snprintf(counts->error_text, sizeof(counts->error_text), "%s", text);
    }
}

/* Takes one result: the next rows of a table. */
static void take_result(struct bench_slot *slot, uint64_t table,
                        const struct hps_client_lookup_result *result)
{
    HPS_ASSERT(table < slot->worker->plan->n_tables);
    struct bench_worker *worker = slot->worker;
    const struct bench_plan *plan = worker->plan;
    const struct hps_client_lookup_query *query = &slot->queries[table];
    struct bench_counts *counts = &worker->counts;
    struct hps_error err = {0};

    if (hps_client_lookup_check(query, slot->row_at, result, &err) != HPS_OK) {
        break_slot(slot, err.text);
        return;
    }
    counts->n_keys += hps_client_lookup_first_key(query, slot->row_at + result->row_count) -
                      hps_client_lookup_first_key(query, slot->row_at);
    counts->n_unique += result->unique_key_count;
    counts->n_defaulted += result->defaulted_key_count;
    counts->n_unknown += result->unknown_key_count;
    for (uint32_t i = 0; i < result->n_tiers; i++) {
        count_tier(counts, &result->tiers[i]);
    }
    if (plan->verify) {
        bench_verify(worker, &plan->tables[table], query, slot->row_at, result);
    }
}

/* Advances past these rows, to the next table or to the end. */
static void pass_rows(struct bench_slot *slot, uint32_t n_rows)
{
    const struct bench_plan *plan = slot->worker->plan;

    slot->row_at += n_rows;
    if (slot->row_at == plan->n_rows) {
        slot->row_at = 0;
        slot->table_at = plan->concat ? plan->n_tables : slot->table_at + 1;
    }
}

/* In a matrix, each result has the same rows of another table. Otherwise tables come one after the
 * other. */
static void take_results(struct bench_slot *slot, struct hps_client_lookup_reply *reply)
{
    const struct bench_plan *plan = slot->worker->plan;
    struct hps_client_lookup_result result = {0};
    struct hps_error err = {0};

    if (plan->concat && (reply->n_results != plan->n_tables || slot->table_at > 0)) {
        break_slot(slot, "expected one result for each table in the reply");
        return;
    }
    for (uint32_t i = 0; i < reply->n_results && !slot->broken; i++) {
        if (hps_client_lookup_reply_next(reply, &result, &err) != HPS_OK) {
            break_slot(slot, err.text);
            return;
        }
        uint64_t table = plan->concat ? i : slot->table_at;
        if (table == plan->n_tables) {
            break_slot(slot, "the reply has more rows than requested");
            return;
        }
        take_result(slot, table, &result);
        if (!plan->concat && !slot->broken) {
            pass_rows(slot, result.row_count);
        }
    }
    if (plan->concat && !slot->broken) {
        pass_rows(slot, result.row_count);
    }
}

static void on_message(void *ctx, const uint8_t *data, size_t size)
{
    struct bench_slot *slot = ctx;
    struct hps_client_lookup_reply reply;
    struct hps_error err = {0};

    slot->worker->counts.reply_bytes += size;
    atomic_fetch_add_explicit(&slot->worker->live->bytes_done, size, memory_order_relaxed);
    if (hps_client_lookup_reply_open(data, size, &reply, &err) != HPS_OK) {
        break_slot(slot, err.text);
        return;
    }
    take_results(slot, &reply);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void start_call(struct bench_slot *slot, uint64_t intended_us);
static void fill_slots(struct bench_worker *worker);

static void make_idle(struct bench_slot *slot)
{
    HPS_ASSERT(slot->worker->n_idle < slot->worker->n_slots);
    slot->next = slot->worker->idle;
    slot->worker->idle = slot;
    slot->worker->n_idle++;
}

static void count_end(struct bench_slot *slot, int code, const char *message)
{
    struct bench_worker *worker = slot->worker;
    struct bench_counts *counts = &worker->counts;
    unsigned at = code >= 0 && code < BENCH_CODES ? (unsigned)code : 2;

    counts->n_by_code[at]++;
    if (code == 0) {
        counts->n_ok++;
        hps_hist_add(&worker->latency_us, hps_clock_us() - slot->start_us);
        atomic_fetch_add_explicit(&worker->live->keys_done,
                                  worker->plan->n_tables * worker->plan->n_keys,
                                  memory_order_relaxed);
    } else {
        atomic_fetch_add_explicit(&worker->live->errors, 1, memory_order_relaxed);
        if (counts->error_text[0] == '\0') {
            char raw[sizeof(counts->error_text)]; /* the server sent this text */
            (void)snprintf(raw, sizeof(raw), "%s: %s", hps_status_text(hps_client_status(code)),
                           message == NULL ? "" : message);
            (void)hps_text_plain(raw, strlen(raw), counts->error_text, sizeof(counts->error_text));
        }
    }
    atomic_fetch_add_explicit(&worker->live->requests_done, 1, memory_order_relaxed);
}

static void on_done(void *ctx, int grpc_code, const char *message)
{
    static const int data_loss = 15;
    struct bench_slot *slot = ctx;

    if (grpc_code == 0 && !slot->broken && slot->table_at != slot->worker->plan->n_tables) {
        break_slot(slot, "the reply has fewer rows than requested");
    }
    count_end(slot, grpc_code == 0 && slot->broken ? data_loss : grpc_code, message);
    make_idle(slot);
    /* Without a server calls fail at once: then wait for the next turn of the worker. */
    if (grpc_code == 0) {
        fill_slots(slot->worker);
    }
}

/* Between 0 and 2, in exact steps. */
static float draw_weight(struct hps_random *random)
{
    return (float)(hps_random_next(random) >> 40) * 0x1p-23F;
}

static void draw_keys(struct bench_slot *slot, uint64_t table)
{
    struct bench_worker *worker = slot->worker;
    const struct bench_plan *plan = worker->plan;
    const struct hps_zipf *zipf = &plan->tables[table].zipf;
    hps_key *keys = slot->keys + table * plan->n_keys;
    float *weights = slot->weights == NULL ? NULL : slot->weights + table * plan->n_keys;

    for (uint64_t i = 0; i < plan->n_keys; i++) {
        uint64_t row = hps_zipf_row(zipf, hps_zipf_rank(zipf, &worker->random));
        keys[i] = hps_rowgen_key(row, plan->hashed);
    }
    for (uint64_t i = 0; weights != NULL && i < plan->n_keys; i++) {
        weights[i] = draw_weight(&worker->random);
    }
    slot->queries[table] = (struct hps_client_lookup_query){
        .table = plan->tables[table].name,
        .keys = keys,
        .n_keys = plan->n_keys,
        .pooling = plan->pooling,
        .n_bags = plan->offsets == NULL ? 0 : plan->n_rows,
        .offsets = plan->offsets,
        .weights = weights,
    };
}

static hps_status draw_request(struct bench_slot *slot)
{
    HPS_ASSERT(slot->keys != NULL && slot->queries != NULL);
    const struct bench_plan *plan = slot->worker->plan;

    for (uint64_t t = 0; t < plan->n_tables; t++) {
        draw_keys(slot, t);
    }
    hps_buf_clear(&slot->request);
    struct hps_client_lookup lookup = {
        .model = plan->model,
        .queries = slot->queries,
        .n_queries = plan->n_tables,
        .miss_policy = plan->miss_policy,
        .max_wait_us = plan->max_wait_us,
        .output_type = plan->output_type,
        .row_layout = plan->concat ? HPS_CLIENT_LOOKUP_CONCAT : 0,
    };
    return hps_client_lookup_encode(&lookup, &slot->request);
}

static hps_status send_request(struct bench_slot *slot, uint64_t deadline_us)
{
    static const struct hps_grpc_client_events events = {on_message, on_done};

    return hps_grpc_client_start(slot->channel, slot->worker->plan->method, slot->request.data,
                                 slot->request.size, deadline_us, &events, slot, NULL);
}

static void start_call(struct bench_slot *slot, uint64_t intended_us)
{
    const struct bench_plan *plan = slot->worker->plan;
    hps_status status = draw_request(slot);
    uint64_t now_us = hps_clock_us();

    slot->start_us = intended_us == 0 ? now_us : intended_us;
    slot->table_at = 0;
    slot->row_at = 0;
    slot->broken = false;
    if (status == HPS_OK) {
        status = send_request(slot, now_us + plan->timeout_us);
    }
    if (status != HPS_OK) {
        count_end(slot, hps_status_grpc_code(status), hps_status_text(status));
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
        hps_loop_turn(worker->loop, wait_us);
        now_us = hps_clock_us();
    }
    for (uint64_t n = worker->n_due_taken;
         plan->rate > 0 && worker->end_us != 0 && due_us(worker, n) < worker->end_us; n++) {
        worker->counts.n_unsent++;
    }
    uint64_t drain_end_us = now_us + DRAIN_US;
    while (worker->n_idle < worker->n_slots && hps_clock_us() < drain_end_us) {
        hps_loop_turn(worker->loop, TURN_US);
    }
}

static hps_status slot_init(struct bench_worker *worker, struct bench_slot *slot,
                            struct hps_client *client)
{
    HPS_ASSERT(worker->plan->n_tables > 0 && worker->plan->n_keys > 0);
    const struct bench_plan *plan = worker->plan;

    slot->worker = worker;
    hps_buf_init(&slot->request, REQUEST_BYTES_MAX);
    slot->channel = hps_client_channel(client);
    slot->keys = hps_calloc(plan->n_tables * plan->n_keys, sizeof(*slot->keys));
    slot->queries = hps_calloc(plan->n_tables, sizeof(*slot->queries));
    make_idle(slot);
    if (plan->weighted) {
        slot->weights = hps_calloc(plan->n_tables * plan->n_keys, sizeof(*slot->weights));
    }
    return slot->keys == NULL || slot->queries == NULL || (plan->weighted && slot->weights == NULL)
               ? HPS_NO_MEMORY
               : HPS_OK;
}

static hps_status worker_open(struct bench_worker *worker)
{
    HPS_ASSERT(worker->index < worker->plan->n_threads);
    const struct bench_plan *plan = worker->plan;
    struct hps_client_options options = plan->connect;
    hps_status status = hps_loop_new(&worker->loop, &worker->err);

    if (status != HPS_OK) {
        return status;
    }
    options.loop = worker->loop;
    uint64_t share = plan->n_connections / plan->n_threads +
                     (worker->index < plan->n_connections % plan->n_threads);
    worker->n_slots = share * plan->concurrency;
    worker->clients = hps_calloc(share, sizeof(struct hps_client *));
    worker->slots = hps_calloc(worker->n_slots, sizeof(*worker->slots));
    if (worker->clients == NULL || worker->slots == NULL) {
        return hps_error_set(&worker->err, HPS_NO_MEMORY, "no memory for %" PRIu64 " calls",
                             worker->n_slots);
    }
    for (uint64_t c = 0; c < share; c++) {
        status = hps_client_open(&options, &worker->clients[c], &worker->err);
        if (status != HPS_OK) {
            return status;
        }
        worker->n_clients++;
        for (uint64_t i = 0; i < plan->concurrency; i++) {
            status = slot_init(worker, &worker->slots[i * share + c], worker->clients[c]);
            if (status != HPS_OK) {
                return hps_error_set(&worker->err, status, "no memory for keys");
            }
        }
    }
    return HPS_OK;
}

static void worker_close(struct bench_worker *worker)
{
    HPS_ASSERT(worker->n_clients == 0 || worker->clients != NULL);
    for (uint64_t c = 0; c < worker->n_clients; c++) {
        hps_client_close(worker->clients[c]);
    }
    for (uint64_t i = 0; worker->slots != NULL && i < worker->n_slots; i++) {
        hps_buf_fini(&worker->slots[i].request);
        hps_free(worker->slots[i].keys);
        hps_free(worker->slots[i].weights);
        hps_free(worker->slots[i].queries);
    }
    bench_check_free(&worker->check);
    hps_free(worker->slots);
    hps_free(worker->clients);
    hps_loop_free(worker->loop);
}

void *bench_worker_run(void *ctx)
{
    struct bench_worker *worker = ctx;
    struct bench_live *live = worker->live;

    worker->random.state = hps_mix64(worker->plan->seed) + worker->index;
    worker->status = worker_open(worker);
    if (worker->status != HPS_OK) {
        atomic_store(&live->stop, true);
    }
    atomic_fetch_add(&live->n_ready, 1);
    while (worker->status == HPS_OK && !atomic_load(&live->stop) &&
           atomic_load(&live->start_us) == 0) {
        hps_loop_turn(worker->loop, 1000);
    }
    if (worker->status == HPS_OK && !atomic_load(&live->stop)) {
        run_load(worker);
    }
    atomic_store(&live->stop, atomic_load(&live->stop) || worker->status != HPS_OK);
    worker_close(worker);
    atomic_fetch_sub(&live->n_running, 1);
    return NULL;
}
