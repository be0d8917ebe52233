/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the decoder of LookupRequest with protobuf-c. If hpsd accepts a message, protobuf-c must
 * accept it, and the contents must be equal. If protobuf-c has written a message, hpsd must not
 * call it malformed.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "hps/v1/lookup.pb-c.h"
#include "server/lookup/decode.h"

enum { ARENA_BYTES = 1 << 20 };

static const struct hps_decode_limits LIMITS = {
    .tables_max = 64, .keys_max = 4096, .request_id_max = 128};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* protobuf-c ends a string at its first NUL. */
static void check_text(const char *ours, size_t size, const char *theirs)
{
    size_t n = size == 0 ? 0 : strnlen(ours, size);

    HPS_ASSERT(strlen(theirs) == n);
    HPS_ASSERT(n == 0 || memcmp(ours, theirs, n) == 0);
}

/* With pooling, each key belongs to exactly one bag. Without pooling there are no bags. */
static void check_bags(const struct hps_lookup_query *ours, const Hps__V1__TableQuery *theirs)
{
    uint32_t pooling = (uint32_t)theirs->pooling;
    uint32_t before = 0;

    HPS_ASSERT((uint32_t)ours->pooling == (pooling == 0 ? 1 : pooling));
    HPS_ASSERT(pooling <= HPS_POOLING_MEAN_BY_COUNT);
    if (ours->pooling == HPS_POOLING_NONE) {
        HPS_ASSERT(theirs->offsets.len == 0 && ours->offsets == NULL && ours->n_bags == 0);
        HPS_ASSERT(theirs->weights.len == 0 && ours->weights == NULL);
        return;
    }
    HPS_ASSERT(theirs->offsets.len == ((size_t)ours->n_bags + 1) * sizeof(uint32_t));
    HPS_ASSERT(memcmp(theirs->offsets.data, ours->offsets, theirs->offsets.len) == 0);
    for (size_t i = 0; i <= ours->n_bags; i++) {
        uint32_t offset;
        memcpy(&offset, ours->offsets + i * sizeof(offset), sizeof(offset));
        HPS_ASSERT(offset >= before && (i > 0 || offset == 0));
        before = offset;
    }
    HPS_ASSERT(before == ours->n_keys);
    HPS_ASSERT(theirs->weights.len == (ours->weights == NULL ? 0 : ours->n_keys * sizeof(float)));
    HPS_ASSERT(ours->weights == NULL ||
               memcmp(theirs->weights.data, ours->weights, theirs->weights.len) == 0);
}

static void check_query(const struct hps_lookup_query *ours, const Hps__V1__TableQuery *theirs)
{
    size_t size = (size_t)ours->n_keys * sizeof(hps_key);

    check_text(ours->table, ours->table_size, theirs->table);
    check_bags(ours, theirs);
    if (theirs->n_key_list > 0) {
        HPS_ASSERT(theirs->keys.len == 0);
        HPS_ASSERT(theirs->n_key_list == ours->n_keys);
        HPS_ASSERT(memcmp(theirs->key_list, ours->keys, size) == 0);
    } else {
        HPS_ASSERT(theirs->keys.len == size);
        HPS_ASSERT(size == 0 || memcmp(theirs->keys.data, ours->keys, size) == 0);
    }
}

static uint32_t n_rows_of(const struct hps_lookup_query *query)
{
    return query->pooling == HPS_POOLING_NONE ? query->n_keys : query->n_bags;
}

