/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups of the C library: checked and encoded on the calling thread. Any thread.
 */
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "client/hpsd_internal.h"
#include "client/lookup.h"

enum { HEAD_BYTES = 512, QUERY_HEAD_BYTES = 64 };

/* ---- checks ---------------------------------------------------------------------------------- */

static bool is_pooling(enum hpsd_pooling pooling)
{
    return pooling == HPSD_POOLING_NONE ||
           (pooling >= HPSD_POOLING_SUM && pooling <= HPSD_POOLING_MEAN_BY_COUNT);
}

static hps_status check_bags(const struct hpsd_query *query, size_t i, struct hps_error *err)
{
    const uint32_t *offsets = query->offsets;

    if (query->pooling == HPSD_POOLING_NONE) {
        return offsets == NULL && query->weights == NULL
                   ? HPS_OK
                   : hps_error_set(err, HPS_INVALID,
                                   "queries[%zu]: offsets and weights need pooling", i);
    }
    if (offsets == NULL) {
        return hps_error_set(err, HPS_INVALID, "queries[%zu].offsets: got NULL, with pooling", i);
    }
    for (size_t b = 0; b < query->n_bags; b++) {
        if (offsets[b] > offsets[b + 1]) {
            return hps_error_set(err, HPS_INVALID,
                                 "queries[%zu].offsets[%zu]: %u is below the one before it, %u", i,
                                 b + 1, offsets[b + 1], offsets[b]);
        }
    }
    if (offsets[0] != 0 || offsets[query->n_bags] != query->n_keys) {
        return hps_error_set(err, HPS_INVALID,
                             "queries[%zu].offsets: got %u to %u, expected 0 to %zu", i, offsets[0],
                             offsets[query->n_bags], query->n_keys);
    }
    return HPS_OK;
}

static hps_status check_query(const struct hpsd_lookup *lookup, size_t i, struct hps_error *err)
{
    const struct hpsd_query *query = &lookup->queries[i];

    if (query->keys == NULL && query->n_keys > 0) {
        return hps_error_set(err, HPS_INVALID, "queries[%zu].keys: got NULL and %zu keys", i,
                             query->n_keys);
    }
    if (query->n_keys > UINT32_MAX / sizeof(int64_t)) {
        return hps_error_set(err, HPS_INVALID, "queries[%zu].n_keys: got %zu, the limit is %zu", i,
                             query->n_keys, UINT32_MAX / sizeof(int64_t));
    }
    if (lookup->concat && query->rows != NULL) {
        return hps_error_set(err, HPS_INVALID,
                             "queries[%zu].rows: with concat the rows go to hpsd_lookup.rows", i);
    }
    if (!is_pooling(query->pooling)) {
        return hps_error_set(err, HPS_INVALID, "queries[%zu].pooling: got %d", i,
                             (int)query->pooling);
    }
    return check_bags(query, i, err);
}

/* The server checks the rest. */
static hps_status check(const struct hpsd_lookup *lookup, struct hps_error *err)
{
    hps_status status = HPS_OK;

    if (lookup->queries == NULL && lookup->n_queries > 0) {
        return hps_error_set(err, HPS_INVALID, "queries: got NULL and %zu queries",
                             lookup->n_queries);
    }
    for (size_t i = 0; i < lookup->n_queries && status == HPS_OK; i++) {
        status = check_query(lookup, i, err);
    }
    return status;
}

/* ---- requests -------------------------------------------------------------------------------- */

static hps_status encode(const struct hpsd_lookup *lookup, struct hps_buf *request)
{
    struct hps_client_lookup from = {
        .model = lookup->model == NULL ? "default" : lookup->model,
        .version = lookup->version,
        .label = lookup->label,
        .miss_policy = lookup->miss_policy,
        .max_wait_us = lookup->max_wait_us,
        .unknown_key_policy = lookup->unknown_key,
        .output_type = lookup->output_type,
        .request_id = lookup->request_id,
        .max_staleness_ms = lookup->max_staleness_ms,
        .consistency = lookup->consistency,
        .row_layout = lookup->concat ? HPS_CLIENT_LOOKUP_CONCAT : 0,
    };
    size_t size = HEAD_BYTES;

    for (size_t i = 0; i < lookup->n_queries; i++) {
        const struct hpsd_query *query = &lookup->queries[i];
        size += QUERY_HEAD_BYTES + query->n_keys * sizeof(int64_t) +
                (query->table == NULL ? 0 : strlen(query->table)) +
                (query->weights == NULL ? 0 : query->n_keys * sizeof(float)) +
                (query->offsets == NULL ? 0 : (query->n_bags + 1) * sizeof(uint32_t));
    }
    hps_status status = hps_buf_reserve(request, size);
    if (status == HPS_OK) {
        status = hps_client_lookup_encode(&from, request);
    }
    for (size_t i = 0; i < lookup->n_queries && status == HPS_OK; i++) {
        const struct hpsd_query *query = &lookup->queries[i];
        const struct hps_client_lookup_query one = {
            .table = query->table,
            .keys = query->keys,
            .n_keys = query->n_keys,
            .pooling = (enum hps_pooling)query->pooling,
            .n_bags = query->n_bags,
            .offsets = query->offsets,
            .weights = query->weights,
        };
        status = hps_client_lookup_encode_query(&one, request);
    }
    return status;
}

