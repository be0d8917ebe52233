/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of a reply as hpsctl shows them: of keys or bags, as a table, as lines with all values, or
 * as JSON. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/text.h"
#include "tools/hpsctl.h"
#include "tools/rows.h"

enum { ROW_TEXT_BYTES = 384, STATUS_TEXT_BYTES = 64 };

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

static bool is_pooled(const struct hpsd_query *query)
{
    return query->offsets != NULL;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void key_json(const struct hpsd_query *query, size_t i, struct hps_buf *buf)
{
    hps_buf_putf(buf, "\"key\":%" PRId64 ",\"status\":\"%s\"", (int64_t)rows_key(query, i),
                 key_status_text(rows_key_status(query, i)));
}

/* The part before the values of a row: a key, or a bag of keys. */
static void subject_json(const struct hpsd_query *query, size_t row, struct hps_buf *buf)
{
    size_t begin = rows_first_key(query, row);
    size_t end = rows_first_key(query, row + 1);

    if (!is_pooled(query)) {
        key_json(query, row, buf);
        return;
    }
    hps_buf_putf(buf, "\"bag\":%zu,\"keys\":[", row);
    for (size_t i = begin; i < end; i++) {
        hps_buf_put(buf, i == begin ? "{" : ",{");
        key_json(query, i, buf);
        if (query->weights != NULL) {
            hps_buf_put(buf, ",\"weight\":");
            hps_json_float(buf, query->weights[i]);
        }
        hps_buf_put(buf, "}");
    }
    hps_buf_put(buf, "]");
}

static void row_json(const struct hpsd_query *query, const struct hpsd_result *result, size_t row,
                     struct hps_buf *buf)
{
    hps_buf_put(buf, row == 0 ? "{" : ",{");
    subject_json(query, row, buf);
    hps_buf_put(buf, ",\"row\":[");
    for (uint32_t i = 0; i < result->dim; i++) {
        hps_buf_put(buf, i == 0 ? "" : ",");
        hps_json_float(buf, rows_value(result, row, i));
    }
    hps_buf_put(buf, "]}");
}

static int print_json(const struct hpsctl *ctl, const struct hpsd_query *query,
                      const struct hpsd_reply *reply, const struct hpsd_result *result)
{
    struct hps_buf buf;

    hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_buf_put(&buf, "{\"model\":");
    hps_json_text(&buf, ctl->words[0], strlen(ctl->words[0]));
    hps_buf_putf(&buf, ",\"version\":%" PRId64 ",\"table\":", reply->version);
    hps_json_text(&buf, query->table, strlen(query->table));
    hps_buf_putf(
        &buf, ",\"dim\":%" PRIu32 ",\"data_type\":\"%s\",\"pooling\":\"%s\",\"rows\":[",
        result->dim, hps_dtype_name((enum hps_dtype)result->dtype),
        hps_pooling_name(is_pooled(query) ? (enum hps_pooling)query->pooling : HPS_POOLING_NONE));
    for (size_t i = 0; i < result->n_rows; i++) {
        row_json(query, result, i, &buf);
    }
    hps_buf_put(&buf, "]}");
    return hpsctl_print_buf(&buf);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The status of a key; for a bag the number of keys per status, unless all are found. */
static void status_text(const struct hpsd_query *query, size_t row, char out[STATUS_TEXT_BYTES])
{
    size_t begin = rows_first_key(query, row);
    size_t end = rows_first_key(query, row + 1);
    uint32_t n_unknown = 0;
    uint32_t n_defaulted = 0;

    if (!is_pooled(query)) {
        (void)snprintf(out, STATUS_TEXT_BYTES, "%s", key_status_text(rows_key_status(query, row)));
        return;
    }
    for (size_t i = begin; i < end; i++) {
        enum hps_key_status state = rows_key_status(query, i);
        n_unknown += state == HPS_KEY_UNKNOWN ? 1 : 0;
        n_defaulted += state == HPS_KEY_DEFAULTED ? 1 : 0;
    }
    if (n_defaulted > 0) {
        (void)snprintf(out, STATUS_TEXT_BYTES, "%" PRIu32 " unknown, %" PRIu32 " defaulted",
                       n_unknown, n_defaulted);
    } else if (n_unknown > 0) {
        (void)snprintf(out, STATUS_TEXT_BYTES, "%" PRIu32 " unknown", n_unknown);
    } else {
        (void)snprintf(out, STATUS_TEXT_BYTES, "found");
    }
}

void hpsctl_row_text(const struct hpsd_result *result, size_t row, uint64_t n_values, char *out,
                     size_t size)
{
    HPS_ASSERT(size > 0);
    uint64_t n = n_values == 0 || n_values > result->dim ? result->dim : n_values;
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < n && used + 1 < size; i++) {
        int written = snprintf(out + used, size - used, "%s%.6g", i == 0 ? "" : " ",
                               (double)rows_value(result, row, i));
        used += written > 0 ? (size_t)written : 0;
    }
    if (n < result->dim && used + 4 < size) {
        (void)snprintf(out + used, size - used, " ...");
    }
}

/* Rows of any width: one line each, no table. */
static int print_lines(const struct hpsd_query *query, const struct hpsd_result *result)
{
    char status[STATUS_TEXT_BYTES];

    for (size_t row = 0; row < result->n_rows; row++) {
        status_text(query, row, status);
        if (is_pooled(query)) {
            printf("bag %zu (%s)", row, status);
        } else {
            printf("%" PRId64 " %s", (int64_t)rows_key(query, row), status);
        }
        for (uint32_t i = 0; i < result->dim; i++) {
            printf(" %.9g", (double)rows_value(result, row, i));
        }
        printf("\n");
    }
    return TOOL_OK;
}

static void print_counts(const struct hpsd_reply *reply, const struct hpsd_result *result,
                         bool as_stored)
{
    char name[HPS_TEXT_GROWTH * 32 + 1];

    printf("version %" PRId64 ", dim %" PRIu32 ", %" PRIu32 " unknown, %" PRIu32 " defaulted",
           reply->version, result->dim, result->n_unknown, result->n_defaulted);
    for (uint32_t i = 0; i < result->n_tiers; i++) {
        const char *tier = result->tiers[i].name;
        (void)hps_text_plain(tier, strlen(tier), name, sizeof(name));
        printf(", %" PRIu32 " from %s", result->tiers[i].found_keys, name);
    }
    if (as_stored) {
        printf(", stored as %s%s", hps_dtype_name((enum hps_dtype)result->dtype),
               hps_dtype_is_int8((enum hps_dtype)result->dtype) ? " (shown: u8 * scale + bias)"
                                                                : "");
    }
    printf("\n");
}

static int print_table(const struct hpsd_query *query, const struct hpsd_result *result,
                       uint64_t n_values)
{
    static const char *const key_columns[] = {">KEY", "STATUS", "ROW", NULL};
    static const char *const bag_columns[] = {">BAG", ">KEYS", "STATUS", "ROW", NULL};
    bool pooled = is_pooled(query);
    struct hpsctl_table table;
    char text[ROW_TEXT_BYTES];
    char status[STATUS_TEXT_BYTES];

    hpsctl_table_init(&table, pooled ? bag_columns : key_columns);
    for (size_t row = 0; row < result->n_rows; row++) {
        if (pooled) {
            hpsctl_table_cell(&table, "%zu", row);
            hpsctl_table_cell(&table, "%" PRIu32, query->offsets[row + 1] - query->offsets[row]);
        } else {
            hpsctl_table_cell(&table, "%" PRId64, (int64_t)rows_key(query, row));
        }
        status_text(query, row, status);
        hpsctl_table_cell(&table, "%s", status);
        hpsctl_row_text(result, row, n_values, text, sizeof(text));
        hpsctl_table_cell(&table, "%s", text);
    }
    return hpsctl_table_print(&table);
}

int hpsctl_rows_print(const struct hpsctl *ctl, const struct hpsd_query *query,
                      const struct hpsd_reply *reply, const struct hpsd_result *result,
                      const struct hpsctl_rows_options *options)
{
    if (hpsctl_json(ctl)) {
        return print_json(ctl, query, reply, result);
    }
    if (options->n_values == 0) {
        return print_lines(query, result);
    }
    int code = print_table(query, result, options->n_values);
    print_counts(reply, result, options->as_stored);
    return code;
}
