/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs of hpsctl about keys: lookup and explain. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/text.h"
#include "client/lookup.h"
#include "tools/hpsctl.h"

enum { VALUES_DEFAULT = 6, REQUEST_BYTES_MAX = 32 << 20 };

static struct {
    int64_t version;
    const char *miss_policy;
    uint64_t n_values;
} lookup_flags = {0, "table", VALUES_DEFAULT};

const struct hps_arg hpsctl_lookup_args[] = {
    {"version", 0, HPS_ARG_I64, "N", &lookup_flags.version,
     "ask this version (default: the active one)"},
    {"miss-policy", 0, HPS_ARG_CHOICE, HPS_CLIENT_LOOKUP_MISS_POLICIES, &lookup_flags.miss_policy,
     "what the server does about misses (default table: as the model is configured)"},
    {"values", 0, HPS_ARG_U64, "N", &lookup_flags.n_values,
     "how many values of each row to show (default 6; 0: all)"},
    HPS_ARGS_END,
};

static const char *key_status_text(enum hps_key_status status)
{
    switch (status) {
    case HPS_KEY_FOUND:
        return "found";
    case HPS_KEY_DEFAULTED:
        return "defaulted";
    case HPS_KEY_UNKNOWN:
        return "unknown";
    }
    return "?";
}

static hps_status row_json(const struct hps_client_lookup_result *result, uint32_t row, int64_t key,
                           struct hps_buf *buf)
{
    hps_status status = hps_buf_printf(buf, "%s{\"key\":%" PRId64 ",\"status\":\"%s\",\"row\":[",
                                       row == 0 ? "" : ",", key,
                                       key_status_text(hps_client_lookup_key_status(result, row)));

    for (uint32_t i = 0; i < result->dim && status == HPS_OK; i++) {
        status = i == 0 ? HPS_OK : hps_buf_append(buf, ",", 1);
        if (status == HPS_OK) {
            status = hps_json_float(buf, hps_client_lookup_value(result, row, i));
        }
    }
    return status != HPS_OK ? status : hps_buf_append(buf, "]}", 2);
}

static int print_json(const struct hps_client_lookup_reply *reply,
                      const struct hps_client_lookup_result *result, const hps_key *keys)
{
    struct hps_buf buf;

    hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_status status = hps_buf_append(&buf, "{\"model\":", 9);
    if (status == HPS_OK) {
        status = hps_json_text(&buf, reply->model.data, reply->model.size);
    }
    if (status == HPS_OK) {
        status = hps_buf_printf(&buf, ",\"version\":%" PRId64 ",\"table\":", reply->version);
    }
    if (status == HPS_OK) {
        status = hps_json_text(&buf, result->table.data, result->table.size);
    }
    if (status == HPS_OK) {
        status = hps_buf_printf(&buf, ",\"dim\":%" PRIu32 ",\"rows\":[", result->dim);
    }
    for (uint32_t i = 0; i < result->row_count && status == HPS_OK; i++) {
        status = row_json(result, i, (int64_t)keys[i], &buf);
    }
    if (status == HPS_OK) {
        status = hps_buf_append(&buf, "]}", 2);
    }
    return hpsctl_print_buf(&buf, status);
}

static void row_text(const struct hps_client_lookup_result *result, uint32_t row, char *out,
                     size_t size)
{
    HPS_ASSERT(size > 0);
    uint64_t n = lookup_flags.n_values == 0 || lookup_flags.n_values > result->dim
                     ? result->dim
                     : lookup_flags.n_values;
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < n && used + 1 < size; i++) {
        int written = snprintf(out + used, size - used, "%s%.6g", i == 0 ? "" : " ",
                               (double)hps_client_lookup_value(result, row, i));
        used += written > 0 ? (size_t)written : 0;
    }
    if (n < result->dim && used + 4 < size) {
        (void)snprintf(out + used, size - used, " ...");
    }
}

