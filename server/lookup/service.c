/* SPDX-License-Identifier: Apache-2.0
 *
 * The two look-up methods. A request belongs to the loop thread of its connection but while a
 * worker runs it; it lives as long as somebody holds it: the call until it closes, the admission
 * queue, the worker, the gpu, and each callback that is running.
 *
 *     on_message ─▶ decode, pin, plan ─▶ admission ─┬─▶ memory tiers, here ─┬───────────▶ reply
 *                                        │ (waits)  └─▶ worker ─────────────┤ (rest)      ▲
 *                                        └─ on_granted: posted to the loop  └─▶ I/O thread ┘
 *
 * Workers and I/O threads post it back to the loop. What waits for one of them is withdrawn when
 * the client goes; and answered with what is there when the client waits for rows no longer.
 *
 * The gpu, where a version has one, is asked by the loop before the memory tiers or after them, and
 * posts back: no thread waits for it. A device that writes cannot be called back: what it was asked
 * for is held until it has answered, whoever has gone, and whatever else the request has been
 * answered with meanwhile.
 *
 * A request that wants a unit may find that updates came between its rows: then an I/O thread reads
 * those again that they have changed, and at last, if they come each time, while it holds them
 * back. For that it stands in line without a thread (cache/update/update.h), and holds nothing back
 * until it is read; a client that has had its share waits a little and tries again. Or it finds
 * that the only copy of a row, which other daemons update too, is ahead of them: then it waits a
 * little, on no thread, for its own updates, and is looked up from the beginning.
 */
#include "server/lookup/service.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cache/update/update.h"
#include "net/loop.h"
#include "server/lookup/decode.h"
#include "server/lookup/encode.h"
#include "server/observe/stages.h"

enum {
    ARENA_BYTES_FIRST = 32 * 1024,
    /* Of a look-up's arena: keys twice, slots, set, duplicates, status, marks of the stream. Beside
     * narrow rows this is most of what a look-up holds. */
    WORK_BYTES_PER_KEY = 50,
    SCRATCH_BYTES_FIRST = 16 * 1024,
    SCRATCH_BYTES_MAX = 64 * 1024 * 1024,
    STREAM_QUEUED_LOW = 2 * HPS_STREAM_MESSAGE_BYTES_MAX,
    TABLES_SCANNED_MAX = 16, /* more than this many tables are found by hash */
    NOTES_MAX = 64,
    UNIT_WAIT_US = 1000, /* the first time; then each time twice as long: a second in all */
    UNIT_WAITS_MAX = 10
};

/* What a client that was refused for want of room should wait before it tries again. */
static const char PUSHBACK_NAME[] = "grpc-retry-pushback-ms";
static const char PUSHBACK_MS[] = "100";

#define CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* Of a look-up, what is done without waiting: memory tiers, then what the gpu had of the rest. */
enum step { STEP_MEMORY, STEP_GPU };

struct request {
    struct request *next_idle;
    struct hps_arena *arena;
    struct hps_arena *scratch;

    /* From here on zeroed for each request. */
    struct hps_lookup_service *service;
    struct hps_grpc_call *call;
    struct hps_loop *loop;
    unsigned n_holders; /* loop thread */
    bool streaming;
    bool closed; /* on_close was called */
    bool explain;
    bool pumping;
    struct hps_admission_ticket ticket;
    uint64_t queue_us_max; /* of its wait */
    struct hps_timer queue_timer;
    struct hps_task task;        /* to a worker, an I/O thread or the loop */
    struct hps_pool *pool;       /* that the task was posted to, until it is back; NULL: none */
    struct hps_timer wait_timer; /* of one that waits so long for rows: of the gpu, or for an I/O
                                    thread; or of a unit, before it is read again */
    enum step step;              /* what a worker does, or did */
    bool step_done;              /* it: all keys are answered */
    bool gpu_first;              /* the gpu is asked before the memory tiers, not after them */
    bool at_gpu;                 /* it has the look-up */
    struct hps_task gpu_task;    /* from the gpu to the loop */
    struct hps_version *gpu_version; /* with a pin, of a look-up that was left there */
    struct hps_update_hold hold;     /* of one that wants a unit */
    bool hold_waits;                 /* in line */
    unsigned n_tries;                /* from the beginning, but for those that found rows ahead */
    unsigned n_waits;                /* for updates after those, or for the client's share */
    bool unit_waits;                 /* now */
    bool rereads;                    /* an I/O thread is to read rows again, or does */
    bool reread;                     /* it did, beside updates */
    bool held;                       /* the same while they were held back */
    struct hps_lookup lookup;
    struct hps_stream *stream;
    hps_status status; /* of the worker */
    struct hps_error err;
    int code; /* of the call, -1: not ended by us */
    uint64_t start_us;
    uint64_t closed_us;
    bool encoded;
    uint64_t gpu_done_us; /* by the gpu tier's thread, before gpu_task is posted */
    struct hps_stages stages;
    struct hps_slow_request slow;
};

struct hps_lookup_service {
    struct hps_lookup_service_parts parts; /* limits: the next three are what holds */
    _Atomic uint32_t tables_max;
    _Atomic uint32_t keys_max;
    _Atomic uint64_t queue_us_max;
    struct hps_grpc_method methods[2];
    struct hps_grpc_service grpc;
    pthread_mutex_t lock;
    struct request *idle;
    uint32_t n_idle;
    uint32_t n_used;
};

/* ---- requests -------------------------------------------------------------------------------- */

static void request_free(struct request *request)
{
    if (request == NULL) {
        return;
    }
    hps_arena_free(request->arena);
    hps_arena_free(request->scratch);
    hps_free(request);
}

static struct request *request_make(void)
{
    struct request *request = hps_calloc(1, sizeof(*request));

    if (request == NULL) {
        return NULL;
    }
    /* No limit of its own: the decoder's limits on queries and keys are the limit, and they may
     * change while this waits for its next request. */
    request->arena = hps_arena_new(ARENA_BYTES_FIRST, SIZE_MAX);
    request->scratch = hps_arena_new(SCRATCH_BYTES_FIRST, SCRATCH_BYTES_MAX);
    if (request->arena == NULL || request->scratch == NULL) {
        request_free(request);
        return NULL;
    }
    return request;
}

