/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the lookup of a KServe request, for either view of a model. It rejects requests that HPS
 * accepts unchecked: counts that do not match, and tensors that the view does not have. Any thread.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "server/kserve/infer.h"

/* The inputs of a request, sorted by name. */
struct inputs {
    const struct kserve_tensor **sorted; /* [n] */
    uint32_t *part; /* [n] the part of each input with keys; UINT32_MAX: none */
    uint32_t n;
};

/* The lookup and the data for its reply, while they are made. */
struct view {
    const struct kserve_infer *infer;
    const struct hps_decode_limits *limits;
    struct hps_arena *arena;
    struct hps_lookup_request request;
    struct kserve_answer answer;
    struct inputs inputs; /* only in the view ".tables" */
    struct hps_error *err;
};

static bool ends(struct kserve_text text, const char *with)
{
    size_t size = strlen(with);

    return text.size > size && memcmp(text.at + text.size - size, with, size) == 0;
}

static hps_status no_memory(const struct view *view)
{
    return hps_error_set(view->err, HPS_EXHAUSTED, "no memory for a request of %u inputs",
                         view->infer->n_inputs);
}

/* Copies a text, because the reply outlives the message. False: no memory. */
static bool copy_text(const struct view *view, struct kserve_text *text)
{
    char *copy = hps_arena_alloc(view->arena, text->size + 1);

    if (copy != NULL) {
        memcpy(copy, text->at == NULL ? "" : text->at, text->size);
        text->at = copy;
    }
    return copy != NULL;
}

/* ---- the request ----------------------------------------------------------------------------- */

static hps_status read_names(const struct kserve_infer *infer, struct hps_lookup_request *request,
                             struct hps_error *err)
{
    struct kserve_version version;
    struct kserve_text model = infer->model;
    hps_status status = kserve_version_read(infer->model_version, &version, err);

    if (status == HPS_OK) {
        (void)kserve_take_tables(&model);
        request->model = model.size == 0 ? "" : model.at;
        request->model_size = model.size;
        request->version = version.number;
        request->label = version.label.at;
        request->label_size = version.label.size;
    }
    return status;
}

void kserve_view_names(const struct kserve_infer *infer, struct hps_lookup_request *out_request)
{
    *out_request = (struct hps_lookup_request){0};
    hps_ignore(read_names(infer, out_request, NULL));
}

static hps_status read_miss_policy(struct view *view)
{
    static const struct {
        const char *name;
        enum hps_miss_policy policy;
    } policies[] = {{"exact", HPS_MISS_EXACT},
                    {"wait", HPS_MISS_WAIT},
                    {"memory_only", HPS_MISS_MEMORY_ONLY},
                    {"threshold", HPS_MISS_THRESHOLD}};
    struct kserve_text text = view->infer->miss_policy;

    if (text.size == 0) {
        return HPS_OK;
    }
    for (unsigned i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        if (kserve_is(text, policies[i].name)) {
            view->request.miss_policy = policies[i].policy;
            return HPS_OK;
        }
    }
    return hps_error_set(view->err, HPS_INVALID,
                         "parameter 'hps_miss_policy': '%.*s' is not exact, wait, memory_only or "
                         "threshold",
                         KSERVE_TEXT_ARGS(text));
}

static hps_status read_output_type(struct view *view)
{
    struct kserve_text text = view->infer->output_type;
    enum kserve_datatype datatype =
        text.size == 0 ? KSERVE_FP32 : kserve_datatype_of(text.at, text.size);

    switch (datatype) {
    case KSERVE_FP32:
        view->request.output = HPS_DTYPE_FP32;
        return HPS_OK;
    case KSERVE_FP16:
        view->request.output = HPS_DTYPE_FP16;
        return HPS_OK;
    case KSERVE_BF16:
        view->request.output = HPS_DTYPE_BF16;
        return HPS_OK;
    default:
        return hps_error_set(view->err, HPS_INVALID,
                             "parameter 'hps_output_type': '%.*s' is not FP32, FP16 or BF16; rows "
                             "as stored are available only in hps.v1",
                             KSERVE_TEXT_ARGS(text));
    }
}

