/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups of a version with a gpu space on the simulated device. Each tier has a different row
 * for a key. The rows of a reply thus show which tier they came from, and the test compares that
 * with the counts.
 */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/dtype.h"
#include "cache/version/absent.h"
#include "cache/version/fetched.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/pause.h"

enum { KEYS_MAX = 600, SPACE_OF_KEYS = 400, GIVE_UP_US = 60 * 1000 * 1000 };

/* The tier that a row came from. */
enum source { GPU, HOST, DISK, ABSENT, DEFAULTED, N_SOURCES };

#define SOURCE_STEP (INT64_C(1) << 32)

enum { HIT, MISS, FAULT_UNAVAILABLE, FAULT_OTHER, ROWS_SYNC, ROWS_ASYNC, N_COUNTS };

struct gpu_test {
    struct fixture fx;
    struct gpu_fixture gpu;
    bool in[3][FIXTURE_TABLES][SPACE_OF_KEYS]; /* rows that a tier was given */
    struct hps_arena *arena;
    uint8_t keys[FIXTURE_TABLES][KEYS_MAX * 8 + 1];
    struct hps_lookup_part parts[FIXTURE_TABLES];
    struct hps_lookup lookup;
    struct hps_space *all[2]; /* its tiers, while only the gpu and the disk are in use */
    struct hps_gpu_lookup probe;
    struct hps_block *first_block;
    atomic_bool answered;
    bool done;                                 /* after the memory tiers and the gpu */
    uint32_t n_asked;                          /* lookups sent to the gpu */
    uint32_t found[FIXTURE_TABLES][N_SOURCES]; /* unique keys of the last reply */
    uint32_t expected[FIXTURE_TABLES][N_SOURCES];
    struct hps_metrics *registry;
    struct hps_metric *counts[N_COUNTS];
    struct hps_table_metrics series[FIXTURE_TABLES];
    struct hps_lookup_metrics metrics;
    struct hps_pool *pool;
    struct hps_insertion *insertion;
    struct hps_task hold;
    sem_t go_on;
    struct hps_error err;
};

static struct gpu_test *the_test;

static void run_hold(struct hps_task *task)
{
    (void)task;
    sem_wait(&the_test->go_on);
}

static void open_metrics(struct gpu_test *t)
{
    static const struct hps_metric_family_def family = {"keys", "what", HPS_METRIC_COUNTER,
                                                        "Keys."};
    static const char *const names[N_COUNTS + 1] = {"hit",  "miss",  "unavailable", "other",
                                                    "sync", "async", "rest"};
    struct hps_metric *all[N_COUNTS + 1];

    t->registry = hps_metrics_new(&family, 1, 16);
    for (uint32_t i = 0; i <= N_COUNTS; i++) {
        all[i] = hps_metric_get(t->registry, 0, &names[i]);
    }
    memcpy(t->counts, all, sizeof(t->counts));
    for (uint32_t i = 0; i < FIXTURE_TABLES; i++) {
        struct hps_metric *rest = all[N_COUNTS];
        t->series[i] = (struct hps_table_metrics){
            .keys_found = rest, .keys_defaulted = rest, .keys_unknown = rest, .unique_keys = rest};
        t->series[i].tier_hit[HPS_TIER_GPU] = all[HIT];
        t->series[i].tier_miss[HPS_TIER_GPU] = all[MISS];
    }
    t->fx.version.metrics = t->series;
}

static void open_test(struct gpu_test *t, const bool *cached)
{
    the_test = t;
    fixture_open(&t->fx, 0);
    t->fx.version.absent = hps_absent_new();
    t->fx.version.fetched = hps_fetched_new();
    t->arena = hps_arena_new(4096, 1 << 24);
    assert_non_null(t->arena);
    assert_non_null(t->fx.version.absent);
    assert_non_null(t->fx.version.fetched);
    open_metrics(t);
    gpu_fixture_open(&t->gpu, &t->fx.version, cached);
    sem_init(&t->go_on, 0, 0);
    t->hold.run = run_hold;
    assert_int_equal(hps_pool_new("io", 1, 100, &t->pool), HPS_OK);
    assert_int_equal(hps_pool_post(t->pool, &t->hold), HPS_OK);
    const struct hps_insertion_options options = {.io = t->pool, .rows_max = 1000, .jobs_max = 1};
    assert_int_equal(hps_insertion_new(&options, &t->insertion), HPS_OK);
}

static void close_test(struct gpu_test *t)
{
    sem_post(&t->go_on);
    hps_insertion_stop(t->insertion);
    hps_pool_free(t->pool);
    hps_insertion_free(t->insertion);
    hps_block_unref(t->lookup.block);
    t->lookup.block = NULL;
    gpu_fixture_close(&t->gpu);
    if (t->all[0] != NULL) {
        memcpy(t->fx.version.tiers, t->all, sizeof(t->all));
        t->fx.version.n_tiers = 2;
    }
    hps_absent_free(t->fx.version.absent);
    hps_fetched_free(t->fx.version.fetched);
    hps_metrics_free(t->registry);
    hps_arena_free(t->arena);
    fixture_close(&t->fx);
    sem_destroy(&t->go_on);
}

static int setup(void **state)
{
    static const bool all[FIXTURE_TABLES] = {true, true, true};
    struct gpu_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    open_test(t, all);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    close_test(*state);
    hps_free(*state);
    return 0;
}

/* ---- rows of tiers --------------------------------------------------------------------------- */

static void put(struct gpu_test *t, enum source source, uint32_t table, hps_key key)
{
    const struct hps_table *of = &t->fx.tables[table];
    struct hps_space *space = source == GPU ? NULL : t->fx.version.tiers[source - HOST];
    const struct hps_call call = {0};
    uint8_t row[FIXTURE_DIM_MAX * 4];

    fixture_row(of, key + SOURCE_STEP * (hps_key)source, row);
    if (source == GPU) {
        gpu_fixture_put(&t->gpu, of, key, row);
    } else {
        assert_int_equal(space->store->ops->put(space, &call, of, &key, row, 1), HPS_OK);
    }
    t->in[source][table][key] = true;
}

static void put_range(struct gpu_test *t, enum source source, uint32_t table, hps_key from,
                      hps_key to)
{
    for (hps_key key = from; key < to; key++) {
        put(t, source, table, key);
    }
}

/* ---- running a lookup ------------------------------------------------------------------------ */

static void on_answered(struct hps_lookup *lookup)
{
    struct gpu_test *t = HPS_CONTAINER_OF(lookup, struct gpu_test, lookup);

    atomic_store(&t->answered, true);
}

