/* SPDX-License-Identifier: Apache-2.0
 *
 * From the message of a client to a planned lookup: decodes it, pins its version, finds its tables.
 * Runs on the loop thread within the callback that received the message, or on a worker that owns
 * the request and the message (unpack.c).
 */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/index_set.h"
#include "base/text.h"
#include "base/utf8.h"
#include "server/access/access.h"
#include "server/lookup/decode.h"
#include "server/lookup/internal.h"
#include "server/lookup/known.h"

enum { TABLES_SCANNED_MAX = 16 }; /* more tables are found by hash */

/* ---- the caller ------------------------------------------------------------------------------ */

/* Copies bytes of a client as valid UTF-8, cut to fit. A protobuf client rejects a whole reply, for
 * example the slow log, if one string in it is not UTF-8. */
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
    const char *peer = hps_grpc_call_peer(request->call.grpc);

    if (id == NULL) {
        id = hps_grpc_call_header(request->call.grpc, "x-request-id", &id_size);
    }
    size_t parent_size = 0;
    const char *parent = hps_grpc_call_header(request->call.grpc, "traceparent", &parent_size);
    (void)hps_trace_id(parent, parent_size, slow->trace_id);
    copy_text(slow->request_id, sizeof(slow->request_id), id, id == NULL ? 0 : id_size);
    copy_text(slow->model, sizeof(slow->model), message->model, message->model_size);
    copy_text(slow->peer, sizeof(slow->peer), peer, peer == NULL ? 0 : strlen(peer));
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Hash of table names, for versions with many tables. */
struct table_index {
    const struct hps_version *version;
    struct hps_index_set ids; /* places NULL: not built yet */
};

struct table_name {
    const struct hps_version *version;
    const char *name;
    size_t size;
};

static bool has_name(const void *ctx, uint32_t id)
{
    const struct table_name *wanted = ctx;

    return hps_text_is(wanted->version->tables[id].name, wanted->name, wanted->size);
}

/* The hash place of a table name. */
static uint32_t *table_index_place(const struct table_index *index, const char *name, size_t size)
{
    const struct table_name wanted = {index->version, name, size};

    return hps_index_set_find(&index->ids, hps_hash_bytes(name, size, 0), has_name, &wanted);
}

static hps_status table_index_build(struct table_index *index, struct hps_arena *arena)
{
    uint64_t n_places = hps_index_set_places(index->version->n_tables);
    uint32_t *places = hps_arena_alloc(arena, n_places * sizeof(*places));

    if (places == NULL) {
        return HPS_EXHAUSTED;
    }
    hps_index_set_init(&index->ids, places, n_places);
    for (uint32_t i = 0; i < index->version->n_tables; i++) {
        const char *name = index->version->tables[i].name;
        *table_index_place(index, name, strlen(name)) = i + 1;
    }
    return HPS_OK;
}

static uint32_t table_index_find(const struct table_index *index, const char *name, size_t size)
{
    uint32_t place = *table_index_place(index, name, size);

    return place != 0 ? place - 1 : UINT32_MAX;
}

/* A query by position, but the version has no table there. Valid only if it has no keys and no
 * bags. */
static hps_status not_at_place(const struct request *request, const struct hps_version *version,
                               const struct hps_lookup_query *query, uint32_t place,
                               const struct hps_table **out_table, struct hps_error *err)
{
    static const struct hps_table nothing = {.name = "", .dtype = HPS_DTYPE_FP32};
    char name[128]; /* longer than any table name */

    if (query->n_keys == 0 && query->n_bags == 0) {
        *out_table = &nothing;
        return HPS_OK;
    }
    uint32_t n = hps_models_table_at(request->service->parts.models, version->model, place, name,
                                     sizeof(name));
    if (place >= n) {
        return hps_error_set(err, HPS_INVALID, "%s[%u]: by position, but model '%s' has %u tables",
                             request->front->positions, place, version->model, n);
    }
    return hps_error_set(err, HPS_NOT_FOUND,
                         "%s[%u]: table '%s' by position, which version %" PRId64
                         " of model '%s' lacks",
                         request->front->positions, place, name, version->number, version->model);
}