static struct request *request_take(struct hps_lookup_service *service)
{
    struct request *request;

    pthread_mutex_lock(&service->lock);
    request = service->idle;
    if (request != NULL) {
        service->idle = request->next_idle;
        service->n_idle--;
    }
    service->n_used++;
    pthread_mutex_unlock(&service->lock);
    if (request == NULL) {
        request = request_make();
    }
    if (request == NULL) {
        pthread_mutex_lock(&service->lock);
        service->n_used--;
        pthread_mutex_unlock(&service->lock);
    }
    return request;
}

static void request_give(struct hps_lookup_service *service, struct request *request)
{
    bool keep;

    hps_arena_reset(request->arena);
    hps_arena_reset(request->scratch);
    pthread_mutex_lock(&service->lock);
    keep = service->n_idle < service->parts.limits.arenas_idle_max;
    if (keep) {
        request->next_idle = service->idle;
        service->idle = request;
        service->n_idle++;
    }
    service->n_used--;
    pthread_mutex_unlock(&service->lock);
    if (!keep) {
        request_free(request);
    }
}

static void request_hold(struct request *request)
{
    HPS_ASSERT(request->n_holders > 0);
    request->n_holders++;
}

/* Rows are copied or of no use any more: let the catalog have the version. */
static void unpin(struct request *request)
{
    if (request->lookup.version != NULL) {
        hps_version_unpin(request->lookup.version);
        request->lookup.version = NULL;
    }
}

static int code_of_closed(const struct request *request)
{
    uint64_t deadline_us = request->lookup.deadline_us;

    /* An answer that the client did not take to its end was no success. */
    if (request->code > 0 || (request->code == 0 && !hps_grpc_call_cancelled(request->call))) {
        return request->code;
    }
    return hps_status_grpc_code(
        deadline_us != 0 && request->closed_us >= deadline_us ? HPS_DEADLINE : HPS_CANCELLED);
}

/* What tiers, and waiting for other look-ups, had of the time that the look-up worked since this
 * was asked last. The stage of work has ended. */
static void name_work(struct request *request)
{
    static const enum hps_stage stages[HPS_TIER_COUNT] = {[HPS_TIER_HOST] = HPS_STAGE_HOST,
                                                          [HPS_TIER_REDIS] = HPS_STAGE_REDIS,
                                                          [HPS_TIER_ROCKSDB] = HPS_STAGE_ROCKSDB};
    struct hps_lookup *lookup = &request->lookup;

    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        if (kind != HPS_TIER_GPU) { /* nobody works while it is asked */
            hps_stages_name(&request->stages, HPS_STAGE_WORK, stages[kind], lookup->tier_us[kind]);
        }
        lookup->tier_us[kind] = 0;
    }
    hps_stages_name(&request->stages, HPS_STAGE_WORK, HPS_STAGE_WAIT, lookup->others_us);
    lookup->others_us = 0;
}

static void account(struct request *request)
{
    const struct hps_service_metrics *metrics = request->service->parts.metrics;
    struct hps_slow_request *slow = &request->slow;

    slow->grpc_code = code_of_closed(request);
    slow->duration_us = request->closed_us - request->start_us;
    slow->n_keys = request->lookup.n_keys;
    hps_stages_enter_at(&request->stages, request->stages.now, request->closed_us);
    name_work(request);
    memcpy(slow->stage_us, request->stages.us, sizeof(slow->stage_us));
    if (request->encoded) {
        for (unsigned i = 0; i < HPS_STAGE_COUNT; i++) {
            hps_metric_observe_us(metrics->stage_duration[i], slow->stage_us[i]);
        }
    }
    hps_slowlog_add(request->service->parts.slowlog, slow);
    hps_metric_gauge_add(metrics->requests_in_flight, -1);
}

static void request_drop(struct request *request)
{
    struct hps_lookup_service *service = request->service;

    HPS_ASSERT(request->n_holders > 0);
    if (--request->n_holders > 0) {
        return;
    }
    HPS_ASSERT(request->closed);
    account(request);
    unpin(request);
    hps_block_unref(request->lookup.block);
    hps_admission_release(service->parts.admission, &request->ticket);
    hps_grpc_call_unref(request->call);
    request_give(service, request);
}

/* End the call with an error. */
static void request_fail(struct request *request, hps_status status, const struct hps_error *err)
{
    if (request->closed || request->code >= 0) {
        return;
    }
    hps_stages_enter(&request->stages, HPS_STAGE_SEND);
    request->code = hps_status_grpc_code(status);
    hps_grpc_call_fail(request->call, err);
}

/* End the call for want of room: the client is told when to come back. */
static void request_reject(struct request *request, enum hps_reject reason,
                           const struct hps_error *err)
{
    hps_metric_add(request->service->parts.metrics->rejected[reason], 1);
    if (request->closed) {
        return;
    }
    /* Without the hint the client falls back to its own pace. */
    hps_ignore(hps_grpc_call_add_trailer(request->call, PUSHBACK_NAME, PUSHBACK_MS,
                                         sizeof(PUSHBACK_MS) - 1));
    request_fail(request, err->status, err);
}

/* ---- decode, pin, plan ----------------------------------------------------------------------- */

/* Bytes of a client as text that fits: a stock client refuses a whole answer, the slow log say, for
 * one string in it that is not UTF-8. */
static void copy_text(char *to, size_t to_size, const char *from, size_t from_size)
{
    size_t size = 0;

    for (size_t at = 0; at < from_size;) {
        uint32_t point = 0;
        size_t length = hps_utf8_decode(from + at, from_size - at, &point);
        bool good = length > 0 && point != 0;

        length = good ? length : 1;
        if (size + length >= to_size) {
            break;
        }
        memcpy(to + size, good ? from + at : "?", length);
        size += length;
        at += length;
    }
    to[size] = '\0';
}

