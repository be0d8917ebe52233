/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling the host map of a version that is in use: when it may be marked complete. Files that
 * change during a load.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "backends/host/map.h"
#include "base/container.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "server/load/loader.h"
#include "tests/lib/catalog_fixture.h"
#include "tests/lib/fake_store.h"
#include "tests/lib/tmpdir.h"

enum { N_ROWS = 200, ROW_BYTES = 8, SCAN_ROWS = 100 };

/* A persistent store that can only be scanned. If `loses`, the host map loses a row after the
 * first batch. */
struct below {
    struct hps_store store;
    struct hps_space space;
    struct hps_space *host;
    bool loses;
};

static hps_status scan_below(struct hps_space *space, const struct hps_table *table,
                             hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                              uint32_t n),
                             void *ctx, struct hps_error *err)
{
    struct below *below = HPS_CONTAINER_OF(space, struct below, space);
    uint8_t rows[SCAN_ROWS][ROW_BYTES] = {{0}};
    hps_key keys[SCAN_ROWS];
    hps_status status = HPS_OK;
    (void)err;
    for (hps_key first = 0; status == HPS_OK && first < table->n_rows; first += SCAN_ROWS) {
        for (hps_key i = 0; i < SCAN_ROWS; i++) {
            keys[i] = first + i;
        }
        status = fn(ctx, keys, rows[0], SCAN_ROWS);
        if (status == HPS_OK && first == 0) {
            atomic_store(&below->host->incomplete, below->loses);
        }
    }
    return status;
}

static hps_status fill(uint32_t n_rows, bool loses, bool *out_complete, struct hps_error *err)
{
    static const struct hps_store_ops ops = {
        .name = "below", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_SCANS, .scan = scan_below};
    struct hps_version *version = hps_version_new("m", 1, 1);
    version->tables[0] = (struct hps_table){.name = hps_strdup("t"),
                                            .dim = 2,
                                            .row_bytes = ROW_BYTES,
                                            .dtype = HPS_DTYPE_FP32,
                                            .n_rows = n_rows,
                                            .default_row = hps_calloc(1, ROW_BYTES)};
    struct hps_load_env env = {0};
    uint64_t bytes = hps_load_host_bytes(&env, version->tables, 1);
    struct hps_store *host = NULL;
    assert_int_equal(hps_host_map_open(bytes > 1 << 20 ? bytes : 1 << 20, &host, err), HPS_OK);
    hps_stores_add(&env.stores, host);
    const struct hps_space_id id = {"m", 1, version->tables, 1, 0};
    struct below below = {.store = {&ops}, .space = {&below.store}, .loses = loses};
    assert_int_equal(host->ops->space_open(host, &id, &below.host, err), HPS_OK);
    version->tiers[0] = below.host;
    version->tiers[1] = &below.space;
    version->n_tiers = 2;
    const atomic_bool cancel = false;
    hps_status status = hps_load_refill_host(&env, version, &cancel, err);
    *out_complete = atomic_load(&version->host_complete);
    host->ops->space_close(below.host);
    hps_stores_close(&env.stores);
    hps_version_free(version);
    return status;
}

static void test_fill_when_every_row_is_inserted_then_the_map_is_complete(void **state)
{
    (void)state;
    struct hps_error err;
    bool complete = false;
    assert_int_equal(fill(N_ROWS, false, &complete, &err), HPS_OK);
    assert_true(complete);
}

static void test_fill_when_the_map_loses_a_row_then_a_miss_proves_nothing(void **state)
{
    (void)state;
    struct hps_error err;
    bool complete = true;
    assert_int_equal(fill(N_ROWS, true, &complete, &err), HPS_EXHAUSTED);
    assert_false(complete);
    assert_non_null(strstr(err.text, "filled the memory"));
}

/* Otherwise a version that a load had put into the map would be missing there after a restart. */
static void test_fill_when_the_budget_equals_the_needs_of_a_load_then_it_suffices(void **state)
{
    (void)state;
    for (uint32_t n_rows = 20000; n_rows < 600000; n_rows = n_rows * 23 / 20 / 100 * 100) {
        struct hps_error err;
        bool complete = false;
        assert_int_equal(fill(n_rows, false, &complete, &err), HPS_OK);
        assert_true(complete);
    }
}

