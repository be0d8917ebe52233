/* SPDX-License-Identifier: Apache-2.0
 *
 * A version of a few tables over a host tier and a blocking tier below it, both scripted, with rows
 * that anyone can recompute. Used by one thread.
 */
#ifndef HPS_TESTS_LIB_LOOKUP_FIXTURE_H
#define HPS_TESTS_LIB_LOOKUP_FIXTURE_H

#include <string.h>

#include "base/assert.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/heap.h"
#include "cache/lookup/lookup.h"
#include "tests/lib/fake_store.h"

enum { FIXTURE_TABLES = 3, FIXTURE_DIM_MAX = 16, FIXTURE_HOST = 0, FIXTURE_DISK = 1 };

struct fixture {
    struct hps_store *stores[2]; /* host, disk */
    struct hps_version version;
    struct hps_table tables[FIXTURE_TABLES];
    uint8_t default_rows[FIXTURE_TABLES][FIXTURE_DIM_MAX * 4];
    uint32_t places[FIXTURE_TABLES]; /* the order of the tables */
};

/* Bits of value `d` of a row: small multiples of 1/8, exact in fp16 and fp32. */
static inline float fixture_value(uint32_t table, hps_key key, uint32_t d)
{
    uint64_t mixed = hps_mix64(key + table * HPS_HASH_GOLDEN + d);

    return (float)((int)(mixed % 2001) - 1000) / 8.0f;
}

/* The row of a key in the type of its table. */
static inline void fixture_row(const struct hps_table *table, hps_key key, void *row)
{
    float values[FIXTURE_DIM_MAX];

    for (uint32_t d = 0; d < table->dim; d++) {
        values[d] = fixture_value(table->id, key, d);
    }
    hps_row_convert(row, table->dtype, values, HPS_DTYPE_FP32, table->dim);
}

static inline void fixture_put(struct fixture *fx, uint32_t tier, uint32_t table, hps_key key)
{
    uint8_t row[FIXTURE_DIM_MAX * 4];
    struct hps_call call = {0};
    struct hps_space *space = fx->version.tiers[tier];

    fixture_row(&fx->tables[table], key, row);
    hps_status status = space->store->ops->put(space, &call, &fx->tables[table], &key, row, 1);
    HPS_ASSERT(status == HPS_OK);
}

/* Is the row of this key in the tier, and right? */
static inline bool fixture_has(struct fixture *fx, uint32_t tier, uint32_t table, hps_key key)
{
    uint8_t row[FIXTURE_DIM_MAX * 4];
    uint8_t expected[FIXTURE_DIM_MAX * 4];
    uint32_t slot = 0;
    hps_key asked = key;
    struct hps_call call = {0};
    struct hps_batch batch = {.keys = &asked, .slots = &slot, .rows = row, .n = 1};
    struct hps_space *space = fx->version.tiers[tier];
    hps_status status = space->store->ops->get(space, &call, &fx->tables[table], &batch);

    HPS_ASSERT(status == HPS_OK);
    fixture_row(&fx->tables[table], key, expected);
    return batch.n == 0 && memcmp(row, expected, fx->tables[table].row_bytes) == 0;
}

/* Rows of keys from .. to. */
static inline void fixture_put_range(struct fixture *fx, uint32_t tier, uint32_t table,
                                     hps_key from, hps_key to)
{
    for (hps_key key = from; key < to; key++) {
        fixture_put(fx, tier, table, key);
    }
}

/* Of the version's tier at this place. */
static inline enum hps_tier_kind fixture_kind(const struct fixture *fx, uint32_t tier)
{
    return fx->version.tiers[tier]->store->ops->tier;
}