/* Keys of a part, at an odd address. */
static void set_keys(struct gpu_test *t, uint32_t part, const hps_key *keys, uint32_t n)
{
    memcpy(t->keys[part] + 1, keys, n * sizeof(*keys));
    t->parts[part] = (struct hps_lookup_part){
        .table = &t->fx.tables[part], .keys = t->keys[part] + 1, .n_keys = n};
}

static void set_range(struct gpu_test *t, uint32_t part, hps_key from, hps_key to)
{
    hps_key keys[KEYS_MAX];

    for (hps_key key = from; key < to; key++) {
        keys[key - from] = key;
    }
    set_keys(t, part, keys, (uint32_t)(to - from));
}

static void plan(struct gpu_test *t, uint32_t n_parts, enum hps_lookup_path path)
{
    hps_arena_reset(t->arena);
    hps_block_unref(t->lookup.block);
    t->lookup.version = &t->fx.version;
    t->lookup.arena = t->arena;
    t->lookup.parts = t->parts;
    t->lookup.n_parts = n_parts;
    t->lookup.set = NULL;
    t->lookup.set_size = 0;
    t->lookup.path = path;
    t->lookup.insertion = t->insertion;
    t->lookup.blocks = t->gpu.blocks;
    t->lookup.gpu_done = on_answered;
    assert_int_equal(hps_lookup_plan(&t->lookup, &t->err), HPS_OK);
    assert_int_equal(hps_lookup_take_block(&t->lookup), HPS_OK);
    memset(t->lookup.rows, 0xA5, t->lookup.rows_bytes);
    t->first_block = t->lookup.block;
    t->n_asked = 0;
}

static bool ask_gpu(struct gpu_test *t)
{
    atomic_store(&t->answered, false);
    bool asked = hps_lookup_ask_gpu(&t->lookup);
    t->n_asked += asked ? 1 : 0;
    return asked;
}

static void wait_answered(struct gpu_test *t)
{
    uint64_t give_up_us = hps_clock_us() + GIVE_UP_US;

    while (!atomic_load(&t->answered)) {
        assert_true(hps_clock_us() < give_up_us);
        brief_pause();
    }
}

/* Run the lookup from the memory tiers to its end. */
static void go_on(struct gpu_test *t)
{
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &t->done, &t->err), HPS_OK);
    if (!t->done) {
        if (ask_gpu(t)) {
            wait_answered(t);
        }
        assert_int_equal(hps_lookup_run_gpu(&t->lookup, &t->done, &t->err), HPS_OK);
    }
    if (!t->done) {
        assert_int_equal(hps_lookup_run_rest(&t->lookup, &t->err), HPS_OK);
    }
}

static void ask(struct gpu_test *t, uint32_t n_parts, enum hps_lookup_path path)
{
    plan(t, n_parts, path);
    if (ask_gpu(t)) {
        wait_answered(t);
    }
    go_on(t);
}

static void wait_inserted(struct gpu_test *t)
{
    uint64_t give_up_us = hps_clock_us() + GIVE_UP_US;

    while (hps_insertion_rows(t->insertion) > 0) {
        assert_true(hps_clock_us() < give_up_us);
        brief_pause();
    }
}

/* ---- checking -------------------------------------------------------------------------------- */

static bool is_row_of(const struct gpu_test *t, const struct hps_lookup_part *part, uint32_t i,
                      hps_key key)
{
    enum hps_dtype type = t->lookup.output == 0 ? HPS_DTYPE_FP32 : t->lookup.output;
    uint8_t row[FIXTURE_DIM_MAX * 4];
    uint8_t wanted[FIXTURE_DIM_MAX * 4];

    fixture_row(part->table, key, row);
    hps_row_convert(wanted, type, row, part->table->dtype, part->table->dim);
    return memcmp(part->rows + (size_t)i * part->row_bytes, wanted, part->row_bytes) == 0;
}

/* The tier that row i of a part came from. */
static enum source source_of(const struct gpu_test *t, const struct hps_lookup_part *part,
                             uint32_t i, hps_key key)
{
    uint8_t status = part->key_status == NULL ? HPS_KEY_FOUND : part->key_status[i];
    enum hps_dtype type = t->lookup.output == 0 ? HPS_DTYPE_FP32 : t->lookup.output;
    uint8_t wanted[FIXTURE_DIM_MAX * 4];

    if (status != HPS_KEY_FOUND) {
        hps_row_convert(wanted, type, part->table->default_row, part->table->dtype,
                        part->table->dim);
        assert_memory_equal(part->rows + (size_t)i * part->row_bytes, wanted, part->row_bytes);
        return status == HPS_KEY_UNKNOWN ? ABSENT : DEFAULTED;
    }
    for (enum source source = GPU; source <= DISK; source++) {
        if (is_row_of(t, part, i, key + SOURCE_STEP * (hps_key)source)) {
            return source;
        }
    }
    fail_msg("table %u: row %u of key %lld is of no tier", part->table->id, i, (long long)key);
    return N_SOURCES;
}

static void check_part(struct gpu_test *t, uint32_t p)
{
    const struct hps_lookup_part *part = &t->parts[p];
    const struct hps_walk *walk = &part->walk;
    enum source seen[SPACE_OF_KEYS];
    uint32_t n_unique = 0;

    memset(t->found[p], 0, sizeof(t->found[p]));
    for (uint32_t key = 0; key < SPACE_OF_KEYS; key++) {
        seen[key] = N_SOURCES;
    }
    for (uint32_t i = 0; i < part->n_keys; i++) {
        hps_key key;
        memcpy(&key, part->keys + (size_t)i * sizeof(key), sizeof(key));
        enum source source = source_of(t, part, i, key);
        if (seen[key] == N_SOURCES || hps_lookup_part_hit(part, i)) { /* counts duplicate hits */
            t->found[p][source]++;
            n_unique++;
        }
        seen[key] = seen[key] == N_SOURCES ? source : seen[key];
        assert_int_equal(source, seen[key]); /* duplicates have equal rows */
    }
    assert_int_equal(part->n_unique, n_unique);
    if (n_unique > 0) {
        assert_int_equal(walk->reports[HPS_TIER_GPU].n_found +
                             walk->reports[HPS_TIER_HOST].n_found +
                             walk->reports[HPS_TIER_ROCKSDB].n_found,
                         t->found[p][GPU] + t->found[p][HOST] + t->found[p][DISK]);
        assert_int_equal(walk->n_absent, t->found[p][ABSENT]);
        assert_int_equal(walk->batch.n, t->found[p][DEFAULTED]);
    }
}

static void check(struct gpu_test *t)
{
    for (uint32_t p = 0; p < t->lookup.n_parts; p++) {
        check_part(t, p);
    }
}

