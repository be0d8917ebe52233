/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-bench: which tables to ask, and checks of the rows that come back. Tables: main thread; rows:
 * worker threads.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "client/lookup.h"
#include "client/message.h"
#include "hps/v1/admin.pb-c.h"
#include "tools/hps-bench.h"

enum { TABLES_MAX = 4096, ROW_PIECE = 64, TIMEOUT_US = 10 * 1000 * 1000 };

/* ---- tables ---------------------------------------------------------------------------------- */

/* hps-gen calls table t "feature_<t>"; of others the number is their place in the model. */
static uint32_t table_number(const char *name, uint32_t place)
{
    static const char prefix[] = "feature_";
    uint64_t number;

    if (strncmp(name, prefix, sizeof(prefix) - 1) == 0 &&
        hps_args_u64(name + sizeof(prefix) - 1, &number) && number <= UINT32_MAX) {
        return (uint32_t)number;
    }
    return place;
}

/* Is `name` in the comma-separated list? "all" holds every name. */
static bool names_have(const char *names, const char *name)
{
    HPS_ASSERT(name[0] != '\0');
    size_t size = strlen(name);

    if (strcmp(names, "all") == 0) {
        return true;
    }
    for (const char *at = names;; at++) {
        size_t word = strcspn(at, ",");
        if (word == size && memcmp(at, name, size) == 0) {
            return true;
        }
        at += word;
        if (*at == '\0') {
            return false;
        }
    }
}

static uint64_t names_count(const char *names)
{
    uint64_t n = 1;

    for (const char *at = names; *at != '\0'; at++) {
        n += *at == ',';
    }
    return n;
}

static hps_status add_table(struct bench_plan *plan, const char *name, size_t size, uint32_t place,
                            uint64_t n_rows, enum hps_dtype dtype, struct hps_error *err)
{
    HPS_ASSERT(plan->tables != NULL);
    struct bench_table *table = &plan->tables[plan->n_tables];

    if (size == 0 || size >= sizeof(table->name)) {
        return hps_error_set(err, HPS_INVALID, "--tables: a name of %zu bytes; 1 to %d", size,
                             BENCH_NAME_BYTES - 1);
    }
    if (n_rows == 0) {
        return hps_error_set(err, HPS_INVALID, "table \"%.*s\" has no rows to ask for", (int)size,
                             name);
    }
    memcpy(table->name, name, size);
    table->name[size] = '\0';
    table->number = table_number(table->name, place);
    table->n_rows = n_rows;
    table->dtype = dtype;
    plan->n_tables++;
    return HPS_OK;
}

static hps_status take_list(struct bench_plan *plan, const Hps__V1__ListTablesResponse *list,
                            const char *names, struct hps_error *err)
{
    HPS_ASSERT(plan->tables == NULL && plan->n_tables == 0);
    hps_status status = HPS_OK;

    plan->tables = hps_calloc(list->n_tables + 1, sizeof(*plan->tables));
    if (plan->tables == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu tables", list->n_tables);
    }
    for (size_t i = 0; i < list->n_tables && status == HPS_OK; i++) {
        const Hps__V1__TableInfo *info = list->tables[i];
        if (names_have(names, info->table)) {
            status = add_table(
                plan, info->table, strlen(info->table), (uint32_t)i, info->row_count,
                strcmp(info->data_type, "fp16") == 0 ? HPS_DTYPE_FP16 : HPS_DTYPE_FP32, err);
        }
    }
    if (status == HPS_OK && strcmp(names, "all") != 0 && plan->n_tables != names_count(names)) {
        return hps_error_set(err, HPS_INVALID,
                             "--tables %s: model \"%s\" has %" PRIu64 " of these %" PRIu64, names,
                             plan->model, plan->n_tables, names_count(names));
    }
    if (status == HPS_OK && plan->n_tables == 0) {
        return hps_error_set(err, HPS_INVALID, "model \"%s\" has no tables", plan->model);
    }
    return status;
}