static hps_status find_by_name(const struct request *request, struct table_index *index,
                               const struct hps_lookup_query *query, uint32_t i,
                               uint32_t *out_table, struct hps_error *err)
{
    const struct hps_version *version = index->version;
    uint32_t table = UINT32_MAX;

    if (version->n_tables <= TABLES_SCANNED_MAX) {
        table = hps_version_table(version, query->table, query->table_size);
    } else if (index->ids.places != NULL || table_index_build(index, request->arena) == HPS_OK) {
        table = table_index_find(index, query->table, query->table_size);
    } else {
        return hps_error_set(err, HPS_EXHAUSTED, "no memory for %u tables", version->n_tables);
    }
    if (table == UINT32_MAX) {
        hps_error_set(err, HPS_NOT_FOUND,
                      "queries[%u].table: model '%s' version %" PRId64 " has no table '%.*s'", i,
                      version->model, version->number,
                      (int)(query->table_size < 128 ? query->table_size : 128), query->table);
        hps_known_tables(version, err);
        return HPS_NOT_FOUND;
    }
    *out_table = table;
    return HPS_OK;
}

/* Finds the table of query i: by name or, without a name, the table at position i of the model. */
static hps_status find_table(const struct request *request, struct table_index *index,
                             const struct hps_lookup_query *query, uint32_t i,
                             const struct hps_table **out_table, struct hps_error *err)
{
    const struct hps_version *version = index->version;
    uint32_t table = hps_version_table_at(version, i);

    if (query->table_size == 0 && table == UINT32_MAX) {
        return not_at_place(request, version, query, i, out_table, err);
    }
    if (query->table_size != 0 &&
        (table == UINT32_MAX ||
         !hps_text_is(version->tables[table].name, query->table, query->table_size))) {
        hps_status status = find_by_name(request, index, query, i, &table, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    *out_table = &version->tables[table];
    return HPS_OK;
}

/* Copies to the arena, because the message is valid only in its callback and the lookup may run
 * later. False: no memory. */
static bool copy_bytes(struct request *request, const uint8_t *from, size_t size, void **out_copy)
{
    void *copy = size == 0 ? NULL : hps_arena_alloc(request->arena, size);

    if (copy != NULL) {
        memcpy(copy, from, size);
    }
    *out_copy = copy;
    return copy != NULL || size == 0;
}

/* Copies keys, offsets and weights. 8 bytes a key cost little next to a row for each. The copied
 * offsets are aligned. */
static hps_status make_part(struct request *request, const struct hps_lookup_query *query,
                            const struct hps_table *table, struct hps_lookup_part *part)
{
    void *keys = NULL;
    void *offsets = NULL;
    void *weights = NULL;
    size_t n_keys = query->n_keys;
    size_t n_offsets = query->offsets == NULL ? 0 : query->n_bags + (size_t)1;
    size_t n_weights = query->weights == NULL ? 0 : n_keys;

    if (!copy_bytes(request, query->keys, n_keys * sizeof(hps_key), &keys) ||
        !copy_bytes(request, query->offsets, n_offsets * sizeof(uint32_t), &offsets) ||
        !copy_bytes(request, query->weights, n_weights * sizeof(float), &weights)) {
        return HPS_EXHAUSTED;
    }
    if (request->service->parts.key_bytes == 4) {
        hps_keys_narrow(keys, n_keys);
    }
    part->table = table;
    part->n_keys = query->n_keys;
    part->keys = keys;
    part->pooling = query->pooling;
    part->n_bags = query->n_bags;
    part->offsets = offsets;
    part->weights = weights;
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
        const struct hps_table *table = NULL;
        hps_status status = find_table(request, &index, &message->queries[i], i, &table, err);
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

/* ---- decode, pin, plan ----------------------------------------------------------------------- */

static bool call_cancelled(const void *ctx)
{
    return hps_grpc_call_cancelled(ctx);
}

/* UNAVAILABLE, so that the client tries another replica, which may be fresher. */
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
            "max_staleness_ms: got %" PRIu32 ", but the lag of version %" PRId64
            " is not known: it takes no updates, has no topic, or has not caught up since "
            "the start; hpsctl updates says which",
            staleness_ms_max, version->number);
    }
    return hps_error_set(err, HPS_UNAVAILABLE,
                         "max_staleness_ms: got %" PRIu32 ", but version %" PRId64
                         " is stale: it may lack updates of the last %" PRId64 " ms",
                         staleness_ms_max, version->number, age_ms);
}