/* Look up the first part and check it. */
static void ask_one(struct gpu_test *t, enum hps_lookup_path path)
{
    ask(t, 1, path);
    check_part(t, 0);
}

static void ask_with(struct gpu_test *t, enum hps_miss_policy policy, enum hps_lookup_path path)
{
    t->lookup.miss_policy = policy;
    ask_one(t, path);
}

static void assert_found(const struct gpu_test *t, uint32_t part, uint32_t gpu, uint32_t host,
                         uint32_t disk, uint32_t absent, uint32_t defaulted)
{
    assert_int_equal(t->found[part][GPU], gpu);
    assert_int_equal(t->found[part][HOST], host);
    assert_int_equal(t->found[part][DISK], disk);
    assert_int_equal(t->found[part][ABSENT], absent);
    assert_int_equal(t->found[part][DEFAULTED], defaulted);
}

static void assert_count(const struct gpu_test *t, unsigned which, unsigned n)
{
    assert_true(hps_metric_value(t->counts[which]) == (double)n);
}

static void on_probed(struct hps_gpu_lookup *probe)
{
    struct gpu_test *t = HPS_CONTAINER_OF(probe, struct gpu_test, probe);

    atomic_store(&t->answered, true);
}

/* Which keys of a table the gpu has, by a call outside of any lookup. */
static void probe_gpu(struct gpu_test *t, uint32_t table, uint32_t *hits)
{
    static hps_key keys[SPACE_OF_KEYS];
    struct hps_gpu_part part = {
        .table_id = table, .n = SPACE_OF_KEYS, .keys = (const uint8_t *)keys, .hits = hits};

    for (uint32_t i = 0; i < SPACE_OF_KEYS; i++) {
        keys[i] = i;
    }
    t->probe = (struct hps_gpu_lookup){
        .space = t->gpu.space,
        .block = hps_block_new_slab(t->gpu.blocks, (size_t)SPACE_OF_KEYS * FIXTURE_DIM_MAX * 4),
        .parts = &part,
        .n_parts = 1,
        .done = on_probed};
    atomic_store(&t->answered, false);
    assert_int_equal(hps_gpu_lookup(&t->probe), HPS_OK);
    wait_answered(t);
    assert_int_equal(t->probe.status, HPS_OK);
    hps_block_unref(t->probe.block);
}

static bool host_has(const struct gpu_test *t, uint32_t table, hps_key key)
{
    struct hps_space *host = t->fx.version.tiers[0];
    const struct hps_call call = {0};
    uint8_t row[FIXTURE_DIM_MAX * 4];
    uint32_t slot = 0;
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = row, .n = 1};

    assert_int_equal(host->store->ops->get(host, &call, &t->fx.tables[table], &batch), HPS_OK);
    return batch.n == 0;
}

/* Compute how many keys each tier is going to find. */
static void expect(struct gpu_test *t, enum hps_lookup_path path)
{
    memset(t->expected, 0, sizeof(t->expected));
    for (uint32_t p = 0; p < FIXTURE_TABLES; p++) {
        const struct hps_lookup_part *part = &t->parts[p];
        uint32_t hits[(SPACE_OF_KEYS + 31) / 32] = {0};
        bool seen[SPACE_OF_KEYS] = {false};

        probe_gpu(t, p, hits);
        for (uint32_t i = 0; i < part->n_keys; i++) {
            hps_key key;
            memcpy(&key, part->keys + (size_t)i * sizeof(key), sizeof(key));
            bool in_host = host_has(t, p, key);
            bool in_gpu = (hits[key / 32] >> key % 32 & 1) != 0;
            if (seen[key] && (path != HPS_LOOKUP_PATH_GPU || !in_gpu)) {
                continue;
            }
            seen[key] = true;
            bool gpu = in_gpu && (path == HPS_LOOKUP_PATH_GPU || !in_host);
            t->expected[p][GPU] += gpu ? 1 : 0;
            t->expected[p][HOST] += !gpu && in_host ? 1 : 0;
            t->expected[p][DISK] += !gpu && !in_host && t->in[DISK][p][key] ? 1 : 0;
            t->expected[p][ABSENT] += !t->in[DISK][p][key] ? 1 : 0;
        }
    }
}

static void check_counts(struct gpu_test *t)
{
    for (uint32_t p = 0; p < t->lookup.n_parts; p++) {
        const struct hps_walk *walk = &t->parts[p].walk;
        if (t->parts[p].n_keys > 0) {
            assert_int_equal(walk->reports[HPS_TIER_GPU].n_found, t->expected[p][GPU]);
            assert_int_equal(walk->reports[HPS_TIER_HOST].n_found, t->expected[p][HOST]);
            assert_int_equal(walk->reports[HPS_TIER_ROCKSDB].n_found, t->expected[p][DISK]);
            assert_int_equal(walk->n_absent, t->expected[p][ABSENT]);
        }
    }
}

/* Keys [0, 25) are in gpu and disk, [25, 50) in gpu, host and disk, [50, 75) in host and disk,
 * [75, 100) in the disk. */
static void place(struct gpu_test *t, uint32_t table)
{
    put_range(t, GPU, table, 0, 50);
    put_range(t, HOST, table, 25, 75);
    put_range(t, DISK, table, 0, 100);
}

/* ---- tests: orders --------------------------------------------------------------------------- */

static void test_lookup_when_gpu_first_then_other_tiers_get_its_misses(void **state)
{
    struct gpu_test *t = *state;

    place(t, 0);
    set_range(t, 0, 0, 110);
    ask_one(t, HPS_LOOKUP_PATH_GPU);
    assert_found(t, 0, 50, 25, 25, 10, 0);
    assert_int_equal(t->n_asked, 1);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_asked, 110);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_HOST].n_asked, 60);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_ROCKSDB].n_asked, 35);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_inserted, 50); /* of host and disk */
    assert_count(t, HIT, 50);
    assert_count(t, MISS, 60);
    assert_ptr_equal(t->lookup.block, t->first_block);
    ask_one(t, HPS_LOOKUP_PATH_GPU); /* the gpu has them now, with the inserted rows */
    assert_found(t, 0, 50, 25, 25, 10, 0);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_found, 100);
    assert_int_equal(t->parts[0].walk.n_remembered, 10);
    assert_true(t->done);
}