static void note_identity(struct request *request, const struct hps_lookup_request *message)
{
    struct hps_slow_request *slow = &request->slow;
    const char *id = message->request_id;
    size_t id_size = message->request_id_size;
    const char *peer = hps_grpc_call_peer(request->call);

    if (id == NULL) {
        id = hps_grpc_call_header(request->call, "x-request-id", &id_size);
    }
    size_t parent_size = 0;
    const char *parent = hps_grpc_call_header(request->call, "traceparent", &parent_size);
    (void)hps_trace_id(parent, parent_size, slow->trace_id);
    copy_text(slow->request_id, sizeof(slow->request_id), id, id == NULL ? 0 : id_size);
    copy_text(slow->model, sizeof(slow->model), message->model, message->model_size);
    copy_text(slow->peer, sizeof(slow->peer), peer, peer == NULL ? 0 : strlen(peer));
}

/* Tables by name for requests that name many: open addressing over name hashes, ids plus one. */
struct table_index {
    const struct hps_version *version;
    uint32_t *slots;
    uint32_t mask;
};

static hps_status table_index_build(struct table_index *index, struct hps_arena *arena)
{
    uint32_t size = 16;

    while (size < 2 * index->version->n_tables) {
        size *= 2;
    }
    index->slots = hps_arena_calloc(arena, size, sizeof(*index->slots));
    if (index->slots == NULL) {
        return HPS_EXHAUSTED;
    }
    index->mask = size - 1;
    for (uint32_t i = 0; i < index->version->n_tables; i++) {
        const char *name = index->version->tables[i].name;
        uint32_t at = (uint32_t)hps_hash_bytes(name, strlen(name), 0) & index->mask;

        while (index->slots[at] != 0) {
            at = (at + 1) & index->mask;
        }
        index->slots[at] = i + 1;
    }
    return HPS_OK;
}

static uint32_t table_index_find(const struct table_index *index, const char *name, size_t size)
{
    uint32_t at = (uint32_t)hps_hash_bytes(name, size, 0) & index->mask;

    for (; index->slots[at] != 0; at = (at + 1) & index->mask) {
        if (hps_text_is(index->version->tables[index->slots[at] - 1].name, name, size)) {
            return index->slots[at] - 1;
        }
    }
    return UINT32_MAX;
}

/* Which table query i means: by name, or the i-th one. */
static hps_status find_table(struct table_index *index, struct hps_arena *arena,
                             const struct hps_lookup_query *query, uint32_t i, uint32_t *out_table,
                             struct hps_error *err)
{
    const struct hps_version *version = index->version;
    uint32_t table = hps_version_table_at(version, i);

    if (query->table_size == 0 && i >= version->n_places) {
        return hps_error_set(err, HPS_INVALID,
                             "queries[%u].table: empty, and model '%s' has %u tables", i,
                             version->model, version->n_places);
    }
    if (query->table_size == 0 && table == UINT32_MAX) {
        return hps_error_set(err, HPS_NOT_FOUND,
                             "queries[%u].table: empty, and version %" PRId64
                             " of model '%s' lacks that table, which other versions have",
                             i, version->number, version->model);
    }
    if (table != UINT32_MAX &&
        (query->table_size == 0 ||
         hps_text_is(version->tables[table].name, query->table, query->table_size))) {
        *out_table = table;
        return HPS_OK;
    }
    if (version->n_tables <= TABLES_SCANNED_MAX) {
        table = hps_version_table(version, query->table, query->table_size);
    } else if (index->slots != NULL || table_index_build(index, arena) == HPS_OK) {
        table = table_index_find(index, query->table, query->table_size);
    } else {
        return hps_error_set(err, HPS_EXHAUSTED, "no memory for %u tables", version->n_tables);
    }
    if (table == UINT32_MAX) {
        return hps_error_set(
            err, HPS_NOT_FOUND,
            "queries[%u].table: model '%s' version %" PRId64 " has no table '%.*s'", i,
            version->model, version->number,
            (int)(query->table_size < 128 ? query->table_size : 128), query->table);
    }
    *out_table = table;
    return HPS_OK;
}

/* The message is only valid in its callback, and the look-up may run later and elsewhere: 8 bytes a
 * key are copied, against a row each that is gathered. */
static hps_status make_part(struct request *request, const struct hps_lookup_query *query,
                            uint32_t table, struct hps_lookup_part *part)
{
    part->table = &request->lookup.version->tables[table];
    part->n_keys = query->n_keys;
    if (query->n_keys == 0) {
        return HPS_OK;
    }
    size_t size = (size_t)query->n_keys * sizeof(hps_key);
    uint8_t *keys = hps_arena_alloc(request->arena, size);
    if (keys == NULL) {
        return HPS_EXHAUSTED;
    }
    memcpy(keys, query->keys, size);
    part->keys = keys;
    return HPS_OK;
}

static hps_status make_parts(struct request *request, const struct hps_lookup_request *message,
                             struct hps_error *err)
{
    struct hps_lookup *lookup = &request->lookup;
    struct table_index index = {.version = lookup->version};

    lookup->parts =
        hps_arena_calloc(request->arena, message->n_queries + (size_t)1, sizeof(*lookup->parts));
    if (lookup->parts == NULL) {
        return hps_error_set(err, HPS_EXHAUSTED, "no memory for %u queries", message->n_queries);
    }
    for (uint32_t i = 0; i < message->n_queries; i++) {
        uint32_t table = 0;
        hps_status status =
            find_table(&index, request->arena, &message->queries[i], i, &table, err);
        if (status != HPS_OK) {
            return status;
        }
        status = make_part(request, &message->queries[i], table, &lookup->parts[i]);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "queries[%u]: no memory for %u keys", i,
                                 message->queries[i].n_keys);
        }
    }
    lookup->n_parts = message->n_queries;
    return HPS_OK;
}

static bool call_cancelled(const void *ctx)
{
    return hps_grpc_call_cancelled(ctx);
}

