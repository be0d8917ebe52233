/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores on one Redis server as that many daemons would have them, and what the log says: the row
 * of a key as of an offset depends on both. One thread, unless said otherwise.
 */
#ifndef HPS_TESTS_LIB_REDIS_FIXTURE_H
#define HPS_TESTS_LIB_REDIS_FIXTURE_H

#include <stdarg.h>
// clang-format off
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "backends/redis/redis.h"
#include "backends/store_log.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "tests/lib/redis_rig.h"

enum {
#ifdef FX_ODD_ROWS /* of table a, too: INT8, so that the next row lies at any address */
    FX_DIM = 59,
    FX_ROW = FX_DIM + 8,
    FX_DTYPE = HPS_DTYPE_INT8_ROWWISE_F32,
#else
    FX_DIM = 16,
    FX_ROW = FX_DIM * 4,
    FX_DTYPE = HPS_DTYPE_FP32,
#endif
    FX_NARROW_ROW = 3 + 4,
    FX_SHARDS = 8,
    FX_PARTITION = 77, /* an id of one */
    FX_WAIT_US = 20 * 1000 * 1000
};

static const uint8_t fx_default_row[FX_ROW];
static const struct hps_table fx_tables[2] = {
    {.name = "a",
     .id = 0,
     .dim = FX_DIM,
     .row_bytes = FX_ROW,
     .dtype = (enum hps_dtype)FX_DTYPE,
     .default_row = fx_default_row},
    {.name = "b",
     .id = 1,
     .dim = 3,
     .row_bytes = FX_NARROW_ROW,
     .dtype = HPS_DTYPE_INT8_ROWWISE_F16,
     .default_row = fx_default_row},
};
static const struct hps_call fx_call = {0};
static struct hps_error fx_error;
static struct hps_redis_rig *fx_rig;

/* ---- the server, the same for all tests of a program ----------------------------------------- */

static inline int fx_start(void **state)
{
    (void)state;
    if (hps_redis_rig_present()) {
        fx_rig = hps_redis_rig_standalone(NULL);
    }
    return 0;
}

/* A store that waits long, so that a busy machine does not look like a failing server. */
static inline struct hps_redis_store_options fx_options(const char *member)
{
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    if (fx_rig == NULL) {
        skip();
    }
    options.redis.addresses = hps_redis_rig_addresses(fx_rig);
    options.redis.command_timeout_us = FX_WAIT_US;
    options.redis.connect_timeout_us = FX_WAIT_US;
    options.write_timeout_us = FX_WAIT_US;
    options.n_shards = FX_SHARDS;
    options.member = member;
    return options;
}

static inline struct hps_store *fx_open_with(const struct hps_redis_store_options *options)
{
    struct hps_store *store = NULL;
    if (hps_redis_open(options, &store, &fx_error) != HPS_OK) {
        fail_msg("open: %s", fx_error.text);
    }
    assert_true(hps_redis_cluster_wait(hps_redis_of(store), hps_clock_us() + FX_WAIT_US));
    return store;
}

static inline struct hps_store *fx_open(const char *member)
{
    const struct hps_redis_store_options options = fx_options(member);
    return fx_open_with(&options);
}

static inline struct hps_space *fx_space(struct hps_store *store)
{
    const struct hps_space_id id = {"m", 1, fx_tables, 2, 99};
    struct hps_space *space = NULL;
    if (store->ops->space_open(store, &id, &space, &fx_error) != HPS_OK) {
        fail_msg("space_open: %s", fx_error.text);
    }
    return space;
}

/* A space and its store. */
static inline void fx_close(struct hps_space *space)
{
    struct hps_store *store = space->store;
    store->ops->space_close(space);
    store->ops->close(store);
}

/* Stores of one space each, that are closed before the next test. */
enum { FX_DAEMONS_MAX = 4 };
static struct hps_space *fx_daemons[FX_DAEMONS_MAX];

static inline struct hps_space *fx_daemon_with(const struct hps_redis_store_options *options)
{
    struct hps_space **daemon = fx_daemons;
    while (*daemon != NULL) {
        daemon++;
        assert_true(daemon < fx_daemons + FX_DAEMONS_MAX);
    }
    *daemon = fx_space(fx_open_with(options));
    return *daemon;
}

static inline struct hps_space *fx_daemon(const char *member)
{
    const struct hps_redis_store_options options = fx_options(member);
    return fx_daemon_with(&options);
}

static inline void fx_daemon_close(struct hps_space *space)
{
    for (uint32_t i = 0; i < FX_DAEMONS_MAX; i++) {
        if (fx_daemons[i] == space) {
            fx_daemons[i] = NULL;
        }
    }
    fx_close(space);
}