hps_status bench_tables_ask(struct bench_plan *plan, const struct hps_client_options *admin,
                            const char *names, struct hps_error *err)
{
    Hps__V1__ListTablesRequest request = HPS__V1__LIST_TABLES_REQUEST__INIT;
    struct hps_client *client = NULL;
    ProtobufCMessage *reply = NULL;
    hps_status status = hps_client_open(admin, &client, err);

    if (status != HPS_OK) {
        return status;
    }
    request.model = (char *)(uintptr_t)plan->model;
    status = hps_client_call_message(client, "/hps.v1.Admin/ListTables", &request.base,
                                     &hps__v1__list_tables_response__descriptor, TIMEOUT_US, &reply,
                                     err);
    if (status == HPS_OK) {
        status = take_list(plan, (const Hps__V1__ListTablesResponse *)reply, names, err);
        hps_message_free(reply);
    }
    hps_client_close(client);
    return status;
}

hps_status bench_tables_given(struct bench_plan *plan, const char *names, uint64_t n_rows,
                              struct hps_error *err)
{
    HPS_ASSERT(n_rows > 0 && plan->tables == NULL);
    uint64_t n = names_count(names);
    hps_status status = HPS_OK;

    if (strcmp(names, "all") == 0) {
        return hps_error_set(err, HPS_INVALID,
                             "--rows needs --tables A,B,... in the model's order");
    }
    plan->tables = n > TABLES_MAX ? NULL : hps_calloc(n, sizeof(*plan->tables));
    if (plan->tables == NULL) {
        return hps_error_set(err, HPS_INVALID, "--tables: %" PRIu64 " names; 1 to %d", n,
                             TABLES_MAX);
    }
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        size_t size = strcspn(names, ",");
        status = add_table(plan, names, size, i, n_rows, HPS_DTYPE_FP32, err);
        names += size + (names[size] == ',');
    }
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Value i of the row of `key`, as the table's files hold it. */
static float expected_value(const struct bench_table *table, uint64_t base, uint32_t i)
{
    float value = hps_rowgen_value(base, i);

    if (table->dtype != HPS_DTYPE_FP16) {
        return value;
    }
    uint16_t half = hps_rowgen_half(value);
    struct hps_client_lookup_result one = {.dim = 1, .dtype = HPS_DTYPE_FP16};
    one.rows = (const uint8_t *)&half;
    return hps_client_lookup_value(&one, 0, 0);
}

/* Is the value what the wire's type makes of the expected one? */
static bool same_value(enum hps_dtype dtype, float expected, float got)
{
    if (dtype == HPS_DTYPE_FP32) {
        return expected == got;
    }
    if (dtype == HPS_DTYPE_FP16) {
        struct hps_client_lookup_result one = {.dim = 1, .dtype = HPS_DTYPE_FP16};
        uint16_t half = hps_rowgen_half(expected);
        one.rows = (const uint8_t *)&half;
        return hps_client_lookup_value(&one, 0, 0) == got;
    }
    float difference = expected > got ? expected - got : got - expected;
    float size = expected < 0 ? -expected : expected;
    return difference <= size * 0x1p-8F; /* bfloat16 has 8 bits */
}

static bool row_is_right(const struct bench_plan *plan, const struct bench_table *table,
                         const struct hps_client_lookup_result *result, uint32_t row, hps_key key)
{
    HPS_DEBUG_ASSERT(row < result->row_count);
    uint64_t base = hps_rowgen_base(plan->data_seed, table->number, key);

    for (uint32_t i = 0; i < result->dim; i++) {
        if (!same_value(result->dtype, expected_value(table, base, i),
                        hps_client_lookup_value(result, row, i))) {
            return false;
        }
    }
    return true;
}

void bench_verify(struct bench_worker *worker, const struct bench_table *table,
                  const struct hps_client_lookup_result *result, const hps_key *keys)
{
    HPS_ASSERT(result->row_count == 0 || keys != NULL);
    struct bench_counts *counts = &worker->counts;

    for (uint32_t row = 0; row < result->row_count; row++) {
        enum hps_key_status status = hps_client_lookup_key_status(result, row);
        if (status == HPS_KEY_DEFAULTED) {
            continue; /* promised to be the default row, which is not known here */
        }
        counts->n_rows_checked++;
        if (status == HPS_KEY_FOUND && row_is_right(worker->plan, table, result, row, keys[row])) {
            continue;
        }
        if (counts->n_rows_wrong++ == 0) {
            (void)snprintf(counts->wrong_text, sizeof(counts->wrong_text),
                           "table %s, key %" PRId64 ": %s", table->name, (int64_t)keys[row],
                           status == HPS_KEY_FOUND
                               ? "the row is not what hps-gen writes (other --data-seed?)"
                               : "the key is unknown to the server");
        }
    }
}