static int print_rows(const struct hps_client_lookup_reply *reply,
                      const struct hps_client_lookup_result *result, const hps_key *keys)
{
    HPS_ASSERT(result->row_count == 0 || keys != NULL);
    static const char *const columns[] = {">KEY", "STATUS", "ROW", NULL};
    struct hpsctl_table table;
    char text[384];

    if (lookup_flags.n_values == 0) { /* rows of any width: no table */
        for (uint32_t i = 0; i < result->row_count; i++) {
            printf("%" PRId64 " %s", (int64_t)keys[i],
                   key_status_text(hps_client_lookup_key_status(result, i)));
            for (uint32_t v = 0; v < result->dim; v++) {
                printf(" %.9g", (double)hps_client_lookup_value(result, i, v));
            }
            printf("\n");
        }
        return TOOL_OK;
    }
    hpsctl_table_init(&table, columns);
    for (uint32_t i = 0; i < result->row_count; i++) {
        hpsctl_table_cell(&table, "%" PRId64, (int64_t)keys[i]);
        hpsctl_table_cell(&table, "%s", key_status_text(hps_client_lookup_key_status(result, i)));
        row_text(result, i, text, sizeof(text));
        hpsctl_table_cell(&table, "%s", text);
    }
    int code = hpsctl_table_print(&table);
    printf("version %" PRId64 ", dim %" PRIu32 ", %" PRIu32 " unknown, %" PRIu32 " defaulted",
           reply->version, result->dim, result->unknown_key_count, result->defaulted_key_count);
    for (uint32_t i = 0; i < result->n_tiers; i++) {
        const struct hps_client_lookup_text *name = &result->tiers[i].name;
        (void)hps_text_plain(name->data, name->size, text, sizeof(text));
        printf(", %" PRIu32 " from %s", result->tiers[i].found_keys, text);
    }
    printf("\n");
    return code;
}

static int show_reply(struct hpsctl *ctl, const struct hps_buf *bytes, const hps_key *keys,
                      size_t n_keys)
{
    struct hps_error err = {0};
    struct hps_client_lookup_reply reply;
    struct hps_client_lookup_result result;
    hps_status status = hps_client_lookup_reply_open(bytes->data, bytes->size, &reply, &err);

    if (status == HPS_OK) {
        status = hps_client_lookup_reply_next(&reply, &result, &err);
    }
    if (status == HPS_OK && result.row_count != n_keys) {
        status = hps_error_set(&err, HPS_DATA_LOSS, "the server answered %" PRIu32 " of %zu keys",
                               result.row_count, n_keys);
    }
    if (status != HPS_OK) {
        return hpsctl_fail(ctl, &err);
    }
    int code =
        hpsctl_json(ctl) ? print_json(&reply, &result, keys) : print_rows(&reply, &result, keys);
    return code == TOOL_OK && result.unknown_key_count == n_keys ? TOOL_NEGATIVE : code;
}

int hpsctl_lookup(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words >= 3);
    struct hps_error err = {0};
    struct hps_buf request, reply;
    size_t n_keys = (size_t)ctl->n_words - 2;
    int code = TOOL_USAGE;
    hps_key *keys = hps_calloc(n_keys, sizeof(*keys));

    hps_buf_init(&request, REQUEST_BYTES_MAX);
    hps_buf_init(&reply, HPS_CLIENT_REPLY_BYTES_MAX);
    for (size_t i = 0; keys != NULL && i < n_keys; i++) {
        if (!hpsctl_key_arg(ctl, ctl->words[2 + i], &keys[i])) {
            goto out;
        }
    }
    code = hpsctl_open(ctl);
    if (code != TOOL_OK) {
        goto out;
    }
    struct hps_client_lookup_query query = {ctl->words[1], keys, n_keys};
    struct hps_client_lookup lookup = {
        .model = ctl->words[0],
        .version = lookup_flags.version,
        .queries = &query,
        .n_queries = 1,
    };
    (void)hps_args_choice(HPS_CLIENT_LOOKUP_MISS_POLICIES, lookup_flags.miss_policy,
                          &lookup.miss_policy); /* one of them, or it was refused */
    hps_status status = keys == NULL ? HPS_NO_MEMORY : hps_client_lookup_encode(&lookup, &request);
    if (status != HPS_OK) {
        (void)hps_error_set(&err, status, "%zu keys: %s", n_keys, hps_status_text(status));
    } else {
        status = hps_client_call(ctl->client, HPS_CLIENT_LOOKUP_PATH, request.data, request.size,
                                 ctl->timeout_us, &reply, &err);
    }
    code = status == HPS_OK ? show_reply(ctl, &reply, keys, n_keys) : hpsctl_fail(ctl, &err);
out:
    hps_buf_fini(&reply);
    hps_buf_fini(&request);
    hps_free(keys);
    return code;
}

/* ---- explain --------------------------------------------------------------------------------- */

static int64_t explain_version;

const struct hps_arg hpsctl_explain_args[] = {
    {"version", 0, HPS_ARG_I64, "N", &explain_version,
     "ask this version (default: the active one)"},
    HPS_ARGS_END,
};

/* "fp32" and "fp16" as the server names them. */
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
            *out_dtype = strcmp(info->data_type, "fp16") == 0   ? HPS_DTYPE_FP16
                         : strcmp(info->data_type, "bf16") == 0 ? HPS_DTYPE_BF16
                                                                : HPS_DTYPE_FP32;
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
            row_text(&row, 0, text, sizeof(text));
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