/* Another replica may be fresher. */
static hps_status check_staleness(const struct hps_version *version, uint32_t staleness_ms_max,
                                  struct hps_error *err)
{
    if (staleness_ms_max == 0) {
        return HPS_OK;
    }
    int64_t age_ms = hps_update_age_ms(version);
    if (age_ms >= 0 && age_ms <= (int64_t)staleness_ms_max) {
        return HPS_OK;
    }
    if (age_ms < 0) {
        return hps_error_set(
            err, HPS_UNAVAILABLE,
            "max_staleness_ms: got %" PRIu32 ", but the age of version %" PRId64
            " is not known: it takes no updates, has no topic, or has not caught up "
            "yet; hpsctl updates says which",
            staleness_ms_max, version->number);
    }
    return hps_error_set(err, HPS_UNAVAILABLE,
                         "max_staleness_ms: got %" PRIu32 ", but version %" PRId64
                         " may lack updates of the last %" PRId64 " ms",
                         staleness_ms_max, version->number, age_ms);
}

static hps_status prepare(struct request *request, const uint8_t *data, size_t size,
                          struct hps_error *err)
{
    struct hps_lookup_service *service = request->service;
    struct hps_lookup *lookup = &request->lookup;
    struct hps_lookup_request message;
    const struct hps_decode_limits limits = {.tables_max = atomic_load(&service->tables_max),
                                             .keys_max = atomic_load(&service->keys_max),
                                             .request_id_max = HPS_REQUEST_ID_MAX};
    hps_status status = hps_decode_lookup(data, size, &limits, request->arena, &message, err);

    if (status != HPS_OK) {
        return status;
    }
    note_identity(request, &message);
    if (message.model_size == 0) {
        return hps_error_set(err, HPS_INVALID, "model: empty");
    }
    status = hps_models_pin(service->parts.models, message.model, message.model_size,
                            message.version, &lookup->version, err);
    if (status != HPS_OK) {
        return status;
    }
    status = check_staleness(lookup->version, message.max_staleness_ms, err);
    if (status != HPS_OK) {
        return status;
    }
    request->slow.version = lookup->version->number;
    request->explain = message.explain;
    lookup->arena = request->arena;
    lookup->scratch = request->scratch;
    lookup->miss_policy = message.miss_policy;
    lookup->unknown_policy = message.unknown_policy;
    lookup->output = message.output;
    lookup->unit = message.unit;
    lookup->wait_us_max = message.max_wait_us;
    lookup->deadline_us = hps_grpc_call_deadline_us(request->call);
    lookup->cancelled = call_cancelled;
    lookup->cancelled_ctx = request->call;
    lookup->metrics = &service->parts.metrics->lookup;
    lookup->insertion = service->parts.insertion;
    lookup->path = service->parts.path;
    lookup->blocks = service->parts.blocks;
    status = make_parts(request, &message, err);
    return status == HPS_OK ? hps_lookup_plan(lookup, err) : status;
}

/* ---- reply ----------------------------------------------------------------------------------- */

static const char *printed_note(struct hps_arena *arena, const char *table, const char *what,
                                uint32_t n, uint32_t of)
{
    char text[256];
    int size = snprintf(text, sizeof(text), "table '%s': %s %u of %u", table, what, n, of);

    return size < 0 ? NULL : hps_arena_strndup(arena, text, strlen(text));
}

static void add_note(struct hps_encode_explain *explain, const char **notes, const char *note)
{
    if (note != NULL && explain->n_notes < NOTES_MAX) {
        notes[explain->n_notes++] = note;
    }
}

/* NULL: the tier was not asked. */
static const char *tier_note(struct request *request, const struct hps_lookup_part *part,
                             const char *tier, const struct hps_tier_report *report)
{
    char what[64];

    if (report->n_asked == 0) {
        return NULL;
    }
    snprintf(what, sizeof(what), "%s (%s) found", tier, hps_status_text(report->status));
    return printed_note(request->arena, part->table->name, what, report->n_found - report->n_shared,
                        report->n_asked);
}

/* Why the keys of a part got what they got. */
static void explain_part(struct request *request, const struct hps_lookup_part *part,
                         struct hps_encode_explain *explain, const char **notes)
{
    const struct hps_version *version = request->lookup.version;
    const char *table = part->table->name;
    uint32_t n_shared = part->walk.n_shared_absent;
    char what[64];

    if (part->n_keys > 0) {
        add_note(explain, notes, tier_note(request, part, "gpu", &part->walk.gpu));
    }
    for (uint32_t t = 0; t < version->n_tiers && part->n_keys > 0; t++) {
        const struct hps_tier_report *report = &part->walk.reports[t];
        add_note(explain, notes,
                 tier_note(request, part, version->tiers[t]->store->ops->name, report));
        n_shared += report->n_shared;
    }
    if (n_shared > 0) {
        add_note(explain, notes,
                 printed_note(request->arena, table, "fetched by another look-up", n_shared,
                              part->n_unique));
    }
    if (part->n_unknown > 0) {
        add_note(explain, notes,
                 printed_note(request->arena, table, "in no tier", part->n_unknown, part->n_keys));
    }
    if (part->n_defaulted > 0) {
        snprintf(what, sizeof(what), "not waited for (%s)",
                 hps_defaulted_reason(request->lookup.miss_policy));
        add_note(explain, notes,
                 printed_note(request->arena, table, what, part->n_defaulted, part->n_keys));
    }
}

/* Explain of the answer; NULL if not asked for, or without memory for it. */
static const struct hps_encode_explain *make_explain(struct request *request)
{
    struct hps_encode_explain *explain = NULL;
    struct hps_encode_stage *stages = NULL;
    const char **notes = NULL;

    if (request->explain) {
        explain = hps_arena_calloc(request->arena, 1, sizeof(*explain));
        stages = hps_arena_calloc(request->arena, HPS_STAGE_ENCODE, sizeof(*stages));
        notes = hps_arena_calloc(request->arena, NOTES_MAX, sizeof(*notes));
    }
    if (explain == NULL || stages == NULL || notes == NULL) {
        return NULL;
    }
    for (unsigned i = 0; i < HPS_STAGE_ENCODE; i++) { /* those that have ended */
        stages[i].name = hps_stage_name(i);
        stages[i].duration_us = request->stages.us[i];
    }
    explain->stages = stages;
    explain->n_stages = HPS_STAGE_ENCODE;
    explain->notes = notes;
    if (request->n_tries + request->n_waits > 1 || request->lookup.n_reread > 0) {
        add_note(explain, notes, "read again: updates came meanwhile");
    }
    for (uint32_t i = 0; i < request->lookup.n_parts; i++) {
        explain_part(request, &request->lookup.parts[i], explain, notes);
    }
    return explain;
}

