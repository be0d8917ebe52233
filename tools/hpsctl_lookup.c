/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs of hpsctl about keys: lookup and explain. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "client/lookup.h"
#include "tools/hpsctl.h"

enum { VALUES_DEFAULT = 6, REQUEST_BYTES_MAX = 32 << 20 };

static struct {
    int64_t version;
    const char *miss_policy;
    const char *pooling;
    const char *output_type;
    uint64_t n_values;
} lookup_flags = {
    .miss_policy = "table",
    .pooling = "none",
    .output_type = "fp32",
    .n_values = VALUES_DEFAULT,
};

const struct hps_arg hpsctl_lookup_args[] = {
    {"version", 0, HPS_ARG_I64, "N", &lookup_flags.version,
     "ask this version (default: the active one)"},
    {"miss-policy", 0, HPS_ARG_CHOICE, HPS_CLIENT_LOOKUP_MISS_POLICIES, &lookup_flags.miss_policy,
     "what the server does on a miss (default table: as the model is configured)"},
    {"pooling", 0, HPS_ARG_CHOICE, HPS_CLIENT_LOOKUP_POOLINGS, &lookup_flags.pooling,
     "each argument is a bag, KEY[:WEIGHT],KEY[:WEIGHT],..., whose rows are combined into one "
     "(default none: each argument is a key); '' is a bag without keys"},
    {"output-type", 0, HPS_ARG_CHOICE, HPS_CLIENT_LOOKUP_OUTPUT_TYPES, &lookup_flags.output_type,
     "type of the values in the reply (default fp32); raw: as stored, and print that type"},
    {"values", 0, HPS_ARG_U64, "N", &lookup_flags.n_values,
     "number of values of each row to show (default 6; 0: all)"},
    HPS_ARGS_END,
};

static int show_reply(struct hpsctl *ctl, const struct hps_client_lookup_query *query,
                      const struct hps_buf *bytes)
{
    const struct hpsctl_rows_options options = {
        .n_values = lookup_flags.n_values,
        .as_stored = strcmp(lookup_flags.output_type, "raw") == 0,
    };
    struct hps_error err = {0};
    struct hps_client_lookup_reply reply;
    struct hps_client_lookup_result result;
    hps_status status = hps_client_lookup_reply_open(bytes->data, bytes->size, &reply, &err);

    if (status == HPS_OK) {
        status = hps_client_lookup_reply_next(&reply, &result, &err);
    }
    if (status == HPS_OK) {
        status = hps_client_lookup_check(query, 0, &result, &err);
    }
    if (status == HPS_OK && result.row_count != hps_client_lookup_rows(query)) {
        status = hps_error_set(&err, HPS_DATA_LOSS, "the server returned %" PRIu32 " of %zu rows",
                               result.row_count, hps_client_lookup_rows(query));
    }
    if (status != HPS_OK) {
        return hpsctl_fail(ctl, &err);
    }
    int code = hpsctl_rows_print(ctl, query, &reply, &result, &options);
    bool none = query->n_keys > 0 && result.unknown_key_count == query->n_keys;
    return code == TOOL_OK && none ? TOOL_NEGATIVE : code;
}

/* Looks up the rows of one query and shows them. */
static int call(struct hpsctl *ctl, const struct hps_client_lookup_query *query)
{
    struct hps_client_lookup lookup = {
        .model = ctl->words[0],
        .version = lookup_flags.version,
        .queries = query,
        .n_queries = 1,
    };
    struct hps_error err = {0};
    struct hps_buf request, reply;
    enum hps_dtype output = HPS_DTYPE_FP32;

    /* Other words were rejected before. */
    (void)hps_args_choice(HPS_CLIENT_LOOKUP_MISS_POLICIES, lookup_flags.miss_policy,
                          &lookup.miss_policy);
    (void)hps_dtype_parse(lookup_flags.output_type, strlen(lookup_flags.output_type), &output);
    lookup.output_type = output;
    hps_buf_init(&request, REQUEST_BYTES_MAX);
    hps_buf_init(&reply, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_status status = hps_client_lookup_encode(&lookup, &request);
    if (status != HPS_OK) {
        (void)hps_error_set(&err, status, "%zu keys: %s", query->n_keys, hps_status_text(status));
    } else {
        status = hps_client_call(ctl->client, HPS_CLIENT_LOOKUP_PATH, request.data, request.size,
                                 ctl->timeout_us, &reply, &err);
    }
    int code = status == HPS_OK ? show_reply(ctl, query, &reply) : hpsctl_fail(ctl, &err);
    hps_buf_fini(&reply);
    hps_buf_fini(&request);
    return code;
}

int hpsctl_lookup(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words >= 3);
    enum hps_pooling pooling = HPS_POOLING_NONE;
    struct hpsctl_keys keys;

    (void)hps_pooling_parse(lookup_flags.pooling, strlen(lookup_flags.pooling), &pooling);
    bool pooled = pooling != HPS_POOLING_NONE;
    int code = hpsctl_keys_read(ctl, 2, pooled, &keys);
    if (code != TOOL_OK) {
        return code;
    }
    const struct hps_client_lookup_query query = {
        .table = ctl->words[1],
        .keys = keys.keys,
        .n_keys = keys.n_keys,
        .pooling = pooling,
        .n_bags = keys.n_bags,
        .offsets = pooled ? keys.offsets : NULL,
        .weights = keys.weighted ? keys.weights : NULL,
    };
    code = hpsctl_open(ctl);
    if (code == TOOL_OK) {
        code = call(ctl, &query);
    }
    hpsctl_keys_free(&keys);
    return code;
}