static inline void fx_close_all(void)
{
    for (uint32_t i = 0; i < FX_DAEMONS_MAX; i++) {
        if (fx_daemons[i] != NULL) {
            fx_daemon_close(fx_daemons[i]);
        }
    }
}

static inline int fx_stop(void **state)
{
    (void)state;
    fx_close_all();
    hps_redis_rig_free(fx_rig);
    fx_rig = NULL;
    return 0;
}

/* Before each test: nothing is there, on one server or the masters of a cluster of three. */
static inline int fx_clean(void **state)
{
    (void)state;
    fx_close_all();
    for (uint32_t i = 0; fx_rig != NULL && i < hps_redis_rig_nodes(fx_rig) && i < 3; i++) {
        (void)hps_redis_rig_ask(fx_rig, i, "CONFIG SET maxmemory 0");
        (void)hps_redis_rig_ask(fx_rig, i, "FLUSHALL");
    }
    return 0;
}

#define FX_TEST(name) cmocka_unit_test_setup(name, fx_clean)

/* The version is at this offset of the one partition. */
static inline void fx_at(struct hps_space *space, int64_t offset)
{
    const struct hps_log_position position = {FX_PARTITION, offset, 0};
    assert_int_equal(space->store->ops->log->positions_set(space, &position, 1), HPS_OK);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The row that the record at `offset` has for a key. Any thread. */
static inline void fx_fill(uint8_t *row, uint32_t row_bytes, hps_key key, int64_t offset)
{
    uint64_t word = hps_mix64(key + hps_mix64((uint64_t)offset + 7));
    for (uint32_t i = 0; i < row_bytes; i++) {
        row[i] = (uint8_t)(word >> (8 * (i % 8)));
    }
}

static inline void fx_write(struct hps_write *write, hps_key *keys, uint8_t *rows, uint32_t n,
                            int64_t offset)
{
    for (uint32_t i = 0; i < n; i++) {
        fx_fill(rows + (size_t)i * FX_ROW, FX_ROW, keys[i], offset);
    }
    *write = (struct hps_write){&fx_tables[0], keys, rows, n};
}

/* Records [first, next) of the partition, which begins at 0, write keys [0, n) of table a as of
 * the last one. */
static inline struct hps_log_report fx_apply(struct hps_space *space, int64_t first, int64_t next,
                                             uint32_t n)
{
    static uint8_t rows[4096 * FX_ROW];
    static hps_key keys[4096];
    struct hps_write write;
    struct hps_log_report report;
    const uint32_t from = 0;
    const struct hps_log_span span = {FX_PARTITION, 0, first, next};
    assert_true(n <= 4096);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = i;
    }
    fx_write(&write, keys, rows, n, next - 1);
    const struct hps_log_batch batch = {&write, &from, n > 0 ? 1 : 0, &span, 1, false};
    assert_int_equal(space->store->ops->log->apply(space, &fx_call, &batch, &report), HPS_OK);
    assert_int_equal(report.n_applied + report.n_had + report.n_gap + report.n_failed, FX_SHARDS);
    return report;
}

/* Insert keys [0, n) of table a as of an offset. */
static inline struct hps_insert_report fx_insert(struct hps_space *space, uint32_t n,
                                                 int64_t offset)
{
    static uint8_t rows[4096 * FX_ROW];
    static hps_key keys[4096];
    static uint32_t slots[4096];
    struct hps_insert_report report;
    struct hps_write write;
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = i;
        slots[i] = i;
    }
    fx_write(&write, keys, rows, n, offset);
    assert_int_equal(space->store->ops->insert(space, &fx_call, &fx_tables[0], keys, slots, rows, n,
                                               NULL, &report),
                     HPS_OK);
    return report;
}

/* How many of keys [0, n) are found; each of them must be as of `offset`. */
static inline uint32_t fx_found_by(struct hps_space *space, const struct hps_call *call, uint32_t n,
                                   int64_t offset)
{
    static uint8_t rows[4096 * FX_ROW];
    static hps_key keys[4096];
    static uint32_t slots[4096];
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = i;
        slots[i] = i;
    }
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = n};
    assert_int_equal(space->store->ops->get(space, call, &fx_tables[0], &batch), HPS_OK);
    for (uint32_t i = batch.n; i < n; i++) {
        uint8_t row[FX_ROW];
        fx_fill(row, FX_ROW, keys[i], offset);
        assert_memory_equal(rows + (size_t)slots[i] * FX_ROW, row, FX_ROW);
    }
    return n - batch.n;
}

static inline uint32_t fx_found(struct hps_space *space, uint32_t n, int64_t offset)
{
    return fx_found_by(space, &fx_call, n, offset);
}

#endif