static void count_answer(struct request *request)
{
    const struct hps_lookup *lookup = &request->lookup;
    struct hps_slow_request *slow = &request->slow;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        slow->n_unique += lookup->parts[i].n_unique;
        slow->n_defaulted += lookup->parts[i].n_defaulted;
        slow->n_unknown += lookup->parts[i].n_unknown;
    }
}

static void finish_ok(struct request *request)
{
    request->code = 0;
    hps_grpc_call_finish(request->call, 0, NULL);
}

/* Send messages of the stream while little is queued; on_drained comes back for the rest. */
static void send_messages(struct request *request)
{
    while (!request->closed && request->code < 0 &&
           hps_grpc_call_queued(request->call) < STREAM_QUEUED_LOW) {
        if (hps_stream_done(request->stream)) {
            finish_ok(request);
            return;
        }
        struct hps_encoded encoded;
        hps_status status = hps_stream_next(request->stream, &encoded);
        if (status != HPS_OK) {
            struct hps_error err;
            hps_error_set(&err, status, "no memory for a message of the stream");
            request_fail(request, status, &err);
            return;
        }
        hps_grpc_call_send(request->call, encoded.slices, encoded.n_slices);
    }
}

/* Sending may lead to on_drained at once, which must not send out of order. */
static void pump(struct request *request)
{
    if (!request->pumping) {
        request->pumping = true;
        send_messages(request);
        request->pumping = false;
    }
}

static hps_status send_whole(struct request *request, const struct hps_encode_explain *explain)
{
    struct hps_encoded encoded;
    hps_status status = hps_encode_lookup(&request->lookup, explain, request->lookup.block,
                                          request->service->parts.blocks, request->arena, &encoded);

    if (status == HPS_OK) {
        hps_grpc_call_send(request->call, encoded.slices, encoded.n_slices);
    }
    return status;
}

/* The look-up is done: encode, let go of the version, send. Loop thread. */
static void reply(struct request *request)
{
    hps_status status;

    if (request->closed) {
        return;
    }
    hps_stages_enter(&request->stages, HPS_STAGE_ENCODE);
    name_work(request);
    count_answer(request);
    const struct hps_encode_explain *explain = make_explain(request);
    if (request->streaming) {
        status = hps_stream_new(&request->lookup, explain, request->lookup.block,
                                request->service->parts.blocks, request->arena, &request->stream);
    } else {
        status = send_whole(request, explain);
    }
    unpin(request);
    request->encoded = true;
    hps_stages_enter(&request->stages, HPS_STAGE_SEND);
    if (status != HPS_OK) {
        struct hps_error err;
        hps_error_set(&err, status, "no memory to encode %" PRIu64 " keys", request->lookup.n_keys);
        request_fail(request, status, &err);
    } else if (request->streaming) {
        pump(request);
    } else {
        finish_ok(request);
    }
}

/* ---- work ------------------------------------------------------------------------------------ */

/* Loop thread: the look-up from its beginning; there is a block for its rows. */
static void start_try(struct request *request);

/* Once more, and the times of what was in vain are kept. */
static void try_again(struct request *request)
{
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    name_work(request);
    hps_lookup_again(&request->lookup);
    start_try(request);
}

/* Wait for updates, or for what a client may have. False: it has waited for long enough. */
static bool wait_a_little(struct request *request)
{
    if (request->n_waits == UNIT_WAITS_MAX) {
        return false;
    }
    request->unit_waits = true;
    hps_stages_enter(&request->stages, HPS_STAGE_UNIT);
    hps_timer_set_after(request->loop, &request->wait_timer,
                        (uint64_t)UNIT_WAIT_US << request->n_waits++);
    return true;
}

/* Loop thread: by an I/O thread, beside updates. */
static void hand_to_reread(struct request *request);
/* Loop thread: the same while updates are held back. */
static void stand_in_line(struct request *request);

/* Look up again, or no more: the client may try. */
static void finish_torn(struct request *request, const struct hps_error *err)
{
    const struct hps_lookup *lookup = &request->lookup;
    struct hps_error last = *err;

    if (request->closed) {
        return;
    }
    if (lookup->torn && !request->reread) {
        hand_to_reread(request);
        return;
    }
    if (lookup->torn && !request->held) {
        stand_in_line(request);
        return;
    }
    if (lookup->ahead && wait_a_little(request)) { /* the updates that it is ahead by may come */
        request->n_tries--;
        return;
    }
    if (!lookup->torn && !lookup->ahead && request->n_tries < HPS_LOOKUP_TRIES_MAX) {
        try_again(request);
        return;
    }
    last.status = HPS_UNAVAILABLE;
    request_fail(request, last.status, &last);
}

static void finish(struct request *request, hps_status status, const struct hps_error *err)
{
    if (status == HPS_ABORTED && request->lookup.unit) {
        finish_torn(request, err);
    } else if (status != HPS_OK) {
        request_fail(request, status, err);
    } else {
        reply(request);
    }
}

static void post_back(struct request *request, void (*run)(struct hps_task *task))
{
    request->task.run = run;
    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    hps_loop_post(request->loop, &request->task);
}

/* Loop thread: an I/O thread is done with the request. */
static void on_io_done(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    request->pool = NULL;
    request->rereads = false;
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    hps_timer_stop(&request->wait_timer);
    finish(request, request->status, &request->err);
    request_drop(request);
}

/* I/O thread: what updates have changed since it was read, as long as they go on. */
static void reread(struct request *request)
{
    request->reread = true;
    request->status = hps_lookup_reread(&request->lookup, HPS_LOOKUP_REREADS_MAX, &request->err);
}

/* I/O thread: the tiers that may block. */
static void on_io(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    if (hps_grpc_call_cancelled(request->call)) {
        request->status = hps_error_set(&request->err, HPS_CANCELLED, "the client is gone");
        hps_lookup_abandon(&request->lookup);
    } else {
        request->status = hps_lookup_run_rest(&request->lookup, &request->err);
    }
    if (request->lookup.torn) {
        reread(request);
    }
    post_back(request, on_io_done);
}

