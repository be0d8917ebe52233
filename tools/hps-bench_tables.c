/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-bench: the tables to query. Main thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/assert.h"
#include "base/heap.h"
#include "client/message.h"
#include "hps/v1/admin.pb-c.h"
#include "tools/hps-bench.h"

enum { TABLES_MAX = 4096, TIMEOUT_US = 10 * 1000 * 1000 };

/* hps-gen names table t "feature_<t>". For other names the number is the position in the model. */
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

/* Whether `name` is in the comma-separated list; "all" has every name. */
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

static hps_status add_table(struct bench_plan *plan, const char *name, size_t size,
                            const struct bench_table *is, struct hps_error *err)
{
    HPS_ASSERT(plan->tables != NULL);
    struct bench_table *table = &plan->tables[plan->n_tables];

    if (size == 0 || size >= sizeof(table->name)) {
        return hps_error_set(err, HPS_INVALID,
                             "--tables: got a name of %zu bytes, expected 1 to %d", size,
                             BENCH_NAME_BYTES - 1);
    }
    if (is->n_rows == 0) {
        return hps_error_set(err, HPS_INVALID, "table \"%.*s\" has no rows", (int)size, name);
    }
    *table = *is;
    memcpy(table->name, name, size);
    table->name[size] = '\0';
    table->number = table_number(table->name, is->number);
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
        struct bench_table is = {
            .number = (uint32_t)i, .n_rows = info->row_count, .dtype = HPS_DTYPE_FP32};
        (void)hps_dtype_parse(info->data_type, strlen(info->data_type), &is.dtype);
        if (names_have(names, info->table)) {
            status = add_table(plan, info->table, strlen(info->table), &is, err);
        }
    }
    if (status == HPS_OK && strcmp(names, "all") != 0 && plan->n_tables != names_count(names)) {
        return hps_error_set(err, HPS_INVALID,
                             "--tables %s: model \"%s\" has only %" PRIu64 " of these %" PRIu64,
                             names, plan->model, plan->n_tables, names_count(names));
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
        return hps_error_set(
            err, HPS_INVALID,
            "--rows: expected --tables A,B,... with it, in the order of the model");
    }
    plan->tables = n > TABLES_MAX ? NULL : hps_calloc(n, sizeof(*plan->tables));
    if (plan->tables == NULL) {
        return hps_error_set(err, HPS_INVALID, "--tables: %" PRIu64 " names; 1 to %d", n,
                             TABLES_MAX);
    }
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        size_t size = strcspn(names, ",");
        const struct bench_table is = {.number = i, .n_rows = n_rows, .dtype = HPS_DTYPE_FP32};
        status = add_table(plan, names, size, &is, err);
        names += size + (names[size] == ',');
    }
    return status;
}

/* ---- keys ------------------------------------------------------------------------------------ */

void bench_tables_free(struct bench_plan *plan)
{
    for (uint64_t i = 0; i < plan->n_tables; i++) {
        hps_free(plan->tables[i].offsets);
    }
    hps_free(plan->tables);
    plan->tables = NULL;
    plan->n_tables = 0;
}

/* Bags of n_bag_keys keys; the last one has the rest. */
static hps_status make_bags(struct bench_table *table, uint64_t n_bag_keys, struct hps_error *err)
{
    HPS_ASSERT(n_bag_keys > 0 && table->offsets == NULL);
    table->n_bags = (table->n_keys + n_bag_keys - 1) / n_bag_keys;
    table->offsets = hps_calloc(table->n_bags + 1, sizeof(*table->offsets));
    if (table->offsets == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for bags");
    }
    for (uint64_t i = 1; i <= table->n_bags; i++) {
        table->offsets[i] = (uint32_t)(i < table->n_bags ? i * n_bag_keys : table->n_keys);
    }
    return HPS_OK;
}

/* Takes the next number of the list, which continues at *list. NULL: none is left. */
static bool take_number(const char **list, uint64_t *out_number)
{
    char word[24];
    size_t size = *list == NULL ? 0 : strcspn(*list, ",");

    if (size == 0 || size >= sizeof(word)) {
        return false;
    }
    memcpy(word, *list, size);
    word[size] = '\0';
    *list = (*list)[size] == ',' ? *list + size + 1 : NULL;
    return hps_args_u64(word, out_number) && *out_number > 0;
}

hps_status bench_tables_share_keys(struct bench_plan *plan, uint64_t n_keys_max,
                                   struct hps_error *err)
{
    HPS_ASSERT(plan->n_tables > 0 && plan->n_keys > 0);
    const char *list = plan->hotness;
    hps_status status = HPS_OK;
    bool listed = true;

    plan->n_keys_all = 0;
    for (uint64_t i = 0; i < plan->n_tables && status == HPS_OK && listed; i++) {
        struct bench_table *table = &plan->tables[i];
        uint64_t hot = 1;
        listed = plan->hotness == NULL || take_number(&list, &hot);
        listed = listed && hot <= n_keys_max / plan->n_keys;
        table->n_keys = plan->n_keys * hot;
        table->first_key = plan->n_keys_all;
        plan->n_keys_all += table->n_keys;
        if (listed && plan->pooling != HPSD_POOLING_NONE) {
            uint64_t all = plan->hotness != NULL ? hot : plan->n_keys;
            status = make_bags(table, plan->n_bag_keys > 0 ? plan->n_bag_keys : all, err);
        }
    }
    return listed && list == NULL
               ? status
               : hps_error_set(err, HPS_INVALID,
                               "--hotness \"%s\": expected %" PRIu64
                               " numbers, one for each table, each times --keys at most %" PRIu64,
                               plan->hotness, plan->n_tables, n_keys_max);
}