/* ---- fills during updates -------------------------------------------------------------------- */

/* A store that is updated during its scan, so that the scan returns older rows. */
struct updated {
    struct hps_store *durable;
    struct hps_store_ops ops; /* its own, with another scan */
    struct hps_version *version;
    hps_key first; /* keys [first, first + N_UPDATED) are updated during the scan */
    bool deletes;
};

enum { N_UPDATED = 50 };

static struct updated updated;

static hps_status (*scan_durable)(struct hps_space *, const struct hps_table *,
                                  hps_status (*)(void *, const hps_key *, const uint8_t *,
                                                 uint32_t),
                                  void *, struct hps_error *);

static void update_rows(float value)
{
    hps_key keys[N_UPDATED];
    float rows[N_UPDATED][2];
    struct hps_error err;
    for (uint32_t i = 0; i < N_UPDATED; i++) {
        keys[i] = updated.first + i;
        rows[i][0] = rows[i][1] = value;
    }
    const struct hps_update_part part = {.row_bytes = ROW_BYTES,
                                         .n = N_UPDATED,
                                         .keys = keys,
                                         .rows = value == 0 ? NULL : (const uint8_t *)rows};
    const struct hps_update_batch batch = {.parts = &part, .n_parts = 1};
    assert_int_equal(hps_update_apply(updated.version, &batch, &err), HPS_OK);
}

struct taken {
    hps_key keys[N_ROWS];
    uint8_t rows[N_ROWS][ROW_BYTES];
    uint32_t n;
};

static hps_status take_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct taken *taken = ctx;
    memcpy(taken->keys + taken->n, keys, n * sizeof(*keys));
    memcpy(taken->rows + taken->n, rows, (size_t)n * ROW_BYTES);
    taken->n += n;
    return HPS_OK;
}

/* Read all rows, then update some of them, then pass on the outdated rows. */
static hps_status scan_updated(struct hps_space *space, const struct hps_table *table,
                               hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                                uint32_t n),
                               void *ctx, struct hps_error *err)
{
    static struct taken taken;
    taken.n = 0;
    hps_status status = scan_durable(space, table, take_rows, &taken, err);
    assert_int_equal(status, HPS_OK);
    update_rows(updated.deletes ? 0 : 2);
    for (hps_key key = updated.first; key < updated.first + N_UPDATED; key++) {
        if (key % 2 == 0) { /* evicted */
            hps_key evicted = key;
            const struct hps_call call = {0};
            struct hps_space *host = updated.version->tiers[0];
            assert_int_equal(host->store->ops->erase(host, &call, table, &evicted, 1), HPS_OK);
        }
    }
    return fn(ctx, taken.keys, &taken.rows[0][0], taken.n);
}

static float host_value(hps_key key)
{
    float row[2] = {0, 0};
    uint32_t slot = 0;
    const struct hps_call call = {0};
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = (uint8_t *)row, .n = 1};
    struct hps_space *host = updated.version->tiers[0];
    assert_int_equal(host->store->ops->get(host, &call, &updated.version->tables[0], &batch),
                     HPS_OK);
    return row[0];
}