static void test_lookup_when_host_first_then_the_gpu_gets_its_misses(void **state)
{
    struct gpu_test *t = *state;

    place(t, 2);
    set_range(t, 0, 0, 0);
    set_range(t, 1, 0, 0);
    set_range(t, 2, 0, 110);
    ask(t, 3, HPS_LOOKUP_PATH_HOST);
    check_part(t, 2);
    assert_found(t, 2, 25, 50, 25, 10, 0);
    assert_int_equal(t->parts[2].walk.reports[HPS_TIER_HOST].n_asked, 110);
    assert_int_equal(t->parts[2].walk.reports[HPS_TIER_GPU].n_asked, 60);
    assert_int_equal(t->parts[2].walk.reports[HPS_TIER_ROCKSDB].n_asked, 35);
    assert_int_equal(t->parts[2].walk.reports[HPS_TIER_GPU].n_inserted, 25); /* only on disk */
    assert_count(t, HIT, 25);
    assert_count(t, MISS, 35);
    assert_int_equal(t->n_asked, 1);
    set_range(t, 2, 25, 75);
    ask(t, 3, HPS_LOOKUP_PATH_HOST); /* the host map has all keys: no gpu call */
    assert_int_equal(t->n_asked, 0);
}

static void test_lookup_when_auto_then_large_parts_and_parts_without_host_map_go_gpu_first(
    void **state)
{
    struct gpu_test *t = *state;
    struct hps_space *const disk = t->fx.version.tiers[1];
    struct hps_space *const host = t->fx.version.tiers[0];

    t->fx.tables[0].row_bytes = HPS_LOOKUP_GPU_FIRST_BYTES / 8; /* the rows are never accessed */
    set_range(t, 0, 0, 8);
    set_range(t, 1, 0, 8);
    plan(t, 2, HPS_LOOKUP_PATH_AUTO);
    assert_true(ask_gpu(t));
    assert_int_equal(t->lookup.gpu.ask.n_parts, 1);
    assert_ptr_equal(t->lookup.gpu.parts[0], &t->parts[0]);
    wait_answered(t);
    hps_lookup_abandon(&t->lookup);
    set_range(t, 0, 0, 7);
    plan(t, 2, HPS_LOOKUP_PATH_AUTO);
    assert_false(ask_gpu(t));
    t->fx.tables[0].row_bytes = 16;

    t->fx.version.tiers[0] = disk;
    t->fx.version.n_tiers = 1;
    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_AUTO; path <= HPS_LOOKUP_PATH_HOST; path++) {
        plan(t, 2, path);
        assert_true(ask_gpu(t));
        assert_int_equal(t->lookup.gpu.ask.n_parts, 2);
        wait_answered(t);
        hps_lookup_abandon(&t->lookup);
    }
    t->fx.version.tiers[0] = host;
    t->fx.version.n_tiers = 2;
}

static uint64_t draw(uint64_t *seed)
{
    *seed += HPS_HASH_GOLDEN;
    return hps_mix64(*seed);
}

/* Random keys with duplicates, in a random subset of the tables. */
static void set_random(struct gpu_test *t, uint64_t *seed)
{
    for (uint32_t p = 0; p < FIXTURE_TABLES; p++) {
        hps_key keys[KEYS_MAX];
        uint32_t n =
            draw(seed) % 4 == 0 ? (uint32_t)(draw(seed) % 9) : (uint32_t)(draw(seed) % KEYS_MAX);
        uint64_t span = draw(seed) % SPACE_OF_KEYS + 1;
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = (hps_key)(draw(seed) % span);
        }
        set_keys(t, p, keys, n);
    }
}

static void test_lookup_when_random_then_rows_and_counts_are_right(void **state)
{
    static const enum hps_dtype types[] = {0, HPS_DTYPE_FP32, HPS_DTYPE_FP16, HPS_DTYPE_BF16};
    struct gpu_test *t = *state;
    uint64_t seed = 5;
    unsigned n_hit = 0;
    unsigned n_asked = 0;

    for (uint32_t round = 0; round < 100; round++) {
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t table = (uint32_t)(draw(&seed) % FIXTURE_TABLES);
            hps_key key = (hps_key)(draw(&seed) % (SPACE_OF_KEYS / 2)) * 2;
            enum source source = (enum source)(draw(&seed) % 3);
            put(t, DISK, table, key);
            hps_absent_remove(t->fx.version.absent, table, &key, 1);
            if (source != DISK) {
                put(t, source, table, key);
            }
        }
        set_random(t, &seed);
        t->lookup.output = types[draw(&seed) % 4];
        enum hps_lookup_path path = (enum hps_lookup_path)(draw(&seed) % 3);
        expect(t, path);
        ask(t, FIXTURE_TABLES, path);
        check(t);
        check_counts(t);
        for (uint32_t p = 0; p < FIXTURE_TABLES; p++) {
            const struct hps_tier_report *report = &t->parts[p].walk.reports[HPS_TIER_GPU];
            n_hit += t->parts[p].n_keys == 0 ? 0 : report->n_found;
            n_asked += t->parts[p].n_keys == 0 ? 0 : report->n_asked;
            for (uint32_t i = 0; i < t->parts[p].n_keys; i++) {
                hps_key key;
                memcpy(&key, t->parts[p].keys + (size_t)i * 8, sizeof(key));
                bool known = t->in[DISK][p][key];
                bool unknown =
                    t->parts[p].key_status != NULL && t->parts[p].key_status[i] == HPS_KEY_UNKNOWN;
                assert_true(known != unknown);
            }
        }
    }
    assert_count(t, HIT, n_hit);
    assert_count(t, MISS, n_asked - n_hit);
    assert_true(n_hit > 1000 && n_asked - n_hit > 1000);
}

static void test_lookup_when_a_table_has_no_cache_then_the_gpu_is_not_called(void **state)
{
    static const bool some[FIXTURE_TABLES] = {true, false, true};
    struct gpu_test *t = *state;

    close_test(t);
    memset(t, 0, sizeof(*t));
    open_test(t, some);
    put_range(t, HOST, 1, 0, 50);
    put_range(t, DISK, 1, 0, 100);
    place(t, 0);
    set_range(t, 0, 0, 100);
    set_range(t, 1, 0, 100);
    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_AUTO; path <= HPS_LOOKUP_PATH_HOST; path++) {
        ask(t, 2, path);
        check(t);
        assert_int_equal(t->parts[1].walk.reports[HPS_TIER_GPU].n_asked, 0);
        assert_int_equal(t->parts[1].walk.reports[HPS_TIER_GPU].n_inserted, 0);
    }
}