static hps_status read_parameters(struct view *view)
{
    int64_t wait_us = view->infer->wait_us_max;
    hps_status status = read_names(view->infer, &view->request, view->err);

    if (status == HPS_OK) {
        status = read_miss_policy(view);
    }
    if (status == HPS_OK) {
        status = read_output_type(view);
    }
    if (status == HPS_OK && wait_us > UINT32_MAX) {
        status = hps_error_set(view->err, HPS_INVALID,
                               "parameter 'hps_max_wait_us': %" PRId64 ", limit is %" PRIu32,
                               wait_us, UINT32_MAX);
    }
    view->request.max_wait_us = wait_us < 0 ? 0 : (uint32_t)wait_us;
    return status;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static hps_status expect_datatype(const struct view *view, const struct kserve_tensor *tensor,
                                  enum kserve_datatype wanted)
{
    if (tensor->datatype == wanted) {
        return HPS_OK;
    }
    return hps_error_set(view->err, HPS_INVALID, "input '%.*s': its datatype is %s, expected %s",
                         KSERVE_TEXT_ARGS(tensor->name), kserve_datatype_name(tensor->datatype),
                         kserve_datatype_name(wanted));
}

/* [n] or [1, n]. */
static hps_status expect_one_row(const struct view *view, const struct kserve_tensor *tensor)
{
    if (tensor->n_dims == 1 || (tensor->n_dims == 2 && tensor->shape[0] == 1)) {
        return HPS_OK;
    }
    return hps_error_set(view->err, HPS_INVALID,
                         "input '%.*s': its shape has %u dimensions%s, expected [n] or [1, n]",
                         KSERVE_TEXT_ARGS(tensor->name), tensor->n_dims,
                         tensor->n_dims == 2 ? ", the first is not 1" : "");
}

static uint32_t n_values(const struct kserve_tensor *tensor)
{
    return (uint32_t)(tensor->size / kserve_datatype_bytes(tensor->datatype));
}

/* Keys of all tables: values of all inputs except NUMKEYS, offsets and weights. */
static uint64_t n_keys_of_all(const struct view *view)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < view->infer->n_inputs; i++) {
        const struct kserve_tensor *input = &view->infer->inputs[i];
        bool beside = kserve_is(input->name, KSERVE_NUMKEYS) || ends(input->name, KSERVE_OFFSETS) ||
                      ends(input->name, KSERVE_WEIGHTS);
        bool keys = input->datatype == KSERVE_INT64 || input->datatype == KSERVE_INT32;
        n += keys && !beside ? n_values(input) : 0;
    }
    return n;
}

static int64_t value_at(const struct kserve_tensor *tensor, uint32_t i)
{
    int64_t wide;
    int32_t narrow;

    if (tensor->datatype == KSERVE_INT64) {
        memcpy(&wide, tensor->data + i * sizeof(wide), sizeof(wide));
        return wide;
    }
    HPS_ASSERT(tensor->datatype == KSERVE_INT32);
    memcpy(&narrow, tensor->data + i * sizeof(narrow), sizeof(narrow));
    return narrow;
}

static hps_status expect_integers(const struct view *view, const struct kserve_tensor *tensor)
{
    if (tensor->datatype == KSERVE_INT64 || tensor->datatype == KSERVE_INT32) {
        return HPS_OK;
    }
    return hps_error_set(view->err, HPS_INVALID,
                         "input '%.*s': its datatype is %s, expected INT64 or INT32",
                         KSERVE_TEXT_ARGS(tensor->name), kserve_datatype_name(tensor->datatype));
}

/* Checks the type, and counts the keys against the limit of the whole request. */
static hps_status check_keys(struct view *view, const struct kserve_tensor *tensor)
{
    hps_status status = expect_integers(view, tensor);

    if (status != HPS_OK) {
        return status;
    }
    view->request.n_keys += n_values(tensor);
    if (view->request.n_keys > view->limits->keys_max) {
        uint64_t n = n_keys_of_all(view);
        return hps_error_set(
            view->err, HPS_INVALID,
            "input '%.*s': %" PRIu64
            " keys in the request, limit is %u; request fewer, or set server.keys_max to %" PRIu64,
            KSERVE_TEXT_ARGS(tensor->name), n, view->limits->keys_max, n);
    }
    return HPS_OK;
}