static void fill_updated(bool deletes)
{
    const struct hps_fake_options disk = {.tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_DURABLE};
    struct hps_load_env env = {0};
    struct hps_error err;
    updated = (struct updated){.durable = hps_fake_store_new(&disk),
                               .version = hps_version_new("m", 1, 1),
                               .deletes = deletes};
    struct hps_version *version = updated.version;
    version->tables[0] = (struct hps_table){.name = hps_strdup("t"),
                                            .dim = 2,
                                            .row_bytes = ROW_BYTES,
                                            .dtype = HPS_DTYPE_FP32,
                                            .n_rows = N_ROWS};
    updated.ops = *updated.durable->ops;
    scan_durable = updated.ops.scan;
    updated.ops.scan = scan_updated;
    updated.durable->ops = &updated.ops;
    struct hps_store *host = NULL;
    assert_int_equal(hps_host_map_open(4 << 20, &host, &err), HPS_OK);
    hps_stores_add(&env.stores, host);
    hps_stores_add(&env.stores, updated.durable);
    const struct hps_space_id id = {"m", 1, version->tables, 1, 0};
    for (uint32_t i = 0; i < 2; i++) {
        struct hps_store *store = env.stores.items[i];
        assert_int_equal(store->ops->space_open(store, &id, &version->tiers[i], &err), HPS_OK);
        version->n_tiers++;
    }
    assert_int_equal(hps_update_open(version, &err), HPS_OK);
    hps_version_pin(version);
    for (updated.first = 0; updated.first < N_ROWS; updated.first += N_UPDATED) {
        update_rows(1);
    }
    for (hps_key key = 0; key < N_ROWS; key++) { /* the host map is empty, like after a start */
        const struct hps_call call = {0};
        hps_key evicted = key;
        assert_int_equal(version->tiers[0]->store->ops->erase(version->tiers[0], &call,
                                                              version->tables, &evicted, 1),
                         HPS_OK);
    }
    updated.first = N_UPDATED;
    const atomic_bool cancel = false;
    hps_status status = hps_load_refill_host(&env, version, &cancel, &err);
    assert_true(status == HPS_OK);
    assert_true(version->host_complete);
    for (hps_key key = 0; key < N_ROWS; key++) {
        bool changed = key >= N_UPDATED && key < 2 * N_UPDATED;
        assert_true(host_value(key) == (!changed ? 1 : deletes ? 0 : 2));
    }
    for (uint32_t i = 0; i < 2; i++) {
        version->tiers[i]->store->ops->space_close(version->tiers[i]);
    }
    hps_version_unpin(version);
    hps_version_free(version);
    hps_stores_close(&env.stores);
}

static void test_fill_when_rows_are_changed_during_it_then_the_map_has_the_new_ones(void **state)
{
    (void)state;
    fill_updated(false);
    fill_updated(true); /* deleted rows must stay deleted */
}

/* ---- files that change during a load --------------------------------------------------------- */

static void write_table(struct hps_tmpdir *dir, float value)
{
    fixture_write_rows(hps_tmpdir_join(dir, "model/t.npy"), 2, N_ROWS, value);
}

/* A planned load of one table. The caller owns the stores. */
struct loading {
    struct hps_tmpdir dir;
    struct hps_load_env env;
    struct hps_source source;
    struct hps_load_plan plan;
    struct hps_version *version;
};

static void loading_open(struct loading *load)
{
    struct hps_error err;
    load->env.memory_bytes = 2 << 20;
    load->env.host_bytes_max = 8 << 20;
    load->env.key_bytes = 8;
    hps_tmpdir_open(&load->dir);
    hps_tmpdir_mkdir(&load->dir, "model");
    load->env.spill_dir = load->dir.path;
    write_table(&load->dir, 1);
    assert_int_equal(
        hps_source_open_dir(NULL, hps_tmpdir_join(&load->dir, "model"), NULL, &load->source, &err),
        HPS_OK);
    load->version = hps_version_new("m", 1, 1);
    assert_int_equal(hps_load_plan(&load->env, &load->source, 0, load->version, &load->plan, &err),
                     HPS_OK);
}

static hps_status loading_run(struct loading *load, struct hps_load_progress *progress,
                              struct hps_error *err)
{
    return hps_load_run(&load->env, &load->source, &load->plan, load->version, progress, err);
}

static void loading_close(struct loading *load)
{
    for (uint32_t i = 0; i < load->version->n_tiers; i++) {
        load->version->tiers[i]->store->ops->space_close(load->version->tiers[i]);
    }
    hps_version_free(load->version);
    hps_source_close(&load->source);
    hps_tmpdir_close(&load->dir);
}

static void test_load_when_a_file_was_replaced_by_one_of_the_same_shape_then_refused(void **state)
{
    (void)state;
    const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}}; /* for any clock resolution */
    struct loading load = {.version = NULL};
    struct hps_load_progress progress = {0};
    struct hps_error err;
    struct hps_store *store = NULL;
    assert_int_equal(hps_host_map_open(8 << 20, &store, &err), HPS_OK);
    hps_stores_add(&load.env.stores, store);
    loading_open(&load);
    write_table(&load.dir, 2);
    assert_int_equal(utimensat(AT_FDCWD, hps_tmpdir_join(&load.dir, "model/t.npy"), times, 0), 0);
    assert_int_equal(loading_run(&load, &progress, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "t.npy"));
    assert_int_equal(load.version->n_tiers, 0);
    loading_close(&load);
    hps_stores_close(&load.env.stores); /* asserts that all spaces are closed */
}