/* Keys that the gpu had skip deduplication. Only its misses are deduplicated. */
static void test_lookup_when_gpu_first_then_only_its_misses_are_deduped(void **state)
{
    struct gpu_test *t = *state;
    hps_key keys[KEYS_MAX];

    put_range(t, GPU, 0, 0, 50);
    put_range(t, HOST, 0, 50, 60);
    for (uint32_t i = 0; i < 200; i++) {
        keys[i] = i % 50;
    }
    set_keys(t, 0, keys, 200);
    ask_one(t, HPS_LOOKUP_PATH_GPU);
    assert_found(t, 0, 200, 0, 0, 0, 0);
    assert_true(t->done);
    assert_null(t->lookup.set);
    assert_null(t->parts[0].walk.batch.keys);
    assert_null(t->parts[0].duplicates);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_asked, 200);

    for (uint32_t i = 0; i < 100; i++) { /* ten keys, ten times each, between the hits */
        keys[i * 2 + 1] = 50 + i % 10;
    }
    set_keys(t, 0, keys, 200);
    ask_one(t, HPS_LOOKUP_PATH_GPU);
    assert_found(t, 0, 100, 10, 0, 0, 0);
    assert_int_equal(t->parts[0].n_unique, 110);
    assert_int_equal(t->lookup.set_size, 256); /* sized for 100 keys */
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_HOST].n_asked, 10);
}

/* ---- tests: a gpu that does not reply -------------------------------------------------------- */

static void test_lookup_when_the_slab_is_full_then_the_gpu_is_skipped(void **state)
{
    struct gpu_test *t = *state;
    place(t, 0);
    struct hps_block *all = hps_block_new_slab(t->gpu.blocks, GPU_FIXTURE_SLAB);
    assert_true(all->in_slab);
    set_range(t, 0, 0, 110);
    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_GPU; path <= HPS_LOOKUP_PATH_HOST; path++) {
        ask_one(t, path);
        assert_found(t, 0, 0, 50, 50, 10, 0);
        assert_int_equal(t->n_asked, 0);
        /* The host map has all keys, so the lookup does not call the gpu a second time. */
        assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].status,
                         path == HPS_LOOKUP_PATH_GPU ? HPS_INVALID : HPS_OK);
        assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_asked, 0);
    }
    hps_block_unref(all);
}

/* A lookup uses no slab memory if the device does not write its reply, or if the slab is full. */
static void test_lookup_when_the_gpu_does_not_write_the_reply_then_it_is_not_in_the_slab(
    void **state)
{
    struct gpu_test *t = *state;

    place(t, 0);
    set_range(t, 0, 0, 110);
    plan(t, 1, HPS_LOOKUP_PATH_GPU);
    assert_true(t->lookup.block->in_slab);
    assert_int_equal(hps_lookup_scratch_bytes(&t->lookup), 0);
    plan(t, 1, HPS_LOOKUP_PATH_HOST);
    assert_false(t->lookup.block->in_slab);
    assert_int_equal(hps_lookup_scratch_bytes(&t->lookup), (110 * 16 + 63) / 64 * 64);

    struct hps_block *all = hps_block_new_slab(t->gpu.blocks, GPU_FIXTURE_SLAB);
    plan(t, 1, HPS_LOOKUP_PATH_HOST);
    size_t bytes = hps_block_pool_bytes(t->gpu.blocks);
    assert_false(ask_gpu(t));
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &t->done, &t->err), HPS_OK);
    assert_true(t->parts[0].waits_for_gpu);
    assert_false(ask_gpu(t));
    assert_int_equal(hps_block_pool_bytes(t->gpu.blocks), bytes);
    hps_lookup_abandon(&t->lookup);
    hps_block_unref(all);
}

/* The device fails at some moment: before, during or after the call. Every reply is complete. */
static void lose(struct gpu_test *t, enum hps_lookup_path path, uint64_t moment, uint32_t *n_lost)
{
    place(t, 0);
    set_range(t, 0, 0, 110);
    set_range(t, 1, 0, 5);
    set_range(t, 2, 0, 110);
    hps_device_sim_fail(t->gpu.tier->device, moment);
    for (uint32_t i = 0; i < 6; i++) {
        ask(t, 3, path);
        check(t);
        bool lost = t->parts[0].walk.reports[HPS_TIER_GPU].status == HPS_DATA_LOSS;
        *n_lost += lost ? 1 : 0;
        assert_true(t->found[0][ABSENT] == 10 && t->found[0][DEFAULTED] == 0);
        assert_int_equal(lost && path == HPS_LOOKUP_PATH_GPU, t->lookup.block != t->first_block);
    }
}

static void test_lookup_when_the_device_is_lost_then_every_reply_is_right(void **state)
{
    static const bool all[FIXTURE_TABLES] = {true, true, true};
    struct gpu_test *t = *state;
    uint32_t n_lost[3] = {0};

    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_GPU; path <= HPS_LOOKUP_PATH_HOST; path++) {
        for (uint64_t moment = 0; moment < 24; moment += 3) {
            close_test(t);
            memset(t, 0, sizeof(*t));
            open_test(t, all);
            lose(t, path, moment, &n_lost[path]);
        }
    }
    assert_true(n_lost[HPS_LOOKUP_PATH_GPU] > 0);
    assert_true(n_lost[HPS_LOOKUP_PATH_HOST] > 0);
}

/* Wait for two iterations of the tier's thread: the first one submits the lookup. */
static void wait_submitted(const struct gpu_test *t)
{
    struct hps_embed_cache_usage usage;

    hps_gpu_tier_sync(t->gpu.tier);
    hps_gpu_tier_sync(t->gpu.tier);
    hps_gpu_tier_usage(t->gpu.tier, &usage);
    assert_true(usage.n_batches > 0);
}

static void test_lookup_when_the_device_hangs_then_its_block_is_never_used_again(void **state)
{
    struct gpu_test *t = *state;

    place(t, 0);
    set_range(t, 0, 0, 110);
    ask(t, 1, HPS_LOOKUP_PATH_GPU);
    size_t bytes = hps_block_pool_bytes(t->gpu.blocks);
    hps_device_sim_hold(t->gpu.tier->device, true);
    plan(t, 1, HPS_LOOKUP_PATH_GPU);
    assert_true(ask_gpu(t));
    wait_submitted(t);
    hps_device_give_up(t->gpu.tier->device, "it hangs");
    wait_answered(t);
    const uint8_t *old = t->lookup.rows;
    go_on(t);
    check(t);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].status, HPS_DATA_LOSS);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_found, 0);
    assert_ptr_not_equal(t->lookup.rows, old);
    assert_int_equal(hps_block_pool_bytes(t->gpu.blocks), bytes);
    struct hps_block *next = hps_block_new(t->gpu.blocks, t->lookup.rows_bytes);
    assert_ptr_not_equal(next->data, old);
    hps_block_unref(next);
    hps_device_sim_hold(t->gpu.tier->device, false);
    ask_one(t, HPS_LOOKUP_PATH_GPU); /* exact, without the gpu */
    assert_int_equal(t->n_asked, 0);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_asked, 0);
}