/* Takes the keys as INT64; INT32 keys are widened in the arena. False: no memory. */
static bool take_keys(const struct view *view, const struct kserve_tensor *tensor,
                      const uint8_t **out_keys)
{
    uint32_t n = n_values(tensor);
    int64_t *wide = NULL;

    *out_keys = tensor->data;
    if (n > 0 && tensor->datatype != KSERVE_INT64) {
        wide = hps_arena_alloc(view->arena, n * sizeof(*wide));
        *out_keys = (const uint8_t *)wide;
    }
    for (uint32_t i = 0; wide != NULL && i < n; i++) {
        wide[i] = value_at(tensor, i);
    }
    return n == 0 || *out_keys != NULL;
}

static hps_status make_queries(struct view *view, uint64_t n)
{
    if (n > view->limits->tables_max) {
        return hps_error_set(
            view->err, HPS_INVALID,
            "%" PRIu64 " tables, limit is %u; request fewer, or set server.tables_max to %" PRIu64,
            n, view->limits->tables_max, n);
    }
    view->request.queries =
        hps_arena_calloc(view->arena, (size_t)n + 1, sizeof(*view->request.queries));
    return view->request.queries == NULL ? no_memory(view) : HPS_OK;
}

/* ---- KEYS and NUMKEYS ------------------------------------------------------------------------ */

static hps_status find_inputs(const struct view *view, const struct kserve_tensor **out_keys,
                              const struct kserve_tensor **out_counts)
{
    const struct kserve_infer *infer = view->infer;

    *out_keys = NULL;
    *out_counts = NULL;
    for (uint32_t i = 0; i < infer->n_inputs; i++) {
        const struct kserve_tensor *input = &infer->inputs[i];
        if (kserve_is(input->name, KSERVE_KEYS)) {
            *out_keys = input;
        } else if (kserve_is(input->name, KSERVE_NUMKEYS)) {
            *out_counts = input;
        } else {
            return hps_error_set(view->err, HPS_INVALID,
                                 "unexpected input '%.*s' of model '%.*s': expected KEYS and "
                                 "NUMKEYS; model '%.*s.tables' has an input for each table",
                                 KSERVE_TEXT_ARGS(input->name), KSERVE_TEXT_ARGS(infer->model),
                                 KSERVE_TEXT_ARGS(infer->model));
        }
    }
    if (*out_keys == NULL || *out_counts == NULL) {
        return hps_error_set(view->err, HPS_INVALID, "input '%s' of model '%.*s' is missing",
                             *out_keys == NULL ? KSERVE_KEYS : KSERVE_NUMKEYS,
                             KSERVE_TEXT_ARGS(infer->model));
    }
    return HPS_OK;
}

/* A row of NUMKEYS has the counts of a sample. If there are several, KEYS must have as many rows.
 */
static hps_status find_samples(struct view *view, const struct kserve_tensor *keys,
                               const struct kserve_tensor *counts)
{
    uint32_t n_counts = n_values(counts);
    uint32_t n_samples = n_counts == 0 || counts->n_dims < 2
                             ? 1
                             : (uint32_t)(n_counts / (uint64_t)counts->shape[counts->n_dims - 1]);

    if (n_samples > 1 && (keys->n_dims < 2 || keys->shape[0] != n_samples)) {
        return hps_error_set(
            view->err, HPS_INVALID,
            "input 'NUMKEYS' has %u rows, one for each sample, but input 'KEYS' has %" PRId64
            " rows",
            n_samples, keys->n_dims < 2 ? 1 : keys->shape[0]);
    }
    if (n_samples > 1 && n_counts > view->limits->keys_max) {
        return hps_error_set(view->err, HPS_INVALID,
                             "input 'NUMKEYS': %u counts, limit is %u; send fewer samples, or set "
                             "server.keys_max to %u",
                             n_counts, view->limits->keys_max, n_counts);
    }
    view->answer.n_samples = n_samples;
    return make_queries(view, n_counts / n_samples);
}