static void check_request(const struct hps_lookup_request *ours,
                          const Hps__V1__LookupRequest *theirs)
{
    uint64_t n_keys = 0;
    uint64_t n_bags = 0;

    check_text(ours->model, ours->model_size, theirs->model);
    check_text(ours->request_id, ours->request_id_size, theirs->request_id);
    HPS_ASSERT(ours->version == theirs->version);
    HPS_ASSERT(ours->n_queries == theirs->n_queries);
    HPS_ASSERT((uint32_t)ours->miss_policy == (uint32_t)theirs->miss_policy);
    HPS_ASSERT(ours->max_wait_us == theirs->max_wait_us);
    HPS_ASSERT((uint32_t)ours->unknown_policy == (uint32_t)theirs->unknown_key_policy);
    HPS_ASSERT((uint32_t)ours->output == (uint32_t)theirs->output_type ||
               (theirs->output_type == 0 && ours->output == HPS_DTYPE_FP32));
    HPS_ASSERT(ours->explain == (theirs->explain != 0));
    HPS_ASSERT(ours->max_staleness_ms == theirs->max_staleness_ms);
    HPS_ASSERT(ours->unit == (theirs->consistency == HPS__V1__CONSISTENCY__CONSISTENCY_UNIT));
    HPS_ASSERT((uint32_t)theirs->consistency <= 2);
    HPS_ASSERT(ours->concat == (theirs->row_layout == HPS__V1__ROW_LAYOUT__ROW_LAYOUT_CONCAT));
    HPS_ASSERT((uint32_t)theirs->row_layout <= 2);
    check_text(ours->label, ours->label_size, theirs->label);
    HPS_ASSERT(ours->label_size == 0 || ours->version == 0);
    HPS_ASSERT(!ours->concat || ours->output != HPS_DTYPE_RAW);
    for (uint32_t i = 0; i < ours->n_queries; i++) {
        const struct hps_lookup_query *query = &ours->queries[i];
        check_query(query, theirs->queries[i]);
        HPS_ASSERT(ours->output != HPS_DTYPE_RAW || query->pooling == HPS_POOLING_NONE);
        HPS_ASSERT(!ours->concat || n_rows_of(query) == n_rows_of(&ours->queries[0]));
        n_keys += query->n_keys;
        n_bags += query->n_bags;
    }
    HPS_ASSERT(ours->n_keys == n_keys && ours->n_bags == n_bags);
    HPS_ASSERT(n_bags <= LIMITS.keys_max);
}

/* protobuf-c keeps unknown fields, also with invalid numbers, and writes them again. */
static bool has_unknown(const Hps__V1__LookupRequest *request)
{
    bool unknown = request->base.n_unknown_fields > 0;

    for (size_t i = 0; i < request->n_queries; i++) {
        unknown = unknown || request->queries[i]->base.n_unknown_fields > 0;
    }
    return unknown;
}

/* hpsd may refuse a message that protobuf-c has written only because of its contents. */
static void check_canonical(const Hps__V1__LookupRequest *theirs)
{
    struct hps_arena *arena = hps_arena_new(4096, ARENA_BYTES);
    size_t size = hps__v1__lookup_request__get_packed_size(theirs);
    uint8_t *bytes = hps_alloc(size);
    struct hps_lookup_request request;
    struct hps_error err;

    if (arena != NULL && bytes != NULL) {
        hps__v1__lookup_request__pack(theirs, bytes);
        hps_status status = hps_decode_lookup(bytes, size, &LIMITS, arena, &request, &err);
        if (status == HPS_OK) {
            check_request(&request, theirs);
        } else {
            HPS_ASSERT(err.status == status);
            HPS_ASSERT(strstr(err.text, "malformed") == NULL);
        }
    }
    hps_free(bytes);
    hps_arena_free(arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hps_arena *arena = hps_arena_new(4096, ARENA_BYTES);
    struct hps_lookup_request request;
    struct hps_error err;

    if (arena == NULL) {
        return 0;
    }
    hps_status status = hps_decode_lookup(data, size, &LIMITS, arena, &request, &err);
    Hps__V1__LookupRequest *theirs = hps__v1__lookup_request__unpack(NULL, size, data);
    if (status == HPS_OK) {
        HPS_ASSERT(theirs != NULL);
        check_request(&request, theirs);
    }
    if (theirs != NULL && !has_unknown(theirs)) {
        check_canonical(theirs);
    }
    if (theirs != NULL) {
        hps__v1__lookup_request__free_unpacked(theirs, NULL);
    }
    hps_arena_free(arena);
    return 0;
}