/* Run the lookup until the held gpu has it. */
static void ask_held_gpu(struct gpu_test *t, enum hps_lookup_path path)
{
    hps_device_sim_hold(t->gpu.tier->device, true);
    plan(t, 1, path);
    if (path == HPS_LOOKUP_PATH_HOST) {
        assert_false(ask_gpu(t));
        assert_int_equal(hps_lookup_run_memory(&t->lookup, &t->done, &t->err), HPS_OK);
        assert_false(t->done);
    }
    assert_true(ask_gpu(t));
}

static void drop_block(struct gpu_test *t)
{
    hps_block_unref(t->lookup.block);
    t->lookup.block = NULL;
    assert_int_equal(hps_block_pool_bytes(t->gpu.blocks), 0);
}

static void test_lookup_when_abandoned_while_the_device_writes_then_no_memory_leaks(void **state)
{
    struct gpu_test *t = *state;

    place(t, 0);
    set_range(t, 0, 0, 110);
    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_GPU; path <= HPS_LOOKUP_PATH_HOST; path++) {
        ask_held_gpu(t, path);
        assert_true(hps_gpu_space_caches(t->gpu.space, 0));
        hps_device_sim_hold(t->gpu.tier->device, false);
        wait_answered(t);
        hps_lookup_abandon(&t->lookup);
        hps_gpu_tier_drain(t->gpu.tier);
        drop_block(t);
    }
}

/* A lookup leaves the gpu at its deadline. Later writes of the device reach no reply. */
static void test_lookup_when_it_leaves_the_gpu_then_it_completes_without(void **state)
{
    struct gpu_test *t = *state;

    place(t, 0);
    set_range(t, 0, 0, 110);
    for (enum hps_lookup_path path = HPS_LOOKUP_PATH_GPU; path <= HPS_LOOKUP_PATH_HOST; path++) {
        t->lookup.miss_policy = HPS_MISS_MEMORY_ONLY;
        ask_held_gpu(t, path);
        assert_true(t->lookup.gpu_deadline_us > 0);
        hps_lookup_leave_gpu(&t->lookup);
        if (path == HPS_LOOKUP_PATH_GPU) {
            assert_int_equal(hps_lookup_run_memory(&t->lookup, &t->done, &t->err), HPS_OK);
            assert_ptr_not_equal(t->lookup.block, t->first_block);
        } else {
            assert_int_equal(hps_lookup_run_gpu(&t->lookup, &t->done, &t->err), HPS_OK);
        }
        assert_true(t->done);
        for (uint32_t i = 0; i < 2; i++) { /* before and after the device has finished */
            check_part(t, 0);
            assert_found(t, 0, 0, 50, 0, 0, 60);
            hps_device_sim_hold(t->gpu.tier->device, false);
            wait_answered(t);
            hps_gpu_tier_drain(t->gpu.tier);
        }
        assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].status, HPS_DEADLINE);
        assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_unanswered,
                         t->parts[0].walk.reports[HPS_TIER_GPU].n_asked);
        drop_block(t);
    }
    t->lookup.miss_policy = HPS_MISS_EXACT;
    plan(t, 1, HPS_LOOKUP_PATH_GPU);
    assert_true(ask_gpu(t));
    assert_int_equal(t->lookup.gpu_deadline_us, 0);
    wait_answered(t);
    go_on(t);
}

/* ---- tests: the policy ----------------------------------------------------------------------- */

/* The first n_gpu keys are on the gpu, the next n_host in the host map, the next n_disk only on
 * disk. */
static void place_rates(struct gpu_test *t, uint32_t n_gpu, uint32_t n_host, uint32_t n_disk)
{
    put_range(t, GPU, 0, 0, n_gpu);
    put_range(t, HOST, 0, n_gpu, n_gpu + n_host);
    put_range(t, DISK, 0, 0, n_gpu + n_host + n_disk);
    set_range(t, 0, 0, n_gpu + n_host + n_disk);
}

static void test_policy_when_the_rate_is_reached_then_misses_are_inserted_asynchronously(
    void **state)
{
    struct gpu_test *t = *state;

    t->fx.version.miss_policy = HPS_MISS_THRESHOLD;
    t->fx.version.cache_tier = HPS_TIER_GPU;
    t->fx.version.hit_rate_threshold = 0.9;
    place_rates(t, 60, 30, 10);
    ask_one(t, HPS_LOOKUP_PATH_HOST);
    assert_found(t, 0, 60, 30, 0, 0, 10);
    assert_int_equal(hps_insertion_rows(t->insertion), 10);
    ask_with(t, HPS_MISS_MODEL, HPS_LOOKUP_PATH_GPU);
    assert_found(t, 0, 60, 30, 0, 0, 10);
    assert_int_equal(hps_insertion_rows(t->insertion), 10); /* the same keys */
    sem_post(&t->go_on);
    wait_inserted(t);
    ask_with(t, HPS_MISS_MODEL, HPS_LOOKUP_PATH_GPU);
    assert_found(t, 0, 60, 30, 10, 0, 0);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_found,
                     100); /* all rows are on the device now */
}

/* Keys that the gpu had are not deduplicated, but the hit rate still counts unique keys. */
static void test_policy_when_keys_are_sent_often_then_the_rate_counts_unique_keys(void **state)
{
    enum { N_DISK = 10 };
    static const struct {
        uint32_t n_gpu, times;
        bool asynchronous;
    } cases[] = {{1, 200, false}, {89, 3, false}, {90, 3, true}, {89, 1, false}, {90, 1, true}};
    struct gpu_test *t = *state;
    hps_key keys[KEYS_MAX];

    t->fx.version.cache_tier = HPS_TIER_GPU;
    t->fx.version.hit_rate_threshold = 0.9;
    put_range(t, GPU, 0, 0, 90);
    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        uint32_t n = 0;
        for (hps_key key = 0; key < N_DISK; key++) { /* new keys each time, each sent twice */
            keys[n++] = 100 + N_DISK * c + key;
            keys[n++] = 100 + N_DISK * c + key;
            put(t, DISK, 0, 100 + N_DISK * c + key);
        }
        for (uint32_t i = 0; i < cases[c].n_gpu * cases[c].times; i++) {
            keys[n++] = i % cases[c].n_gpu;
        }
        set_keys(t, 0, keys, n);
        ask_with(t, HPS_MISS_THRESHOLD, HPS_LOOKUP_PATH_GPU);
        assert_int_equal(t->found[0][DEFAULTED], cases[c].asynchronous ? N_DISK : 0);
        assert_int_equal(t->found[0][DISK], cases[c].asynchronous ? 0 : N_DISK);
    }
}

