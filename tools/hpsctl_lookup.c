/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs of hpsctl about keys: lookup and explain. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/assert.h"
#include "client/hpsd.h"
#include "tools/hpsctl.h"
#include "tools/rows.h"

enum { VALUES_DEFAULT = 6 };

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
    {"miss-policy", 0, HPS_ARG_CHOICE, ROWS_MISS_POLICIES, &lookup_flags.miss_policy,
     "what the server does on a miss (default table: as the model is configured)"},
    {"pooling", 0, HPS_ARG_CHOICE, ROWS_POOLINGS, &lookup_flags.pooling,
     "each argument is a bag, KEY[:WEIGHT],KEY[:WEIGHT],..., whose rows are combined into one "
     "(default none: each argument is a key); '' is a bag without keys"},
    {"output-type", 0, HPS_ARG_CHOICE, ROWS_OUTPUT_TYPES, &lookup_flags.output_type,
     "type of the values in the reply (default fp32); raw: as stored, and print that type"},
    {"values", 0, HPS_ARG_U64, "N", &lookup_flags.n_values,
     "number of values of each row to show (default 6; 0: all)"},
    HPS_ARGS_END,
};

static int show_reply(const struct hpsctl *ctl, const struct hpsd_query *query,
                      const struct hpsd_reply *reply, const struct hpsd_result *result)
{
    const struct hpsctl_rows_options options = {
        .n_values = lookup_flags.n_values,
        .as_stored = strcmp(lookup_flags.output_type, "raw") == 0,
    };
    int code = hpsctl_rows_print(ctl, query, reply, result, &options);
    bool none = query->n_keys > 0 && result->n_unknown == query->n_keys;

    return code == TOOL_OK && none ? TOOL_NEGATIVE : code;
}

static int failed(struct hpsctl *ctl, const struct hpsd_error *error)
{
    struct hps_error err;

    (void)hps_error_set(&err, hps_status_of_grpc((int)error->status), "%s", error->text);
    return hpsctl_fail(ctl, &err);
}

/* Looks up the rows of one query and shows them. */
static int call(struct hpsctl *ctl, struct hpsd_client *client, const struct hpsd_query *query)
{
    struct hpsd_result result;
    struct hpsd_lookup lookup = {
        .model = ctl->words[0],
        .version = lookup_flags.version,
        .queries = query,
        .n_queries = 1,
        .timeout_us = ctl->timeout_us,
        .results = &result,
    };
    struct hpsd_error error;
    struct hpsd_reply reply;
    enum hps_dtype output = HPS_DTYPE_FP32;
    uint32_t miss_policy = 0;

    /* Other words were rejected before. */
    (void)hps_args_choice(ROWS_MISS_POLICIES, lookup_flags.miss_policy, &miss_policy);
    (void)hps_dtype_parse(lookup_flags.output_type, strlen(lookup_flags.output_type), &output);
    lookup.miss_policy = (enum hpsd_miss_policy)miss_policy;
    lookup.output_type = (enum hpsd_dtype)output;
    if (hpsd_lookup(client, &lookup, &reply, &error) != HPSD_OK) {
        return failed(ctl, &error);
    }
    int code = show_reply(ctl, query, &reply, &result);
    hpsd_free(reply.memory);
    return code;
}

/* Makes a client, which has reached the server. Returns TOOL_OK, or the exit code after printing
 * the error. */
static int open_client(struct hpsctl *ctl, struct hpsd_client **out_client)
{
    const struct hpsd_options options = tool_hpsd_options(&ctl->connect);
    struct hps_error err;
    struct hpsd_error error;
    struct hpsd_client *client = NULL;

    hps_status status = tool_address_check("--addr (or $HPSD_ADDR)", ctl->connect.address, &err);
    if (status != HPS_OK) {
        return hpsctl_open_failed(status, err.text);
    }
    enum hpsd_status code = hpsd_open(&options, &client, &error);
    if (code == HPSD_OK) {
        code = hpsd_connect(client, ctl->timeout_us, &error);
    }
    if (code != HPSD_OK) {
        hpsd_close(client);
        return hpsctl_open_failed(hps_status_of_grpc((int)code), error.text);
    }
    *out_client = client;
    return TOOL_OK;
}

int hpsctl_lookup(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words >= 3);
    enum hps_pooling pooling = HPS_POOLING_NONE;
    struct hpsctl_keys keys;
    struct hpsd_client *client = NULL;

    (void)hps_pooling_parse(lookup_flags.pooling, strlen(lookup_flags.pooling), &pooling);
    bool pooled = pooling != HPS_POOLING_NONE;
    int code = hpsctl_keys_read(ctl, 2, pooled, &keys);
    if (code != TOOL_OK) {
        return code;
    }
    const struct hpsd_query query = {
        .table = ctl->words[1],
        .keys = keys.keys,
        .n_keys = keys.n_keys,
        .pooling = pooled ? (enum hpsd_pooling)pooling : HPSD_POOLING_NONE,
        .n_bags = keys.n_bags,
        .offsets = pooled ? keys.offsets : NULL,
        .weights = keys.weighted ? keys.weights : NULL,
        .key_status = keys.status,
    };
    code = open_client(ctl, &client);
    if (code == TOOL_OK) {
        code = call(ctl, client, &query);
        hpsd_close(client);
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
    struct hpsd_result row = {.n_rows = 1};
    enum hps_dtype dtype = HPS_DTYPE_FP32;
    char text[384];

    row.dim = table_type(ctl, answer->version, &dtype);
    row.dtype = (enum hpsd_dtype)dtype;
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < answer->n_tiers; i++) {
        const Hps__V1__TierAnswer *tier = answer->tiers[i];
        hpsctl_table_cell(&table, "%s", tier->tier);
        hpsctl_table_cell(&table, "%s", tier->found ? "yes" : "no");
        hpsctl_table_cell(&table, "%" PRIu64, tier->duration_us);
        text[0] = '\0';
        if (tier->row.len > 0 && tier->row.len == hpsd_row_bytes(row.dtype, row.dim)) {
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