/* Tables "t0" (dim 4, fp32), "t1" (dim 3, fp16), "t2" (dim 16, bf16); default rows of 7.5. */
static inline void fixture_open(struct fixture *fx, uint64_t host_bytes_max)
{
    static const struct hps_table tables[FIXTURE_TABLES] = {
        {.name = "t0", .id = 0, .dim = 4, .row_bytes = 16, .dtype = HPS_DTYPE_FP32},
        {.name = "t1", .id = 1, .dim = 3, .row_bytes = 6, .dtype = HPS_DTYPE_FP16},
        {.name = "t2", .id = 2, .dim = 16, .row_bytes = 32, .dtype = HPS_DTYPE_BF16},
    };
    struct hps_fake_options host = {
        .name = "host", .tier = HPS_TIER_HOST, .bytes_max = host_bytes_max};
    struct hps_fake_options disk = {
        .name = "rocksdb", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_BLOCKING};
    float sevens[FIXTURE_DIM_MAX];

    memset(fx, 0, sizeof(*fx));
    memcpy(fx->tables, tables, sizeof(tables));
    for (uint32_t d = 0; d < FIXTURE_DIM_MAX; d++) {
        sevens[d] = 7.5f;
    }
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        hps_row_convert(fx->default_rows[t], fx->tables[t].dtype, sevens, HPS_DTYPE_FP32,
                        fx->tables[t].dim);
        fx->tables[t].default_row = fx->default_rows[t];
    }
    fx->version.model = (char *)"m";
    fx->version.label = (char *)"nightly";
    fx->version.number = 7;
    fx->version.tables = fx->tables;
    fx->version.n_tables = FIXTURE_TABLES;
    for (uint32_t t = 0; t < FIXTURE_TABLES; t++) {
        fx->places[t] = t;
    }
    fx->version.places = fx->places;
    fx->version.by_place = fx->places;
    fx->version.n_places = FIXTURE_TABLES;
    fx->version.n_tiers = 2;
    fx->stores[FIXTURE_HOST] = hps_fake_store_new(&host);
    fx->stores[FIXTURE_DISK] = hps_fake_store_new(&disk);
    for (uint32_t i = 0; i < 2; i++) {
        struct hps_space_id id = {
            .model = "m", .version = 7, .tables = fx->tables, .n_tables = FIXTURE_TABLES};
        struct hps_error err;
        HPS_ASSERT(fx->stores[i] != NULL);
        hps_status status =
            fx->stores[i]->ops->space_open(fx->stores[i], &id, &fx->version.tiers[i], &err);
        HPS_ASSERT(status == HPS_OK);
    }
}

/* Put one more store that blocks between host and disk, "redis"; shared: daemons share it, and rows
 * found below go into it. */
static inline struct hps_store *fixture_open_middle(struct fixture *fx, bool shared)
{
    const struct hps_fake_options options = {
        .name = "redis",
        .tier = HPS_TIER_REDIS,
        .caps = HPS_STORE_BLOCKING | (shared ? HPS_STORE_SHARED | HPS_STORE_JOINS : 0)};
    const struct hps_space_id id = {
        .model = "m", .version = 7, .tables = fx->tables, .n_tables = FIXTURE_TABLES};
    struct hps_store *store = hps_fake_store_new(&options);
    struct hps_error err;

    HPS_ASSERT(store != NULL);
    fx->version.tiers[2] = fx->version.tiers[1];
    hps_status status = store->ops->space_open(store, &id, &fx->version.tiers[1], &err);
    HPS_ASSERT(status == HPS_OK);
    fx->version.n_tiers = 3;
    fx->version.shared_takes_missed = shared;
    return store;
}

/* Before fixture_close. */
static inline void fixture_close_middle(struct fixture *fx, struct hps_store *store)
{
    store->ops->space_close(fx->version.tiers[1]);
    store->ops->close(store);
    fx->version.tiers[1] = fx->version.tiers[2];
    fx->version.n_tiers = 2;
}

static inline void fixture_close(struct fixture *fx)
{
    for (uint32_t i = 0; i < 2; i++) {
        fx->stores[i]->ops->space_close(fx->version.tiers[i]);
        fx->stores[i]->ops->close(fx->stores[i]);
    }
}

#endif
