/* SPDX-License-Identifier: Apache-2.0
 *
 * A version of the model "m" over scripted host and durable tiers, which takes updates from a
 * scripted log. Tests may add a shared tier between them, or replace the durable tier by it. Tables
 * "items" (fp32) and "users" (fp16) have rows of two values. One thread.
 */
#ifndef HPS_TESTS_LIB_UPDATE_FIXTURE_H
#define HPS_TESTS_LIB_UPDATE_FIXTURE_H

#include <string.h>

#include "base/dtype.h"
#include "base/heap.h"
#include "cache/lookup/lookup.h"
#include "cache/update/update.h"
#include "tests/lib/fake_store.h"

enum { FIXTURE_DIM = 2, FIXTURE_TABLES = 2, FIXTURE_ITEMS = 0, FIXTURE_USERS = 1 };

struct update_fixture {
    struct hps_store *host, *disk;
    struct hps_store *shared; /* NULL: no shared tier */
    struct hps_version *version;
    bool row_versions; /* of versions opened from now on */
};

static inline void fixture_stores(struct update_fixture *fx)
{
    const struct hps_fake_options host = {.name = "host", .tier = HPS_TIER_HOST};
    const struct hps_fake_options disk = {
        .name = "rocksdb", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_DURABLE};
    fx->host = hps_fake_store_new(&host);
    fx->disk = hps_fake_store_new(&disk);
    assert_non_null(fx->host);
    assert_non_null(fx->disk);
}

static inline void fixture_version(struct update_fixture *fx, int64_t number, const char *lineage)
{
    static const char *const names[FIXTURE_TABLES] = {"items", "users"};
    struct hps_error err = {0};
    struct hps_version *version = hps_version_new("m", number, FIXTURE_TABLES);
    assert_non_null(version);
    version->lineage = hps_strdup(lineage);
    version->loaded_unix_ms = 1000;
    for (uint32_t i = 0; i < FIXTURE_TABLES; i++) {
        enum hps_dtype dtype = i == FIXTURE_ITEMS ? HPS_DTYPE_FP32 : HPS_DTYPE_FP16;
        version->tables[i] =
            (struct hps_table){.name = hps_strdup(names[i]),
                               .id = i,
                               .dim = FIXTURE_DIM,
                               .dtype = dtype,
                               .row_bytes = (uint32_t)hps_dtype_row_bytes(dtype, FIXTURE_DIM)};
    }
    const struct hps_space_id id = {"m", number, version->tables, FIXTURE_TABLES, 0};
    struct hps_store *stores[3] = {fx->host, fx->shared, fx->disk};
    for (uint32_t i = 0; i < 3; i++) {
        struct hps_space **at = &version->tiers[version->n_tiers];
        if (stores[i] != NULL) {
            assert_int_equal(stores[i]->ops->space_open(stores[i], &id, at, &err), HPS_OK);
            version->n_tiers++;
        }
    }
    version->row_versions = fx->row_versions;
    assert_int_equal(hps_update_open(version, &err), HPS_OK);
    fx->version = version;
}

/* The durable tier keeps its rows. */
static inline void fixture_version_close(struct update_fixture *fx)
{
    assert_true(hps_version_idle(fx->version));
    for (uint32_t i = 0; i < fx->version->n_tiers; i++) {
        fx->version->tiers[i]->store->ops->space_close(fx->version->tiers[i]);
    }
    hps_version_free(fx->version);
    fx->version = NULL;
}

static inline void fixture_stores_close(struct update_fixture *fx)
{
    fx->host->ops->close(fx->host);
    if (fx->shared != NULL) {
        fx->shared->ops->close(fx->shared);
    }
    if (fx->disk != NULL) {
        fx->disk->ops->close(fx->disk);
    }
}

/* For cmocka: frees an allocated fixture with a version that the test has pinned. */
static inline int fixture_teardown(void **state)
{
    struct update_fixture *fx = *state;
    hps_version_unpin(fx->version);
    fixture_version_close(fx);
    fixture_stores_close(fx);
    hps_free(fx);
    return 0;
}

/* The first value of a key's row in the tier with this index; -1: no row. */
static inline float fixture_tier_value(struct update_fixture *fx, uint32_t tier, uint32_t table,
                                       hps_key key)
{
    static const struct hps_call call;
    uint8_t row[FIXTURE_DIM * 4];
    float values[FIXTURE_DIM];
    uint32_t slot = 0;
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = row, .n = 1};
    struct hps_space *space = fx->version->tiers[tier];
    const struct hps_table *of = &fx->version->tables[table];
    assert_int_equal(space->store->ops->get(space, &call, of, &batch), HPS_OK);
    if (batch.n == 1) {
        return -1;
    }
    hps_row_convert(values, HPS_DTYPE_FP32, row, of->dtype, FIXTURE_DIM);
    return values[0];
}

/* The same of the first two tiers, which must agree. */
static inline float fixture_value(struct update_fixture *fx, uint32_t table, hps_key key)
{
    float host = fixture_tier_value(fx, 0, table, key);
    assert_true(host == fixture_tier_value(fx, 1, table, key));
    return host;
}

#endif