/* The same for one that has been read whole: there is nothing to abandon. */
static void on_reread(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    reread(request);
    post_back(request, on_io_done);
}

/* Loop thread: back from the pool, if it waits for a thread of one. The caller drops it. */
static bool withdraw(struct request *request)
{
    if (request->pool == NULL || !hps_pool_withdraw(request->pool, &request->task)) {
        return false;
    }
    request->pool = NULL;
    hps_timer_stop(&request->wait_timer);
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    return true;
}

/* Loop thread: from step to step, unless the request waits for the gpu or is with a worker. */
static void take_step(struct request *request, enum step step);

/* Loop thread: go on without what the gpu was asked for. The reply gives the request's pin back,
 * but the gpu needs the version until it has answered. */
static void leave_gpu(struct request *request)
{
    request->at_gpu = false;
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request->gpu_version = request->lookup.version;
    hps_version_pin(request->gpu_version);
    hps_lookup_leave_gpu(&request->lookup);
    request_hold(request);
    take_step(request, request->gpu_first ? STEP_MEMORY : STEP_GPU);
    request_drop(request);
}

static void answer_with_what_is_there(struct request *request)
{
    struct hps_error err;
    finish(request, hps_lookup_give_up(&request->lookup, &err), &err);
}

/* Loop thread: the client waits no longer for rows. An I/O thread that is asking a store knows that
 * itself. Or a unit has waited before it is read again. */
static void on_wait_over(void *ctx)
{
    struct request *request = ctx;

    if (request->unit_waits) {
        request->unit_waits = false;
        if (request->lookup.torn) {
            hand_to_reread(request);
        } else {
            try_again(request);
        }
    } else if (request->at_gpu) {
        leave_gpu(request);
    } else if (withdraw(request)) {
        answer_with_what_is_there(request);
        request_drop(request);
    }
}

/* Loop thread. takes `request` on OK. EXHAUSTED, in request->err: too many wait. */
static hps_status post_to(struct request *request, struct hps_pool *pool, const char *name,
                          void (*run)(struct hps_task *task))
{
    hps_stages_enter(&request->stages, HPS_STAGE_QUEUE);
    request->task.run = run;
    request->pool = pool;
    if (hps_pool_post(pool, &request->task) != HPS_OK) {
        request->pool = NULL;
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
        return hps_error_set(&request->err, HPS_EXHAUSTED, "%zu look-ups wait for %s already",
                             hps_pool_depth(pool), name);
    }
    return HPS_OK;
}

/* Loop thread: the memory tiers have been asked. */
static void hand_to_io(struct request *request)
{
    const struct hps_lookup *lookup = &request->lookup;
    bool waits = lookup->miss_policy == HPS_MISS_WAIT;
    uint64_t wait_deadline_us = lookup->wait_deadline_us; /* it is not ours once it is posted */

    request_hold(request);
    if (post_to(request, request->service->parts.io, "the I/O threads", on_io) == HPS_OK) {
        if (waits) {
            hps_timer_set(request->loop, &request->wait_timer, wait_deadline_us);
        }
        return;
    }
    if (waits) { /* for no time, then */
        answer_with_what_is_there(request);
    } else {
        hps_lookup_abandon(&request->lookup);
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
    }
    request_drop(request);
}

static void hand_to_reread(struct request *request)
{
    request_hold(request);
    request->rereads = true;
    if (post_to(request, request->service->parts.io, "the I/O threads", on_reread) != HPS_OK) {
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
        request_drop(request);
    }
}

/* Loop thread: it may be possible without, or later. */
static void wait_for_share(struct request *request)
{
    struct hps_error err;

    if (request->closed || wait_a_little(request)) {
        return;
    }
    hps_error_set(&err, HPS_EXHAUSTED,
                  "consistency: updates came each time, and have been held back for this client "
                  "for %d ms a second, which is the limit; ask for fewer keys at a time",
                  HPS_UPDATE_HOLD_US_PER_S / 1000);
    request_reject(request, HPS_REJECT_HOLDS, &err);
}

/* Loop thread: rows have been read while updates were held back; or they are held back for this
 * client no more. */
static void on_hold_done(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    request->hold_waits = false;
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    if (request->held) {
        finish(request, request->status, &request->err);
    } else {
        wait_for_share(request);
    }
    request_drop(request);
}

/* I/O thread. */
static void on_hold(struct hps_update_hold *hold, bool held)
{
    struct request *request = CONTAINER_OF(hold, struct request, hold);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request->held = held;
    if (hps_grpc_call_cancelled(request->call)) {
        request->status = hps_error_set(&request->err, HPS_CANCELLED, "the client is gone");
    } else if (held) {
        request->status = hps_lookup_reread(&request->lookup, 1, &request->err);
    }
    post_back(request, on_hold_done);
}

static void stand_in_line(struct request *request)
{
    struct hps_error err;

    request_hold(request); /* until on_hold_done */
    hps_stages_enter(&request->stages, HPS_STAGE_UNIT);
    request->hold.run = on_hold;
    request->hold.client = hps_grpc_call_client(request->call);
    request->hold_waits = true; /* it is not ours when it waits */
    hps_status status =
        hps_update_hold(request->lookup.version, request->service->parts.io, &request->hold);
    if (status == HPS_OK) {
        return;
    }
    request->hold_waits = false;
    if (status == HPS_AGAIN) {
        wait_for_share(request);
    } else {
        hps_error_set(&err, status, "%zu look-ups wait for the I/O threads already",
                      hps_pool_depth(request->service->parts.io));
        request_reject(request, HPS_REJECT_WORKERS, &err);
    }
    request_drop(request);
}

/* Ask the gpu before the memory tiers, or for what they miss; where there is nothing to ask go on
 * without. */