/* Makes a call of a lookup. */
static hps_status make(struct hpsd_client *client, const struct hpsd_lookup *lookup,
                       struct hpsd_call **out_call, struct hps_error *err)
{
    size_t n = lookup->n_queries;
    size_t results_bytes = lookup->results != NULL ? 0 : n * sizeof(struct hpsd_result);
    hps_status status = check(lookup, err);

    if (status != HPS_OK) {
        return status;
    }
    struct hpsd_call *call = hpsd_call_new(
        client, lookup->stream ? HPS_CLIENT_LOOKUP_STREAM_PATH : HPS_CLIENT_LOOKUP_PATH,
        lookup->timeout_us, n * sizeof(struct hpsd_query) + results_bytes);
    if (call == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a lookup");
    }
    status = encode(lookup, &call->request);
    if (status != HPS_OK) {
        hpsd_call_free(call);
        return hps_error_set(err, status, "a lookup: %s", hps_status_text(status));
    }
    struct hpsd_query *queries = (struct hpsd_query *)(call + 1);
    struct hpsd_result *results =
        lookup->results != NULL ? lookup->results : (struct hpsd_result *)(queries + n);
    if (n > 0) {
        memcpy(queries, lookup->queries, n * sizeof(*queries));
    }
    hps_intake_init(&call->intake, lookup, queries, results);
    *out_call = call;
    return HPS_OK;
}

/* ---- lookups --------------------------------------------------------------------------------- */

enum hpsd_status hpsd_lookup(struct hpsd_client *client, const struct hpsd_lookup *lookup,
                             struct hpsd_reply *out_reply, struct hpsd_error *error)
{
    struct hpsd_call *call;
    struct hps_error err;
    enum hpsd_status code = hpsd_client_check(client, true, error);

    if (code != HPSD_OK) {
        return code;
    }
    if (make(client, lookup, &call, &err) != HPS_OK) {
        return hpsd_error_take(error, &err);
    }
    hpsd_client_wait(client, call);
    if (call->failed) {
        code = call->error.status;
        if (error != NULL) {
            *error = call->error;
        }
    } else if (out_reply != NULL) {
        *out_reply = call->reply;
    } else {
        hps_free(call->reply.memory);
    }
    hpsd_call_free(call);
    return code;
}

static void on_lookup_end(struct hpsd_call *call)
{
    static const struct hpsd_error ok = {.status = HPSD_OK};

    if (call->failed) {
        call->done(call->done_ctx, NULL, &call->error);
    } else {
        call->done(call->done_ctx, &call->reply, &ok);
    }
    hpsd_call_free(call);
}

enum hpsd_status hpsd_lookup_start(struct hpsd_client *client, const struct hpsd_lookup *lookup,
                                   hpsd_done_fn done, void *ctx, uint64_t *out_id,
                                   struct hpsd_error *error)
{
    struct hpsd_call *call;
    struct hps_error err;
    enum hpsd_status code = hpsd_client_check(client, false, error);

    if (code != HPSD_OK) {
        return code;
    }
    if (done == NULL) {
        (void)hps_error_set(&err, HPS_INVALID, "done: got NULL");
        return hpsd_error_take(error, &err);
    }
    if (make(client, lookup, &call, &err) != HPS_OK) {
        return hpsd_error_take(error, &err);
    }
    call->on_end = on_lookup_end;
    call->done = done;
    call->done_ctx = ctx;
    if (hpsd_client_submit(client, call, out_id) != HPS_OK) {
        hpsd_call_free(call);
        (void)hps_error_set(&err, HPS_CANCELLED, "the client is being closed");
        return hpsd_error_take(error, &err);
    }
    return HPSD_OK;
}