/* Sets the deadline of the lookup; unpack.c applies it to the call on its loop thread. */
static void limit_deadline(struct request *request, uint64_t timeout_us)
{
    uint64_t at_us = request->call.start_us + timeout_us;
    uint64_t *deadline_us = &request->lookup.deadline_us;

    if (at_us > timeout_us && (*deadline_us == 0 || at_us < *deadline_us)) {
        *deadline_us = at_us;
    }
}

static hps_status pin_version(struct request *request, const struct hps_lookup_request *message,
                              struct hps_error *err)
{
    struct hps_models *models = request->service->parts.models;
    struct hps_version **out_version = &request->lookup.version;
    bool by_label = message->label_size > 0;
    bool one = by_label || message->version != 0;
    hps_status status =
        by_label ? hps_models_pin_label(models, message->model, message->model_size, message->label,
                                        message->label_size, out_version, err)
                 : hps_models_pin(models, message->model, message->model_size, message->version,
                                  out_version, err);

    if (status == HPS_NOT_FOUND && request->front->not_found != NULL) {
        int64_t active;
        size_t n =
            hps_models_pin_all(models, message->model, message->model_size, NULL, 0, &active);
        request->front->not_found(message,
                                  one && n > 0 ? HPS_LOOKUP_NO_VERSION : HPS_LOOKUP_NO_MODEL, err);
    } else if (status == HPS_NOT_FOUND && !one) {
        hps_known_models(models, request->call.grpc, HPS_ROLE_LOOKUP, err);
    }
    return status;
}

/* Notes the caller, checks its access to the model, and pins the version. */
static hps_status find_version(struct request *request, const struct hps_lookup_request *message,
                               struct hps_error *err)
{
    note_identity(request, message);
    if (message->model_size == 0 && request->front->not_found == NULL) {
        return hps_error_set(err, HPS_INVALID, "model: empty");
    }
    hps_status status = hps_access_check(request->call.grpc, HPS_ROLE_LOOKUP, message->model,
                                         message->model_size, err);
    return status == HPS_OK ? pin_version(request, message, err) : status;
}

hps_status request_prepare(struct request *request, const uint8_t *data, size_t size,
                           struct hps_error *err)
{
    struct hps_lookup_service *service = request->service;
    struct hps_lookup *lookup = &request->lookup;
    struct hps_lookup_request message = {0};
    struct hps_error wrong = {0};
    const struct hps_decode_limits limits = {.tables_max = atomic_load(&service->tables_max),
                                             .keys_max = atomic_load(&service->keys_max),
                                             .request_id_max = HPS_REQUEST_ID_MAX};
    const struct hps_lookup_front *front = request->front;
    hps_status decoded = front->decode(request->call.grpc, data, size, &limits, request->arena,
                                       &message, &request->asked, &wrong);

    if (decoded != HPS_OK && message.model == NULL) {
        *err = wrong;
        return decoded;
    }
    hps_status status = find_version(request, &message, err);
    if (status == HPS_OK && decoded != HPS_OK) {
        hps_version_unpin(lookup->version); /* the request is not counted in the version's usage */
        lookup->version = NULL;
        *err = wrong;
        return decoded;
    }
    if (status == HPS_OK) {
        status = check_staleness(lookup->version, message.max_staleness_ms, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    request->slow.version = lookup->version->number;
    request->call.explain = message.explain;
    lookup->arena = request->arena;
    lookup->scratch = request->scratch;
    lookup->miss_policy = message.miss_policy;
    lookup->unknown_policy = message.unknown_policy;
    lookup->output = message.output;
    lookup->layout = message.concat ? HPS_LAYOUT_CONCAT : HPS_LAYOUT_PER_TABLE;
    lookup->unit = message.unit;
    lookup->wait_us_max = message.max_wait_us;
    lookup->cancelled = call_cancelled;
    lookup->cancelled_ctx = request->call.grpc;
    lookup->metrics = &service->parts.metrics->lookup;
    lookup->insertion = service->parts.insertion;
    lookup->path = service->parts.path;
    lookup->blocks = service->parts.blocks;
    if (message.timeout_us > 0) {
        limit_deadline(request, message.timeout_us);
    }
    status = make_parts(request, &message, err);
    if (status == HPS_NOT_FOUND && front->not_found != NULL) {
        front->not_found(&message, HPS_LOOKUP_NO_TABLE, err);
        status = err->status;
    }
    if (status == HPS_OK) {
        status = hps_lookup_plan(lookup, err);
    }
    return status == HPS_OK && front->check_answer != NULL
               ? front->check_answer(request->asked, lookup, err)
               : status;
}