static uint64_t rows_of(const struct hps_version *version, const struct hps_store *store)
{
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        struct hps_store_usage usage;
        if (version->tiers[i]->store == store) {
            store->ops->space_usage(version->tiers[i], &usage);
            return usage.n_rows;
        }
    }
    return 0;
}

/* An active version may need the host map's memory as late as the commit. */
static void test_load_when_the_host_map_refuses_the_commit_then_the_store_below_has_it(void **state)
{
    (void)state;
    const struct hps_fake_options disk = {.tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_DURABLE};
    const struct hps_fake_options host = {.tier = HPS_TIER_HOST};
    struct loading load = {.version = NULL};
    struct hps_load_progress progress = {0};
    struct hps_error err;
    struct hps_stores *stores = &load.env.stores;
    hps_stores_add(stores, hps_fake_store_new(&host));
    hps_stores_add(stores, hps_fake_store_new(&disk));
    hps_fake_fail(hps_stores_host(stores), HPS_FAKE_LOAD_COMMIT, HPS_EXHAUSTED, 0, 1, 0);
    loading_open(&load);
    assert_int_equal(loading_run(&load, &progress, &err), HPS_OK);
    assert_int_equal(load.version->n_tiers, 2);
    assert_false(atomic_load(&load.version->host_complete));
    assert_int_equal(rows_of(load.version, hps_stores_host(stores)), 0);
    assert_int_equal(rows_of(load.version, hps_stores_durable(stores)), N_ROWS);
    loading_close(&load);
    hps_stores_close(stores);
}

/* ---- a shared store -------------------------------------------------------------------------- */

struct shared_load {
    struct hps_store *redis;
    struct hps_store *durable; /* NULL: no durable store */
    struct hps_load_progress progress;
    uint64_t start_hash;
    char load_id[17];
    uint64_t n_rows_redis;
    uint64_t n_rows_durable;
};

/* Load a version; `redis` may have been set to fail. Counts the rows of the loaded version. */
static hps_status load_shared(struct shared_load *load, double ratio, struct hps_error *err)
{
    struct loading one = {.env = {.shared_seed_ratio = ratio}};
    hps_stores_add(&one.env.stores, load->redis);
    if (load->durable != NULL) {
        hps_stores_add(&one.env.stores, load->durable);
    }
    loading_open(&one);
    one.plan.start_hash = load->start_hash;
    hps_status status = loading_run(&one, &load->progress, err);
    assert_int_equal(one.version->n_tiers, status != HPS_OK ? 0 : load->durable != NULL ? 2 : 1);
    load->n_rows_redis = rows_of(one.version, load->redis);
    load->n_rows_durable = load->durable == NULL ? 0 : rows_of(one.version, load->durable);
    if (status == HPS_OK) {
        assert_ptr_equal(one.version->tiers[0]->store, load->redis);
        snprintf(load->load_id, sizeof(load->load_id), "%s", one.version->load_id);
    }
    loading_close(&one);
    return status;
}

static void shared_open(struct shared_load *load, bool durable)
{
    const struct hps_fake_options disk = {.tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_DURABLE};
    const struct hps_fake_options redis = {.tier = HPS_TIER_REDIS,
                                           .caps = HPS_STORE_SHARED | HPS_STORE_BLOCKING};
    *load = (struct shared_load){.redis = hps_fake_store_new(&redis),
                                 .durable = durable ? hps_fake_store_new(&disk) : NULL};
}

/* Closing asserts that no space is left open. */
static void shared_close(struct shared_load *load)
{
    load->redis->ops->close(load->redis);
    if (load->durable != NULL) {
        load->durable->ops->close(load->durable);
    }
}