static hps_status wrong_sum(const struct view *view, uint32_t sample, uint64_t sum, uint64_t n_keys)
{
    if (view->answer.n_samples == 1) {
        return hps_error_set(view->err, HPS_INVALID,
                             "input 'NUMKEYS': the sum of its %u counts is %" PRIu64
                             " keys, but input 'KEYS' has %" PRIu64,
                             view->request.n_queries, sum, n_keys);
    }
    return hps_error_set(view->err, HPS_INVALID,
                         "input 'NUMKEYS': the sum of row %u is %" PRIu64
                         " keys, but a row of 'KEYS' has %" PRIu64,
                         sample, sum, n_keys);
}

/* Adds the counts of each table to its query. Each sample must have n_keys keys. */
static hps_status count_keys(struct view *view, const struct kserve_tensor *counts, uint64_t n_keys)
{
    uint32_t n_tables = view->request.n_queries;
    uint32_t at = 0;

    for (uint32_t sample = 0; sample < view->answer.n_samples; sample++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n_tables; i++, at++) {
            int64_t n = value_at(counts, at);
            if (n < 0) {
                return hps_error_set(view->err, HPS_INVALID, "input 'NUMKEYS': [%u] is %" PRId64,
                                     at, n);
            }
            sum += (uint64_t)n;
            view->request.queries[i].n_keys += sum <= n_keys ? (uint32_t)n : 0;
        }
        if (sum != n_keys) {
            return wrong_sum(view, sample, sum, n_keys);
        }
    }
    return HPS_OK;
}

/* Sorts the keys of several samples by table, as INT64, and keeps the counts for the reply. NULL:
 * no memory. */
static const uint8_t *keys_by_table(struct view *view, const struct kserve_tensor *keys,
                                    const struct kserve_tensor *counts)
{
    uint32_t n_tables = view->request.n_queries;
    int64_t *to = hps_arena_alloc(view->arena, ((size_t)n_values(keys) + 1) * sizeof(*to));
    int64_t **next = hps_arena_calloc(view->arena, (size_t)n_tables + 1, sizeof(*next));
    uint32_t *kept = hps_arena_alloc(view->arena, n_values(counts) * sizeof(*kept));
    uint32_t at = 0;

    if (to == NULL || next == NULL || kept == NULL) {
        return NULL;
    }
    next[0] = to;
    for (uint32_t i = 1; i < n_tables; i++) {
        next[i] = next[i - 1] + view->request.queries[i - 1].n_keys;
    }
    for (uint32_t i = 0; i < n_values(counts); i++) {
        kept[i] = (uint32_t)value_at(counts, i);
        for (uint32_t k = 0; k < kept[i]; k++) {
            *next[i % n_tables]++ = value_at(keys, at++);
        }
    }
    view->answer.counts = kept;
    return (const uint8_t *)to;
}

static hps_status split_keys(struct view *view, const struct kserve_tensor *keys,
                             const struct kserve_tensor *counts)
{
    uint32_t n_samples = view->answer.n_samples;
    const uint8_t *at = NULL;

    view->request.n_queries = n_values(counts) / n_samples;
    hps_status status = count_keys(view, counts, n_values(keys) / n_samples);
    if (status != HPS_OK) {
        return status;
    }
    if (n_samples > 1) {
        at = keys_by_table(view, keys, counts);
    }
    if (n_samples > 1 ? at == NULL : !take_keys(view, keys, &at)) {
        return no_memory(view);
    }
    for (uint32_t i = 0; i < view->request.n_queries; i++) {
        struct hps_lookup_query *query = &view->request.queries[i];
        query->pooling = HPS_POOLING_NONE;
        if (query->n_keys > 0) {
            query->keys = at;
            at += query->n_keys * sizeof(hps_key);
        }
    }
    return HPS_OK;
}

static hps_status by_keys(struct view *view)
{
    const struct kserve_tensor *keys;
    const struct kserve_tensor *counts;
    hps_status status = find_inputs(view, &keys, &counts);

    if (status == HPS_OK) {
        status = check_keys(view, keys);
    }
    if (status == HPS_OK) {
        status = expect_datatype(view, counts, KSERVE_INT32);
    }
    if (status == HPS_OK && view->infer->pooling.size > 0) {
        status = hps_error_set(view->err, HPS_INVALID,
                               "parameter 'hps_pooling': only the model '%.*s.tables' has bags",
                               KSERVE_TEXT_ARGS(view->infer->model));
    }
    if (status == HPS_OK) {
        status = find_samples(view, keys, counts);
    }
    return status == HPS_OK ? split_keys(view, keys, counts) : status;
}