static void test_policy_when_the_rate_is_missed_or_the_device_lost_then_exact(void **state)
{
    struct gpu_test *t = *state;

    t->fx.version.miss_policy = HPS_MISS_THRESHOLD;
    t->fx.version.cache_tier = HPS_TIER_GPU;
    t->fx.version.hit_rate_threshold = 0.9;
    place_rates(t, 60, 29, 11);
    ask_one(t, HPS_LOOKUP_PATH_HOST);
    assert_found(t, 0, 60, 29, 11, 0, 0);
    assert_int_equal(hps_insertion_rows(t->insertion), 0);

    put_range(t, DISK, 0, 100, 105); /* five misses more: 100 of 105 would suffice */
    set_range(t, 0, 0, 105);
    hps_device_give_up(t->gpu.tier->device, "it is gone");
    uint64_t give_up_us = hps_clock_us() + GIVE_UP_US;
    while (!hps_gpu_tier_lost(t->gpu.tier)) {
        assert_true(hps_clock_us() < give_up_us);
        set_range(t, 0, 0, 100);
        ask_with(t, HPS_MISS_MODEL, HPS_LOOKUP_PATH_GPU);
    }
    set_range(t, 0, 0, 105);
    ask_with(t, HPS_MISS_MODEL, HPS_LOOKUP_PATH_GPU);
    assert_int_equal(t->found[0][DEFAULTED], 0);
    assert_int_equal(t->found[0][GPU], 0);
    assert_int_equal(hps_insertion_rows(t->insertion), 0);
}

static void test_policy_when_the_gpu_refuses_the_lookup_then_exact(void **state)
{
    struct gpu_test *t = *state;

    t->fx.version.cache_tier = HPS_TIER_GPU;
    t->fx.version.hit_rate_threshold = 0.5;
    place_rates(t, 0, 90, 10);
    struct hps_block *all = hps_block_new_slab(t->gpu.blocks, GPU_FIXTURE_SLAB);
    t->lookup.miss_policy = HPS_MISS_THRESHOLD;
    set_range(t, 0, 0, 95);
    ask_one(t, HPS_LOOKUP_PATH_GPU);
    assert_found(t, 0, 0, 90, 5, 0, 0);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_inserted,
                     0); /* no row is inserted either */
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].status, HPS_INVALID);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_faults, 0); /* not failed */
    set_range(t, 0, 0, 100);
    ask_one(t, HPS_LOOKUP_PATH_HOST); /* five rows are in the host map now */
    assert_found(t, 0, 0, 90, 10, 0, 0);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_ROCKSDB].n_found, 5);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_asked, 0);
    assert_int_equal(hps_insertion_rows(t->insertion), 0);
    hps_block_unref(all);
}

/* Leave the gpu above the disk only, with capacity for few rows of each table. */
static void shrink_to_gpu(struct gpu_test *t, uint64_t n_rows_cached)
{
    struct hps_gpu_share shares[FIXTURE_TABLES];

    memcpy(t->all, t->fx.version.tiers, sizeof(t->all));
    t->fx.version.tiers[0] = t->all[1];
    t->fx.version.n_tiers = 1;
    for (uint32_t i = 0; i < FIXTURE_TABLES; i++) {
        shares[i] =
            (struct hps_gpu_share){.n_rows = GPU_FIXTURE_ROWS, .n_rows_cached = n_rows_cached};
    }
    hps_gpu_space_close(t->gpu.space);
    const struct hps_gpu_space_options options = {
        .model = "m", .tables = t->fx.tables, .shares = shares, .n_tables = FIXTURE_TABLES};
    assert_int_equal(hps_gpu_space_open(t->gpu.tier, &options, &t->gpu.space, &t->err), HPS_OK);
    hps_gpu_space_active(t->gpu.space, true);
    t->fx.version.gpu = t->gpu.space;
}

/* A key is looked up once, and all other rows of its set often. After a reply without its row,
 * the next lookup finds it. */
static void test_insertion_when_other_rows_are_used_more_then_the_row_is_inserted(void **state)
{
    struct gpu_test *t = *state;
    struct hps_embed_range_usage usage;

    put_range(t, DISK, 0, 0, 100);
    shrink_to_gpu(t, 8);
    hps_gpu_space_usage(t->gpu.space, 0, &usage);
    t->fx.version.cache_tier = HPS_TIER_GPU;
    t->fx.version.hit_rate_threshold = 0.0;
    sem_post(&t->go_on);
    for (uint32_t i = 0; i < 10; i++) {
        set_range(t, 0, 0, 3 * (hps_key)usage.n_slots); /* so that every set is full */
        ask_with(t, HPS_MISS_EXACT, HPS_LOOKUP_PATH_GPU);
    }
    set_range(t, 0, 99, 100);
    for (uint32_t i = 0; i < 2; i++) {
        ask_with(t, HPS_MISS_THRESHOLD, HPS_LOOKUP_PATH_GPU);
        assert_int_equal(t->found[0][DEFAULTED], i == 0);
        assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_found, i == 1);
        wait_inserted(t);
    }
}

/* Some rows are always used less than other rows, and the capacity is too small for all. After a
 * default row, the next reply has the real row. */
static void test_policy_when_a_row_is_used_least_then_it_misses_at_most_once_in_sequence(
    void **state)
{
    enum { N_MORE = 3, N_ROUNDS = 80 };
    struct gpu_test *t = *state;
    struct hps_embed_range_usage usage;
    uint32_t n_missed[N_MORE] = {0}; /* times in sequence */

    put_range(t, DISK, 0, 0, 100);
    shrink_to_gpu(t, 8);
    hps_gpu_space_usage(t->gpu.space, 0, &usage);
    hps_key n_slots = (hps_key)usage.n_slots;
    assert_in_range(n_slots, 8, 100 - N_MORE);
    t->fx.version.cache_tier = HPS_TIER_GPU;
    t->fx.version.hit_rate_threshold = 0.0;
    sem_post(&t->go_on);
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        bool all_of_them = round > 20 && round % 4 == 0;
        set_range(t, 0, 0, n_slots + (all_of_them ? N_MORE : 0));
        ask_with(t, HPS_MISS_THRESHOLD, HPS_LOOKUP_PATH_GPU);
        for (uint32_t i = 0; i < N_MORE && all_of_them; i++) {
            const uint8_t *status = t->parts[0].key_status;
            bool found = status == NULL || status[n_slots + i] == HPS_KEY_FOUND;
            n_missed[i] = found ? 0 : n_missed[i] + 1;
            assert_true(n_missed[i] <= 1);
        }
        wait_inserted(t);
    }
}

/* The device loses the row before each lookup, even if lookups are rare. After some misses, a
 * lookup waits for the row. */