static void test_load_when_redis_is_above_a_store_then_it_gets_its_share_of_the_rows(void **state)
{
    (void)state;
    static const double ratios[] = {1, 0.5, 0};
    for (unsigned i = 0; i < 3; i++) {
        struct shared_load load;
        struct hps_error err;
        shared_open(&load, true);
        assert_int_equal(load_shared(&load, ratios[i], &err), HPS_OK);
        assert_int_equal(load.n_rows_durable, N_ROWS);
        double n = ratios[i] * N_ROWS;
        assert_true((double)load.n_rows_redis >= n - N_ROWS / 4.0 * (ratios[i] == 0.5));
        assert_true((double)load.n_rows_redis <= n + N_ROWS / 4.0 * (ratios[i] == 0.5));
        assert_int_equal(load.progress.rows_done, N_ROWS);
        shared_close(&load);
    }
}

struct failure {
    bool above; /* redis is above a store with all rows; else it is the only copy */
    enum hps_fake_op op;
    hps_status says;
    hps_status status;
    uint64_t n_rows_redis;
    uint32_t n_begun, n_dropped; /* calls of redis: begun loads, dropped spaces */
};

/* Above a store, redis may start empty and is filled when it is available again. As the only
 * copy, its rows may be of an earlier load and have updates: they are used, never deleted. */