/* ---- a tensor for each table ----------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return kserve_text_compare(&(*(const struct kserve_tensor *const *)a)->name,
                               &(*(const struct kserve_tensor *const *)b)->name);
}

static hps_status sort_inputs(struct view *view, struct inputs *out)
{
    out->n = view->infer->n_inputs;
    out->sorted = hps_arena_calloc(view->arena, (size_t)out->n + 1, sizeof(struct kserve_tensor *));
    out->part = hps_arena_calloc(view->arena, (size_t)out->n + 1, sizeof(*out->part));
    if (out->sorted == NULL || out->part == NULL) {
        return no_memory(view);
    }
    for (uint32_t i = 0; i < out->n; i++) {
        out->sorted[i] = &view->infer->inputs[i];
        out->part[i] = UINT32_MAX;
    }
    qsort(out->sorted, out->n, sizeof(struct kserve_tensor *), by_name);
    return HPS_OK;
}

static const struct kserve_tensor *find_input(const struct inputs *inputs, const char *name,
                                              size_t size)
{
    const struct kserve_tensor wanted = {.name = {name, size}};
    const struct kserve_tensor *key = &wanted;
    const struct kserve_tensor *const *found =
        bsearch(&key, inputs->sorted, inputs->n, sizeof(key), by_name);

    return found == NULL ? NULL : *found;
}

/* The input of a table with this suffix, "items.offsets" for "items"; NULL: none. */
static const struct kserve_tensor *find_beside(const struct view *view, const struct inputs *inputs,
                                               struct kserve_text table, const char *suffix)
{
    size_t size = table.size + strlen(suffix);
    char *name = hps_arena_alloc(view->arena, size + 1);

    if (name == NULL) {
        return NULL; /* the arena is full, so the next allocation fails too */
    }
    memcpy(name, table.at, table.size);
    memcpy(name + table.size, suffix, strlen(suffix) + 1);
    return find_input(inputs, name, size);
}

/* The input "items" for "items.offsets"; NULL: none. */
static const struct kserve_tensor *find_base(const struct inputs *inputs, struct kserve_text name)
{
    const char *suffix = ends(name, KSERVE_OFFSETS)   ? KSERVE_OFFSETS
                         : ends(name, KSERVE_WEIGHTS) ? KSERVE_WEIGHTS
                                                      : NULL;

    return suffix == NULL ? NULL : find_input(inputs, name.at, name.size - strlen(suffix));
}

/* Whether this is "items.offsets" and the input "items" has keys. "items.offsets.weights" is not
 * such an input: it counts as a table, which the model does not have, so the request is rejected.
 */
static bool is_beside(const struct inputs *inputs, struct kserve_text name)
{
    const struct kserve_tensor *base = find_base(inputs, name);

    return base != NULL && find_base(inputs, base->name) == NULL;
}

/* Reads the offsets of bags: the first is 0, none is less than the one before, the last is the
 * number of keys. */
static hps_status read_offsets(struct view *view, const struct kserve_tensor *tensor,
                               struct hps_lookup_query *query)
{
    uint32_t n = n_values(tensor);
    int64_t before = 0;

    view->request.n_bags += n == 0 ? 0 : n - 1;
    if (n == 0 || view->request.n_bags > view->limits->keys_max) {
        return hps_error_set(view->err, HPS_INVALID,
                             "input '%.*s': got %u values, expected bags + 1, with at most %u bags "
                             "in the request (server.keys_max)",
                             KSERVE_TEXT_ARGS(tensor->name), n, view->limits->keys_max);
    }
    uint32_t *offsets = hps_arena_alloc(view->arena, (size_t)n * sizeof(*offsets));
    if (offsets == NULL) {
        return no_memory(view);
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t offset = value_at(tensor, i);
        bool good = i == 0 ? offset == 0 : offset >= before && offset <= query->n_keys;
        if (!good || (i == n - 1 && offset != query->n_keys)) {
            return hps_error_set(view->err, HPS_INVALID,
                                 "input '%.*s': [%u] is %" PRId64
                                 ", expected offsets that begin with 0, never decrease and end "
                                 "with the number of keys, %u",
                                 KSERVE_TEXT_ARGS(tensor->name), i, offset, query->n_keys);
        }
        offsets[i] = (uint32_t)offset;
        before = offset;
    }
    query->n_bags = n - 1;
    query->offsets = (const uint8_t *)offsets;
    return HPS_OK;
}