static void test_policy_when_a_lookup_waited_for_a_row_then_the_next_ones_do_not(void **state)
{
    enum { N_ROUNDS = 3 * (HPS_FETCHED_OFTEN + 1) };
    struct gpu_test *t = *state;
    const hps_key key = 0;

    put_range(t, DISK, 0, 0, 10);
    shrink_to_gpu(t, GPU_FIXTURE_ROWS);
    t->fx.version.cache_tier = HPS_TIER_GPU;
    t->fx.version.hit_rate_threshold = 0.0;
    sem_post(&t->go_on);
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        bool waits = round % (HPS_FETCHED_OFTEN + 1) == HPS_FETCHED_OFTEN;
        set_range(t, 0, key, key + 1);
        ask_with(t, HPS_MISS_THRESHOLD, HPS_LOOKUP_PATH_GPU);
        assert_int_equal(t->found[0][DEFAULTED], waits ? 0 : 1);
        assert_int_equal(t->found[0][DISK], waits ? 1 : 0);
        wait_inserted(t);
        hps_gpu_update(t->gpu.space, 0, &key, NULL, 1);
    }
}

static void test_policy_when_the_gpu_has_no_capacity_for_rows_then_exact_until_it_has(void **state)
{
    struct gpu_test *t = *state;
    uint64_t *queue_bytes_max = &t->gpu.tier->options.queue_bytes_max;
    uint64_t queue_bytes = *queue_bytes_max;

    put_range(t, DISK, 0, 0, 30);
    shrink_to_gpu(t, GPU_FIXTURE_ROWS);
    t->fx.version.cache_tier = HPS_TIER_GPU;
    t->fx.version.hit_rate_threshold = 0.0;
    t->lookup.miss_policy = HPS_MISS_THRESHOLD;
    *queue_bytes_max = 1;
    sem_post(&t->go_on);
    set_range(t, 0, 0, 10);
    ask_one(t, HPS_LOOKUP_PATH_GPU);
    assert_int_equal(t->found[0][DEFAULTED], 10);
    wait_inserted(t);
    assert_true(t->fx.version.cache_full);
    for (uint32_t i = 0; i < 2; i++) { /* otherwise these rows would stay missing */
        ask_with(t, HPS_MISS_THRESHOLD, HPS_LOOKUP_PATH_GPU);
        assert_found(t, 0, 0, 0, 10, 0, 0);
    }
    *queue_bytes_max = queue_bytes;
    ask(t, 1, HPS_LOOKUP_PATH_GPU);
    assert_false(t->fx.version.cache_full);
    set_range(t, 0, 10, 30);
    ask_one(t, HPS_LOOKUP_PATH_GPU);
    assert_int_equal(t->found[0][DEFAULTED], 20);
    wait_inserted(t);
}

/* A reply may contain a row that a shared tier has from a later position, but the device must
 * not. Asynchronous insertion gives it the row of the tier below. */
static void test_insertion_when_a_shared_tier_is_ahead_then_the_device_gets_the_row_below(
    void **state)
{
    struct gpu_test *t = *state;
    const struct hps_table *table = &t->fx.tables[0];
    const hps_key key = 5;
    const struct hps_call call = {0};
    uint8_t ahead[FIXTURE_DIM_MAX * 4] = {1, 2, 3};

    put(t, DISK, 0, key);
    struct hps_store *redis = fixture_open_middle(&t->fx, true);
    struct hps_space *space = t->fx.version.tiers[1];
    assert_int_equal(redis->ops->put(space, &call, table, &key, ahead, 1), HPS_OK);
    hps_fake_later(redis, true);
    for (uint32_t i = 0; i < 3; i++) {
        set_range(t, 0, key, key + 1);
        ask(t, 1, HPS_LOOKUP_PATH_GPU);
        assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_found, 0);
        assert_memory_equal(t->parts[0].rows, ahead, table->row_bytes);
    }
    sem_post(&t->go_on);
    wait_inserted(t);
    set_range(t, 0, key, key + 1);
    ask(t, 1, HPS_LOOKUP_PATH_GPU);
    assert_int_equal(t->parts[0].walk.reports[HPS_TIER_GPU].n_found, 1);
    assert_int_equal(source_of(t, &t->parts[0], 0, key), DISK);
    hps_insertion_stop(t->insertion); /* no insertion into the tier that closes */
    fixture_close_middle(&t->fx, redis);
}

int main(void)
{
#define GPU_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_lookup_when_gpu_first_then_other_tiers_get_its_misses),
        GPU_TEST(test_lookup_when_host_first_then_the_gpu_gets_its_misses),
        GPU_TEST(test_lookup_when_auto_then_large_parts_and_parts_without_host_map_go_gpu_first),
        GPU_TEST(test_lookup_when_random_then_rows_and_counts_are_right),
        GPU_TEST(test_lookup_when_gpu_first_then_only_its_misses_are_deduped),
        GPU_TEST(test_lookup_when_a_table_has_no_cache_then_the_gpu_is_not_called),
        GPU_TEST(test_lookup_when_the_slab_is_full_then_the_gpu_is_skipped),
        GPU_TEST(test_lookup_when_the_gpu_does_not_write_the_reply_then_it_is_not_in_the_slab),
        GPU_TEST(test_lookup_when_the_device_is_lost_then_every_reply_is_right),
        GPU_TEST(test_lookup_when_the_device_hangs_then_its_block_is_never_used_again),
        GPU_TEST(test_lookup_when_abandoned_while_the_device_writes_then_no_memory_leaks),
        GPU_TEST(test_lookup_when_it_leaves_the_gpu_then_it_completes_without),
        GPU_TEST(test_policy_when_the_rate_is_reached_then_misses_are_inserted_asynchronously),
        GPU_TEST(test_policy_when_keys_are_sent_often_then_the_rate_counts_unique_keys),
        GPU_TEST(test_policy_when_the_rate_is_missed_or_the_device_lost_then_exact),
        GPU_TEST(test_policy_when_the_gpu_refuses_the_lookup_then_exact),
        GPU_TEST(test_insertion_when_other_rows_are_used_more_then_the_row_is_inserted),
        GPU_TEST(test_policy_when_a_row_is_used_least_then_it_misses_at_most_once_in_sequence),
        GPU_TEST(test_policy_when_a_lookup_waited_for_a_row_then_the_next_ones_do_not),
        GPU_TEST(test_policy_when_the_gpu_has_no_capacity_for_rows_then_exact_until_it_has),
        GPU_TEST(test_insertion_when_a_shared_tier_is_ahead_then_the_device_gets_the_row_below),
    };

    return cmocka_run_group_tests_name("lookup_gpu", tests, NULL, NULL);
}