static void ask_gpu(struct request *request, bool first)
{
    request_hold(request); /* by the gpu */
    request->gpu_first = first;
    if (request->lookup.version->gpu != NULL) {
        hps_stages_enter(&request->stages, HPS_STAGE_GPU);
    }
    request->at_gpu = hps_lookup_ask_gpu(&request->lookup);
    if (!request->at_gpu) {
        hps_stages_enter(&request->stages, HPS_STAGE_WORK);
        take_step(request, first ? STEP_MEMORY : STEP_GPU);
        request_drop(request);
    } else if (request->lookup.gpu_deadline_us != 0) {
        hps_timer_set(request->loop, &request->wait_timer, request->lookup.gpu_deadline_us);
    }
}

static void end_step(struct request *request, enum step step, hps_status status, bool done,
                     const struct hps_error *err)
{
    if (status != HPS_OK || done) {
        finish(request, status, err);
    } else if (request->closed) {
        hps_lookup_abandon(&request->lookup);
    } else if (step == STEP_MEMORY && request->lookup.version->gpu != NULL) {
        ask_gpu(request, false);
    } else {
        hand_to_io(request);
    }
}

/* Loop thread: a worker is done with the request. */
static void on_worked(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    request->pool = NULL;
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    end_step(request, request->step, request->status, request->step_done, &request->err);
    request_drop(request);
}

static hps_status run_step(struct request *request, enum step step, bool *out_done,
                           struct hps_error *err)
{
    return step == STEP_MEMORY ? hps_lookup_run_memory(&request->lookup, out_done, err)
                               : hps_lookup_run_gpu(&request->lookup, out_done, err);
}

/* Worker thread: a step of a large look-up. */
static void on_worker(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    request->step_done = false;
    if (hps_grpc_call_cancelled(request->call)) {
        request->status = hps_error_set(&request->err, HPS_CANCELLED, "the client is gone");
        hps_lookup_abandon(&request->lookup);
    } else {
        request->lookup.helpers = request->service->parts.workers;
        request->status = run_step(request, request->step, &request->step_done, &request->err);
    }
    post_back(request, on_worked);
}

static void hand_to_worker(struct request *request, enum step step)
{
    request_hold(request);
    request->step = step;
    if (post_to(request, request->service->parts.workers, "a worker", on_worker) != HPS_OK) {
        hps_lookup_abandon(&request->lookup);
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
        request_drop(request);
    }
}

static void take_step(struct request *request, enum step step)
{
    const struct hps_lookup_limits *limits = &request->service->parts.limits;
    struct hps_error err;
    bool done = false;

    if (request->lookup.rows_bytes > limits->inline_bytes_max ||
        request->lookup.n_keys > limits->inline_keys_max) {
        hand_to_worker(request, step);
        return;
    }
    hps_status status = run_step(request, step, &done, &err);
    end_step(request, step, status, done, &err);
}

/* Loop thread: the gpu has answered: the first question, before the memory tiers, or the second. */
static void on_gpu(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, gpu_task);

    if (!request->at_gpu) { /* it was not waited for */
        hps_version_unpin(request->gpu_version);
        request_drop(request);
        return;
    }
    request->at_gpu = false;
    hps_stages_enter_at(&request->stages, HPS_STAGE_LOOP, request->gpu_done_us);
    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    hps_timer_stop(&request->wait_timer);
    if (request->closed) {
        hps_lookup_abandon(&request->lookup);
    } else {
        take_step(request, request->gpu_first ? STEP_MEMORY : STEP_GPU);
    }
    request_drop(request);
}

/* The gpu tier's thread. */
static void on_gpu_done(struct hps_lookup *lookup)
{
    struct request *request = CONTAINER_OF(lookup, struct request, lookup);

    request->gpu_done_us = hps_clock_us();
    request->gpu_task.run = on_gpu;
    hps_loop_post(request->loop, &request->gpu_task);
}

static void start_try(struct request *request)
{
    request->n_tries++;
    request->reread = false;
    request->held = false;
    ask_gpu(request, true);
}

/* Loop thread; there is room for the reply. */
static void start_work(struct request *request)
{
    struct hps_lookup *lookup = &request->lookup;
    struct hps_error err;

    hps_stages_enter(&request->stages, HPS_STAGE_WORK);
    if (hps_lookup_take_block(lookup) != HPS_OK) {
        hps_error_set(&err, HPS_NO_MEMORY, "no memory for %" PRIu64 " bytes of rows",
                      lookup->rows_bytes);
        request_fail(request, HPS_NO_MEMORY, &err);
        return;
    }
    lookup->gpu_done = on_gpu_done;
    start_try(request);
}

/* ---- admission ------------------------------------------------------------------------------- */

/* Loop thread: the wait for room is over. */
static void on_admitted(struct hps_task *task)
{
    struct request *request = CONTAINER_OF(task, struct request, task);

    hps_timer_stop(&request->queue_timer);
    if (!request->closed) {
        start_work(request);
    }
    request_drop(request);
}

/* Any thread. */
static void on_granted(struct hps_admission_ticket *ticket)
{
    struct request *request = CONTAINER_OF(ticket, struct request, ticket);

    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    request->task.run = on_admitted;
    hps_loop_post(request->loop, &request->task);
}

static void on_queue_timeout(void *ctx)
{
    struct request *request = ctx;
    struct hps_lookup_service *service = request->service;

    if (!hps_admission_cancel(service->parts.admission, &request->ticket)) {
        return; /* let in meanwhile: on_admitted is on its way */
    }
    struct hps_error err;
    hps_error_set(&err, HPS_EXHAUSTED,
                  "no room for a reply of %" PRIu64 " bytes within %" PRIu64
                  " us; replies in flight have %" PRIu64 " bytes",
                  request->ticket.bytes, request->queue_us_max,
                  hps_admission_bytes(service->parts.admission));
    request_reject(request, HPS_REJECT_QUEUE, &err);
    request_drop(request);
}