static hps_status read_pooling(const struct view *view, struct hps_lookup_query *query)
{
    struct kserve_text text = view->infer->pooling;

    if (text.size == 0) {
        return hps_error_set(view->err, HPS_INVALID,
                             "input '%.*s.offsets' needs the parameter 'hps_pooling': sum, mean, "
                             "mean_by_count or sqrtn",
                             (int)query->table_size, query->table);
    }
    if (!hps_pooling_parse(text.at, text.size, &query->pooling) ||
        query->pooling == HPS_POOLING_NONE) {
        return hps_error_set(view->err, HPS_INVALID,
                             "parameter 'hps_pooling': '%.*s' is not sum, mean, mean_by_count or "
                             "sqrtn",
                             KSERVE_TEXT_ARGS(text));
    }
    return HPS_OK;
}

static hps_status read_weights(const struct view *view, const struct kserve_tensor *tensor,
                               struct hps_lookup_query *query)
{
    hps_status status = expect_datatype(view, tensor, KSERVE_FP32);

    if (status == HPS_OK && n_values(tensor) != query->n_keys) {
        status =
            hps_error_set(view->err, HPS_INVALID, "input '%.*s': %u weights, but there are %u keys",
                          KSERVE_TEXT_ARGS(tensor->name), n_values(tensor), query->n_keys);
    }
    query->weights = tensor->data;
    return status;
}

static hps_status read_bags(struct view *view, const struct inputs *inputs,
                            struct hps_lookup_query *query)
{
    const struct kserve_text table = {query->table, query->table_size};
    const struct kserve_tensor *offsets = find_beside(view, inputs, table, KSERVE_OFFSETS);
    const struct kserve_tensor *weights = find_beside(view, inputs, table, KSERVE_WEIGHTS);

    query->pooling = HPS_POOLING_NONE;
    if (offsets == NULL && weights != NULL) {
        return hps_error_set(view->err, HPS_INVALID, "input '%.*s' needs the input '%.*s.offsets'",
                             KSERVE_TEXT_ARGS(weights->name), KSERVE_TEXT_ARGS(table));
    }
    if (offsets == NULL) {
        return HPS_OK;
    }
    hps_status status = read_pooling(view, query);
    if (status == HPS_OK) {
        status = expect_integers(view, offsets);
    }
    if (status == HPS_OK) {
        status = read_offsets(view, offsets, query);
    }
    return status == HPS_OK && weights != NULL ? read_weights(view, weights, query) : status;
}

static hps_status read_table(struct view *view, const struct kserve_tensor *tensor)
{
    uint32_t part = view->request.n_queries++;
    struct hps_lookup_query *query = &view->request.queries[part];
    hps_status status = check_keys(view, tensor);

    if (status == HPS_OK) {
        status = expect_one_row(view, tensor);
    }
    if (status != HPS_OK) {
        return status;
    }
    *query = (struct hps_lookup_query){
        .table = tensor->name.at, .table_size = tensor->name.size, .n_keys = n_values(tensor)};
    if (!take_keys(view, tensor, &query->keys)) {
        return no_memory(view);
    }
    view->inputs.part[tensor - view->infer->inputs] = part;
    return read_bags(view, &view->inputs, query);
}