/* ---- explain --------------------------------------------------------------------------------- */

static int64_t explain_version;

const struct hps_arg hpsctl_explain_args[] = {
    {"version", 0, HPS_ARG_I64, "N", &explain_version,
     "ask this version (default: the active one)"},
    HPS_ARGS_END,
};

/* Dim and type of the table; 0: not known. */
static uint32_t table_type(struct hpsctl *ctl, int64_t version, enum hps_dtype *out_dtype)
{
    Hps__V1__ListTablesRequest request = HPS__V1__LIST_TABLES_REQUEST__INIT;
    Hps__V1__ListTablesResponse *list = NULL;
    uint32_t dim = 0;

    request.model = ctl->words[0];
    request.version = version;
    if (hpsctl_call(ctl, "ListTables", &request.base, &hps__v1__list_tables_response__descriptor,
                    &list) != TOOL_OK) {
        return 0;
    }
    for (size_t i = 0; i < list->n_tables; i++) {
        const Hps__V1__TableInfo *info = list->tables[i];
        if (strcmp(info->table, ctl->words[1]) == 0) {
            dim = info->dim;
            (void)hps_dtype_parse(info->data_type, strlen(info->data_type), out_dtype);
        }
    }
    hps_message_free(&list->base);
    return dim;
}

static int print_explain(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {"TIER", "HAS IT", ">MICROSECONDS", "ROW", "ERROR", NULL};
    const Hps__V1__ExplainKeyResponse *answer = reply;
    struct hpsctl_table table;
    struct hps_client_lookup_result row = {.row_count = 1, .dtype = HPS_DTYPE_FP32};
    char text[384];

    row.dim = table_type(ctl, answer->version, &row.dtype);
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < answer->n_tiers; i++) {
        const Hps__V1__TierAnswer *tier = answer->tiers[i];
        hpsctl_table_cell(&table, "%s", tier->tier);
        hpsctl_table_cell(&table, "%s", tier->found ? "yes" : "no");
        hpsctl_table_cell(&table, "%" PRIu64, tier->duration_us);
        text[0] = '\0';
        if (tier->row.len > 0 && tier->row.len == hps_dtype_row_bytes(row.dtype, row.dim)) {
            row.rows = tier->row.data;
            hpsctl_row_text(&row, 0, VALUES_DEFAULT, text, sizeof(text));
        }
        hpsctl_table_cell(&table, "%s", text);
        hpsctl_table_cell(&table, "%s", tier->error);
    }
    int code = hpsctl_table_print(&table);
    bool unknown = answer->state == HPS__V1__KEY_STATE__KEY_STATE_UNKNOWN;
    printf("version %" PRId64 ": the key is %s\n", answer->version,
           unknown ? "in no tier" : "found");
    return unknown && code == TOOL_OK ? TOOL_NEGATIVE : code;
}

int hpsctl_explain(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 3);
    Hps__V1__ExplainKeyRequest request = HPS__V1__EXPLAIN_KEY_REQUEST__INIT;
    uint64_t key;

    if (!hpsctl_key_arg(ctl, ctl->words[2], &key)) {
        return TOOL_USAGE;
    }
    request.model = ctl->words[0];
    request.table = ctl->words[1];
    request.key = (int64_t)key;
    request.version = explain_version;
    return hpsctl_call_print(ctl, "ExplainKey", &request.base,
                             &hps__v1__explain_key_response__descriptor, print_explain);
}
