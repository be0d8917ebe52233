/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as records of the catalog in the persistent store: versions, models, unused versions.
 * If they are accepted, they are written, and reading them again must give the same. The input is a
 * list of records: a kind, a size and a value.
 */
#include <stdio.h>

#include "backends/store_durable.h"
#include "base/assert.h"
#include "base/heap.h"
#include "server/load/records.h"
#include "tests/fuzz/script.h"

enum { RECORDS_MAX = 8 };

/* A durable store that has only records. */
struct kept {
    struct hps_store store;
    struct {
        char key[256];
        size_t key_size;
        uint8_t *value;
        size_t value_size;
    } records[RECORDS_MAX];
    size_t n;
};

static hps_status kept_put(struct hps_store *store, const void *key, size_t key_size,
                           const void *value, size_t value_size, struct hps_error *err)
{
    struct kept *kept = (struct kept *)store;

    (void)err;
    HPS_ASSERT(key_size > 0 && key_size < sizeof(kept->records[0].key));
    HPS_ASSERT(kept->n < RECORDS_MAX);
    kept->records[kept->n].value = hps_alloc(value_size > 0 ? value_size : 1);
    if (kept->records[kept->n].value == NULL) {
        return HPS_NO_MEMORY;
    }
    memcpy(kept->records[kept->n].key, key, key_size);
    if (value_size > 0) {
        memcpy(kept->records[kept->n].value, value, value_size);
    }
    kept->records[kept->n].key_size = key_size;
    kept->records[kept->n].value_size = value_size;
    kept->n++;
    return HPS_OK;
}

static hps_status kept_scan(struct hps_store *store, const char *prefix, hps_record_fn fn,
                            void *ctx, struct hps_error *err)
{
    const struct kept *kept = (const struct kept *)store;
    hps_status status = HPS_OK;

    (void)err;
    for (size_t i = 0; i < kept->n && status == HPS_OK; i++) {
        if (kept->records[i].key_size >= strlen(prefix) &&
            memcmp(kept->records[i].key, prefix, strlen(prefix)) == 0) {
            status = fn(ctx, kept->records[i].key, kept->records[i].key_size,
                        kept->records[i].value, kept->records[i].value_size);
        }
    }
    return status;
}

static const struct hps_store_durable_ops kept_durable = {.record_put = kept_put,
                                                          .record_scan = kept_scan};
static const struct hps_store_ops kept_ops = {.name = "kept", .durable = &kept_durable};

static void kept_fini(struct kept *kept)
{
    for (size_t i = 0; i < kept->n; i++) {
        hps_free(kept->records[i].value);
    }
}

/* Counts records, and writes them to the store `to` if it is not NULL. */
struct reading {
    struct hps_store *to;
    unsigned n_versions, n_models;
};

static hps_status on_version(void *ctx, struct hps_version *version, struct hps_error *err)
{
    struct reading *reading = ctx;
    hps_status status = HPS_OK;

    reading->n_versions++;
    HPS_ASSERT(version->model != NULL && version->load_id != NULL && version->lineage != NULL);
    for (uint32_t i = 0; i < version->n_tables; i++) {
        const struct hps_table *table = &version->tables[i];
        HPS_ASSERT(table->id == i && table->name != NULL && table->dim > 0);
        HPS_ASSERT(table->row_bytes == hps_dtype_row_bytes(table->dtype, table->dim));
    }
    HPS_ASSERT(hps_version_table(version, "no such table", 13) == UINT32_MAX);
    if (reading->to != NULL) {
        status = hps_records_put_version(reading->to, version, err);
    }
    hps_version_free(version);
    return status;
}

static hps_status on_model(void *ctx, const struct hps_model_record *record)
{
    struct reading *reading = ctx;

    reading->n_models++;
    HPS_ASSERT(record->model != NULL);
    for (uint32_t i = 0; i < record->n_tables; i++) {
        HPS_ASSERT(record->tables[i] != NULL);
    }
    return reading->to != NULL ? hps_records_put_model(reading->to, record, NULL) : HPS_OK;
}

static hps_status read_all(struct kept *from, struct reading *reading)
{
    struct hps_error err = {0};
    const struct hps_records_reader reader = {reading, on_version, on_model};
    hps_status status = hps_records_read(&from->store, &reader, &err);

    HPS_ASSERT(status == HPS_OK || status == HPS_NO_MEMORY || status == HPS_DATA_LOSS);
    HPS_ASSERT(status != HPS_DATA_LOSS || err.text[0] != '\0');
    return status;
}

static void read_unused(struct kept *from)
{
    struct hps_unused_list list;

    HPS_ASSERT(hps_records_read_unused(&from->store, &list, NULL) == HPS_OK);
    HPS_ASSERT(list.n <= HPS_UNUSED_MAX);
    for (uint32_t i = 0; i < list.n; i++) {
        hps_version_free(list.versions[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const prefixes[] = {"version/", "model/", "unused/"};
    struct script script = {data, size};
    struct kept kept = {.store.ops = &kept_ops};
    struct kept again = {.store.ops = &kept_ops};
    struct reading first = {.to = &again.store};
    struct reading second = {0};

    while (script.left > 0 && kept.n < RECORDS_MAX) {
        char key[128];
        size_t value_size;
        int n = snprintf(key, sizeof(key), "%sm/%zu", prefixes[script_u8(&script) % 3], kept.n);
        size_t value_bytes = script_u8(&script);
        value_bytes |= (size_t)(script_u8(&script) & 15) << 8;
        const uint8_t *value = script_take(&script, value_bytes, &value_size);
        hps_ignore(kept_put(&kept.store, key, (size_t)n, value, value_size, NULL));
    }
    if (read_all(&kept, &first) == HPS_OK && read_all(&again, &second) == HPS_OK) {
        HPS_ASSERT(first.n_versions == second.n_versions && first.n_models == second.n_models);
    }
    read_unused(&kept);
    kept_fini(&kept);
    kept_fini(&again);
    return 0;
}