static hps_status by_table(struct view *view)
{
    const struct kserve_infer *infer = view->infer;
    uint64_t n_tables = 0;
    hps_status status = sort_inputs(view, &view->inputs);

    for (uint32_t i = 0; status == HPS_OK && i < infer->n_inputs; i++) {
        n_tables += !is_beside(&view->inputs, infer->inputs[i].name);
    }
    if (status == HPS_OK) {
        status = make_queries(view, n_tables);
    }
    for (uint32_t i = 0; status == HPS_OK && i < infer->n_inputs; i++) {
        if (!is_beside(&view->inputs, infer->inputs[i].name)) {
            status = read_table(view, &infer->inputs[i]);
        }
    }
    if (status == HPS_OK && infer->pooling.size > 0 && view->request.n_bags == 0 &&
        view->request.n_queries == infer->n_inputs) {
        status = hps_error_set(
            view->err, HPS_INVALID,
            "parameter 'hps_pooling': no table has an input '<table>.offsets', which it needs");
    }
    return status;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* The part of a table; UINT32_MAX: the request has no keys of the table. */
static uint32_t find_part(const struct view *view, struct kserve_text table)
{
    const struct kserve_tensor *input = find_input(&view->inputs, table.at, table.size);

    return input == NULL ? UINT32_MAX : view->inputs.part[input - view->infer->inputs];
}

static hps_status add_output(struct view *view, const struct kserve_output *asked)
{
    struct kserve_answer_output *out = &view->answer.outputs[view->answer.n_outputs++];
    bool flat = view->answer.by_position && kserve_is(asked->name, KSERVE_OUTPUT0);
    uint32_t part = view->answer.by_position ? UINT32_MAX : find_part(view, asked->name);

    *out = (struct kserve_answer_output){.name = asked->name,
                                         .kind = flat                 ? KSERVE_OUTPUT_FLAT
                                                 : part != UINT32_MAX ? KSERVE_OUTPUT_TABLE
                                                                      : KSERVE_OUTPUT_STATUS,
                                         .part = part == UINT32_MAX ? 0 : part,
                                         .binary = asked->binary};
    if (out->kind == KSERVE_OUTPUT_STATUS && !kserve_is(asked->name, KSERVE_STATUS) &&
        !kserve_is(asked->name, KSERVE_STATUS_ANY)) {
        return hps_error_set(
            view->err, HPS_INVALID,
            view->answer.by_position
                ? "unexpected output '%.*s' of model '%.*s': expected OUTPUT0 or STATUS"
                : "unexpected output '%.*s' of model '%.*s': expected STATUS, or a table that has "
                  "keys in the request",
            KSERVE_TEXT_ARGS(asked->name), KSERVE_TEXT_ARGS(view->infer->model));
    }
    return copy_text(view, &out->name) ? HPS_OK : no_memory(view);
}

static hps_status add_outputs(struct view *view)
{
    const struct kserve_infer *infer = view->infer;
    bool by_position = view->answer.by_position;
    bool all = infer->n_outputs == 0;
    uint32_t n = !all ? infer->n_outputs : by_position ? 1 : view->request.n_queries;
    hps_status status = HPS_OK;

    view->answer.outputs =
        hps_arena_calloc(view->arena, (size_t)n + 1, sizeof(*view->answer.outputs));
    if (view->answer.outputs == NULL) {
        return no_memory(view);
    }
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        struct kserve_output output = {.name = {KSERVE_OUTPUT0, sizeof(KSERVE_OUTPUT0) - 1},
                                       .binary = infer->binary};
        if (!all) {
            output = infer->outputs[i];
        } else if (!by_position) {
            output.name.at = view->request.queries[i].table;
            output.name.size = view->request.queries[i].table_size;
        }
        status = add_output(view, &output);
    }
    return status;
}

hps_status kserve_view(const struct kserve_infer *infer, const struct hps_decode_limits *limits,
                       struct hps_arena *arena, struct hps_lookup_request *out_request,
                       struct kserve_answer *out_answer, struct hps_error *err)
{
    bool by_position = !ends(infer->model, KSERVE_TABLES);
    struct view view = {
        .infer = infer,
        .limits = limits,
        .arena = arena,
        .request = {.request_id = infer->id.size == 0 ? NULL : infer->id.at,
                    .request_id_size = infer->id.size,
                    .timeout_us = infer->timeout_us},
        .answer = {.model = infer->model, .id = infer->id, .by_position = by_position},
        .err = err};
    hps_status status = read_parameters(&view);

    if (status == HPS_OK) {
        status = by_position ? by_keys(&view) : by_table(&view);
    }
    if (status == HPS_OK) {
        status = add_outputs(&view);
    }
    if (status == HPS_OK &&
        !(copy_text(&view, &view.answer.model) && copy_text(&view, &view.answer.id))) {
        status = no_memory(&view);
    }
    if (status == HPS_OK) {
        *out_request = view.request;
        *out_answer = view.answer;
    }
    return status;
}