static void test_load_when_redis_or_the_store_below_fails_then_the_only_copy_decides(void **state)
{
    (void)state;
    static const struct failure failures[] = {
        {true, HPS_FAKE_LOAD_BEGIN, HPS_UNAVAILABLE, HPS_OK, 0, 1, 0},
        {true, HPS_FAKE_LOAD_ADD, HPS_UNAVAILABLE, HPS_OK, N_ROWS, 2, 0},
        {true, HPS_FAKE_LOAD_COMMIT, HPS_UNAVAILABLE, HPS_OK, N_ROWS, 2, 0},
        {true, HPS_FAKE_LOAD_ADD, HPS_EXHAUSTED, HPS_OK, 0, 1, 0},
        {true, HPS_FAKE_LOAD_COMMIT, HPS_EXHAUSTED, HPS_OK, 0, 1, 0},
        {true, HPS_FAKE_SCAN, HPS_IO, HPS_IO, 0, 1, 1},
        {false, HPS_FAKE_LOAD_BEGIN, HPS_PRECONDITION, HPS_OK, 0, 1, 0},
        {false, HPS_FAKE_LOAD_BEGIN, HPS_UNAVAILABLE, HPS_UNAVAILABLE, 0, 1, 0},
        {false, HPS_FAKE_LOAD_ADD, HPS_UNAVAILABLE, HPS_UNAVAILABLE, 0, 1, 0},
        {false, HPS_FAKE_LOAD_COMMIT, HPS_UNAVAILABLE, HPS_UNAVAILABLE, 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
        const struct failure *failure = &failures[i];
        struct shared_load load;
        struct hps_error err = {0};
        shared_open(&load, failure->above);
        struct hps_store *fails = failure->op == HPS_FAKE_SCAN ? load.durable : load.redis;
        hps_fake_fail(fails, failure->op, failure->says, 0, 1, 0);
        assert_int_equal(load_shared(&load, 1, &err), failure->status);
        assert_int_equal(load.n_rows_redis, failure->n_rows_redis);
        assert_int_equal(hps_fake_calls(load.redis, HPS_FAKE_LOAD_BEGIN), failure->n_begun);
        assert_true(failure->op != HPS_FAKE_LOAD_BEGIN ||
                    hps_fake_calls(load.redis, HPS_FAKE_LOAD_ADD) == 0);
        assert_int_equal(hps_fake_calls(load.redis, HPS_FAKE_SPACE_DROP), failure->n_dropped);
        assert_true(failure->status != HPS_UNAVAILABLE || err.text[0] != '\0');
        if (failure->above) {
            bool whole = failure->status == HPS_OK;
            assert_int_equal(load.n_rows_durable, whole ? N_ROWS : 0);
            assert_true(!whole || load.progress.rows_done == N_ROWS);
            assert_int_equal(hps_fake_calls(load.durable, HPS_FAKE_SPACE_DROP), !whole);
        }
        shared_close(&load);
    }
}

static void test_load_when_redis_is_the_only_store_then_it_has_all_rows_and_the_same_load_id(
    void **state)
{
    (void)state;
    struct shared_load load;
    struct shared_load above;
    struct hps_error err;
    shared_open(&load, false);
    shared_open(&above, true);
    assert_int_equal(load_shared(&load, 0, &err), HPS_OK);
    assert_int_equal(load.n_rows_redis, N_ROWS);
    assert_int_equal(load.progress.rows_done, N_ROWS);
    assert_int_equal(load_shared(&above, 1, &err), HPS_OK);
    assert_string_equal(load.load_id, above.load_id);
    shared_close(&above);
    shared_close(&load);
}

/* Daemons with different starts of updates must not share rows. As the only copy, redis itself
 * has the positions to continue from. */
static void test_load_when_updates_begin_at_another_offset_then_another_load_id_above_a_store(
    void **state)
{
    (void)state;
    char ids[2][3][17];
    for (unsigned durable = 0; durable < 2; durable++) {
        for (unsigned start = 0; start < 3; start++) {
            struct shared_load load;
            struct hps_error err;
            shared_open(&load, durable);
            load.start_hash = start;
            assert_int_equal(load_shared(&load, 1, &err), HPS_OK);
            memcpy(ids[durable][start], load.load_id, sizeof(load.load_id));
            shared_close(&load);
        }
    }
    assert_string_equal(ids[0][0], ids[0][1]);
    assert_string_equal(ids[0][0], ids[1][0]);
    assert_string_not_equal(ids[1][0], ids[1][1]);
    assert_string_not_equal(ids[1][1], ids[1][2]);
}

/* started_us: the begin of the load. A line is due every 10 s after it. */
static void test_progress_when_ten_seconds_have_passed_then_one_line_with_rate_and_time_left(
    void **state)
{
    (void)state;
    struct hps_load_progress progress = {.started_us = 5000000, .rows_total = 300};
    static const uint64_t at_us[] = {14999999, 15000000, 24999999};
    char text[1024];
    int fds[2];
    atomic_store(&progress.stage, "write");
    atomic_store(&progress.rows_done, 100);
    atomic_store(&progress.bytes_done, 4000);
    assert_int_equal(pipe(fds), 0);
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, fds[1]);
    for (size_t i = 0; i < sizeof(at_us) / sizeof(at_us[0]); i++) {
        hps_load_progress_log(&progress, "m", 3, "items", at_us[i]);
    }
    atomic_store(&progress.rows_done, 0); /* the next line, without left_s */
    hps_load_progress_log(&progress, "m", 3, "items", 25000000);
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, STDERR_FILENO);
    close(fds[1]);
    ssize_t n = read(fds[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text,
                           " model=m version=3 stage=write table=items rows=100 rows_total=300 "
                           "bytes=4000 bytes_per_s=400 left_s=20\n"));
    assert_ptr_equal(strstr(strchr(text, '\n'), "bytes_per_s=200\n") + strlen("bytes_per_s=200"),
                     text + n - 1);
    close(fds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_progress_when_ten_seconds_have_passed_then_one_line_with_rate_and_time_left),
        cmocka_unit_test(test_fill_when_every_row_is_inserted_then_the_map_is_complete),
        cmocka_unit_test(test_fill_when_the_map_loses_a_row_then_a_miss_proves_nothing),
        cmocka_unit_test(test_fill_when_rows_are_changed_during_it_then_the_map_has_the_new_ones),
        cmocka_unit_test(test_fill_when_the_budget_equals_the_needs_of_a_load_then_it_suffices),
        cmocka_unit_test(
            test_load_when_the_host_map_refuses_the_commit_then_the_store_below_has_it),
        cmocka_unit_test(test_load_when_a_file_was_replaced_by_one_of_the_same_shape_then_refused),
        cmocka_unit_test(test_load_when_redis_is_above_a_store_then_it_gets_its_share_of_the_rows),
        cmocka_unit_test(test_load_when_redis_or_the_store_below_fails_then_the_only_copy_decides),
        cmocka_unit_test(
            test_load_when_redis_is_the_only_store_then_it_has_all_rows_and_the_same_load_id),
        cmocka_unit_test(
            test_load_when_updates_begin_at_another_offset_then_another_load_id_above_a_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