static void admit(struct request *request)
{
    struct hps_lookup_service *service = request->service;
    uint64_t bytes = hps_encode_size_max(&request->lookup);
    uint64_t work_bytes =
        request->lookup.n_keys * WORK_BYTES_PER_KEY + hps_lookup_scratch_bytes(&request->lookup);
    uint64_t n_tries = request->lookup.unit ? HPS_LOOKUP_TRIES_MAX : 1;
    struct hps_error err;
    bool held = false;

    if (bytes < request->lookup.rows_bytes) { /* rows that shrink when they change type */
        bytes = request->lookup.rows_bytes;
    }
    hps_stages_enter(&request->stages, HPS_STAGE_ADMISSION);
    request->queue_us_max = atomic_load(&service->queue_us_max);
    request->ticket.on_granted = on_granted;
    request_hold(request); /* by the queue, if it has to wait */
    hps_status status = hps_admission_ask(service->parts.admission, &request->ticket, bytes,
                                          n_tries * work_bytes, &held, &err);
    if (status == HPS_OK && !held) {
        hps_timer_set_after(request->loop, &request->queue_timer, request->queue_us_max);
        return;
    }
    if (status == HPS_OK) {
        start_work(request);
    } else if (status == HPS_RANGE) { /* no use in trying again */
        err.status = HPS_EXHAUSTED;
        hps_metric_add(service->parts.metrics->rejected[HPS_REJECT_REPLY_BYTES], 1);
        request_fail(request, HPS_EXHAUSTED, &err);
    } else {
        request_reject(request, HPS_REJECT_QUEUE, &err);
    }
    request_drop(request);
}

/* ---- callbacks of the call ------------------------------------------------------------------- */

static struct request *request_begin(struct hps_lookup_service *service, struct hps_grpc_call *call,
                                     bool streaming)
{
    struct request *request = request_take(service);

    if (request == NULL) {
        return NULL;
    }
    memset(&request->service, 0, sizeof(*request) - offsetof(struct request, service));
    request->service = service;
    request->call = call;
    request->loop = hps_grpc_call_loop(call);
    request->streaming = streaming;
    request->code = -1;
    request->start_us = hps_grpc_call_start_us(call);
    hps_stages_begin(&request->stages, HPS_STAGE_RECEIVE, request->start_us);
    request->n_holders = 1; /* the call */
    hps_timer_init(&request->queue_timer, on_queue_timeout, request);
    hps_timer_init(&request->wait_timer, on_wait_over, request);
    hps_grpc_call_ref(call);
    hps_grpc_call_set_user(call, request);
    hps_metric_gauge_add(service->parts.metrics->requests_in_flight, 1);
    return request;
}

static void on_message(struct hps_grpc_call *call, const uint8_t *data, size_t size, bool streaming)
{
    struct hps_lookup_service *service = hps_grpc_call_ctx(call);
    struct request *request = request_begin(service, call, streaming);
    struct hps_error err;

    if (request == NULL) {
        hps_error_set(&err, HPS_NO_MEMORY, "no memory for a request");
        hps_grpc_call_fail(call, &err);
        return;
    }
    request_hold(request);
    hps_stages_enter(&request->stages, HPS_STAGE_DECODE);
    hps_status status = prepare(request, data, size, &err);
    if (status == HPS_OK) {
        admit(request);
    } else {
        request_fail(request, status, &err);
    }
    request_drop(request);
}

static void on_lookup(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    on_message(call, data, size, false);
}

static void on_lookup_stream(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    on_message(call, data, size, true);
}

static void on_drained(struct hps_grpc_call *call)
{
    struct request *request = hps_grpc_call_user(call);

    if (request == NULL || request->stream == NULL) {
        return;
    }
    request_hold(request);
    pump(request);
    request_drop(request);
}

static void on_close(struct hps_grpc_call *call)
{
    struct request *request = hps_grpc_call_user(call);

    if (request == NULL) {
        return; /* closed before its message was whole */
    }
    hps_grpc_call_set_user(call, NULL);
    request->closed = true;
    request->closed_us = hps_clock_us();
    hps_timer_stop(&request->queue_timer);
    hps_timer_stop(&request->wait_timer);
    if (withdraw(request)) {
        if (!request->rereads) {
            hps_lookup_abandon(&request->lookup);
        }
        request_drop(request);
    }
    if (request->hold_waits && hps_update_hold_cancel(request->lookup.version, &request->hold)) {
        request->hold_waits = false;
        request_drop(request);
    }
    if (hps_admission_cancel(request->service->parts.admission, &request->ticket)) {
        request_drop(request);
    }
    request_drop(request);
}

/* ---- the service ----------------------------------------------------------------------------- */

struct hps_lookup_service *hps_lookup_service_new(const struct hps_lookup_service_parts *parts)
{
    struct hps_lookup_service *service = hps_calloc(1, sizeof(*service));

    if (service == NULL) {
        return NULL;
    }
    service->parts = *parts;
    hps_lookup_service_limits_set(service, &parts->limits);
    service->methods[0] = (struct hps_grpc_method){
        .path = "/hps.v1.ParameterServer/Lookup", .on_message = on_lookup, .on_close = on_close};
    service->methods[1] = (struct hps_grpc_method){.path = "/hps.v1.ParameterServer/LookupStream",
                                                   .on_message = on_lookup_stream,
                                                   .on_close = on_close,
                                                   .on_drained = on_drained};
    service->grpc = (struct hps_grpc_service){.name = "hps.v1.ParameterServer",
                                              .methods = service->methods,
                                              .n_methods = 2,
                                              .ctx = service};
    if (pthread_mutex_init(&service->lock, NULL) != 0) {
        hps_free(service);
        return NULL;
    }
    return service;
}

void hps_lookup_service_limits_set(struct hps_lookup_service *service,
                                   const struct hps_lookup_limits *limits)
{
    atomic_store(&service->tables_max, limits->tables_max);
    atomic_store(&service->keys_max, limits->keys_max);
    atomic_store(&service->queue_us_max, limits->queue_us_max);
}

void hps_lookup_service_free(struct hps_lookup_service *service)
{
    if (service == NULL) {
        return;
    }
    HPS_ASSERT(service->n_used == 0);
    while (service->idle != NULL) {
        struct request *request = service->idle;
        service->idle = request->next_idle;
        request_free(request);
    }
    pthread_mutex_destroy(&service->lock);
    hps_free(service);
}

const struct hps_grpc_service *hps_lookup_service_grpc(const struct hps_lookup_service *service)
{
    return &service->grpc;
}
