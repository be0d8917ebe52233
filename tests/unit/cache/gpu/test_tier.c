/* SPDX-License-Identifier: Apache-2.0
 *
 * The gpu tier on the simulated device: batched lookups, changes between lookups, caches that
 * exceed the memory, and lost devices.
 */
#include "cache/device/sim/sim.h"
#include "cache/gpu/tier.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/embed/internal.h"
#include "cache/gpu/internal.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/pause.h"

enum {
    N_TABLES = 3,
    ROWS = 4000,
    SLAB = 16 << 20,
    GIVE_UP_US = 60 * 1000 * 1000,
    SLOW_NOT_LOST_US = GIVE_UP_US
};

static const uint32_t row_bytes_of[N_TABLES] = {64, 12, 512};

static struct rig {
    struct hps_block_pool *blocks;
    struct hps_gpu_tier *tier;
    struct hps_table tables[N_TABLES];
    struct hps_gpu_share shares[N_TABLES];
    struct hps_gpu_space *space;
} rig;

/* Options of the next insertion, and the report of the last one. */
static struct hps_gpu_insertion how;
static struct hps_insert_report report;

static const struct hps_gpu_space_options space_options = {
    .model = "m", .number = 3, .tables = rig.tables, .shares = rig.shares, .n_tables = N_TABLES};

static struct hps_gpu_tier *open_device(int index, uint64_t arena_bytes, uint32_t batch_keys_max,
                                        uint64_t queue_bytes_max, uint64_t stall_us_max)
{
    struct hps_gpu_tier *tier = NULL;
    const struct hps_sim_driver sim =
        hps_sim_driver((struct hps_device_sim_config){.seed = 7, .delay_us_max = 20});
    const struct hps_gpu_tier_options options = {.driver = &sim.driver,
                                                 .index = index,
                                                 .cache = {.arena_bytes = arena_bytes,
                                                           .batch_keys_max = batch_keys_max,
                                                           .gather_bytes = 4 << 20,
                                                           .stage_bytes = 1 << 20,
                                                           .sample_rate = 1},
                                                 .blocks = rig.blocks,
                                                 .queue_bytes_max = queue_bytes_max,
                                                 .stall_us_max = stall_us_max};
    struct hps_error err;

    if (hps_gpu_tier_open(&options, &tier, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return tier;
}

/* The simulated device uses CPUs that other processes share, so it may stall for long. */
static void test_open_when_the_device_is_simulated_then_the_stall_limit_is_a_minute(void **state)
{
    (void)state;
    rig.tier = open_device(0, 16 << 20, 0, 0, 0);
    assert_int_equal(rig.tier->options.stall_us_max, 60 * 1000 * 1000);
}

static void open_tier(uint64_t arena_bytes, uint32_t batch_keys_max, uint64_t queue_bytes_max)
{
    rig.tier = open_device(0, arena_bytes, batch_keys_max, queue_bytes_max, SLOW_NOT_LOST_US);
}

static struct hps_gpu_space *open_space(void)
{
    struct hps_gpu_space *space = NULL;
    struct hps_error err;

    assert_int_equal(hps_gpu_space_open(rig.tier, &space_options, &space, &err), HPS_OK);
    return space;
}

static int setup(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof(rig));
    how = (struct hps_gpu_insertion){0};
    rig.blocks = hps_block_pool_new(0);
    assert_int_equal(hps_block_pool_slab_add(rig.blocks, SLAB), HPS_OK);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        rig.tables[i] =
            (struct hps_table){.id = i, .name = "t", .row_bytes = row_bytes_of[i], .n_rows = ROWS};
        rig.shares[i] = (struct hps_gpu_share){.n_rows = ROWS, .n_rows_cached = ROWS};
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (rig.space != NULL) {
        hps_gpu_space_close(rig.space);
    }
    hps_gpu_tier_close(rig.tier);
    hps_block_pool_free(rig.blocks);
    return 0;
}

static void open_with(uint64_t arena_bytes, uint32_t batch_keys_max, uint64_t queue_bytes_max)
{
    open_tier(arena_bytes, batch_keys_max, queue_bytes_max);
    rig.space = open_space();
    hps_gpu_space_active(rig.space, true);
}

static void open_all(void)
{
    open_with(16 << 20, 0, 0);
}

/* Size of all caches of a space. */
static uint64_t all_bytes(void)
{
    return hps_gpu_share_bytes(rig.tables, rig.shares, N_TABLES);
}

static void make_row(uint8_t *row, uint32_t table, hps_key key, uint8_t version)
{
    for (uint32_t i = 0; i < row_bytes_of[table]; i++) {
        row[i] = (uint8_t)(hps_mix64(key + table) >> (i % 7 * 8)) ^ (uint8_t)(version + i / 7);
    }
}

/* Rows of keys [first, first + n) in this version. */
static uint8_t *make_rows(uint32_t table, hps_key first, uint32_t n, uint8_t version)
{
    uint8_t *rows = hps_alloc((size_t)n * row_bytes_of[table]);

    assert_non_null(rows);
    for (uint32_t i = 0; i < n; i++) {
        make_row(rows + (size_t)i * row_bytes_of[table], table, first + i, version);
    }
    return rows;
}

static void insert(struct hps_gpu_space *space, uint32_t table, hps_key first, uint32_t n,
                   uint8_t version)
{
    uint8_t *rows = make_rows(table, first, n, version);
    hps_key *keys = hps_alloc(n * sizeof(*keys));
    uint32_t *slots = hps_alloc(n * sizeof(*slots));
    struct hps_gpu_insertion insertion = how;

    for (uint32_t i = 0; i < n; i++) { /* descending, so that slots differ from indexes */
        keys[i] = first + n - 1 - i;
        slots[i] = n - 1 - i;
    }
    insertion.table_id = table;
    insertion.n = n;
    insertion.keys = keys;
    insertion.slots = slots;
    insertion.rows = rows;
    hps_gpu_insert(space, &insertion, &report);
    hps_free(rows);
    hps_free(keys);
    hps_free(slots);
}

enum { ERASED = -1 };

static void update(uint32_t table, hps_key first, uint32_t n, int version)
{
    uint8_t *rows = version == ERASED ? NULL : make_rows(table, first, n, (uint8_t)version);
    hps_key *keys = hps_alloc(n * sizeof(*keys));

    for (uint32_t i = 0; i < n; i++) {
        keys[i] = first + i;
    }
    hps_gpu_update(rig.space, table, keys, rows, n);
    hps_free(rows);
    hps_free(keys);
}

/* ---- running lookups ------------------------------------------------------------------------- */

struct question {
    struct hps_gpu_lookup lookup;
    struct hps_gpu_part parts[N_TABLES];
    atomic_bool done;
};

static void on_done(struct hps_gpu_lookup *lookup)
{
    atomic_store(&((struct question *)lookup)->done, true);
}

/* n keys from `first` of each table. */
static void ask(struct question *question, struct hps_gpu_space *space, hps_key first, uint32_t n)
{
    size_t size = 0;

    memset(question, 0, sizeof(*question));
    for (uint32_t t = 0; t < N_TABLES; t++) {
        hps_key *keys = hps_alloc(n * sizeof(*keys) + 1);
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = first + i;
        }
        question->parts[t] =
            (struct hps_gpu_part){.table_id = t,
                                  .n = n,
                                  .keys = (const uint8_t *)keys,
                                  .offset = size,
                                  .hits = hps_alloc((n + 31) / 32 * sizeof(uint32_t) + 1)};
        size += ((size_t)n * row_bytes_of[t] + 63) & ~(size_t)63;
    }
    question->lookup = (struct hps_gpu_lookup){.space = space,
                                               .block = hps_block_new_slab(rig.blocks, size),
                                               .parts = question->parts,
                                               .n_parts = N_TABLES,
                                               .done = on_done};
}

static void wait_done(struct question *question)
{
    AWAIT(atomic_load(&question->done));
}

static void ask_now(struct question *question, struct hps_gpu_space *space, hps_key first,
                    uint32_t n)
{
    ask(question, space, first, n);
    assert_int_equal(hps_gpu_lookup(&question->lookup), HPS_OK);
}

static void forget(struct question *question)
{
    for (uint32_t t = 0; t < N_TABLES; t++) {
        hps_free((void *)(uintptr_t)question->parts[t].keys);
        hps_free(question->parts[t].hits);
    }
    hps_block_unref(question->lookup.block);
}

/* Expect that lookups are refused because the tier is lost. */
static void expect_unavailable(void)
{
    struct question question;

    ask(&question, rig.space, 0, 10);
    assert_int_equal(hps_gpu_lookup(&question.lookup), HPS_UNAVAILABLE);
    forget(&question);
}

/* Returns how many keys of a part were found. Each must have the row of `version`. */
static uint32_t check_part(const struct question *question, uint32_t t, uint8_t version)
{
    const struct hps_gpu_part *part = &question->parts[t];
    uint32_t n_found = 0;

    for (uint32_t i = 0; i < part->n; i++) {
        uint8_t row[512];
        hps_key key;
        if ((part->hits[i / 32] >> (i % 32) & 1) == 0) {
            continue;
        }
        memcpy(&key, part->keys + (size_t)i * sizeof(key), sizeof(key));
        make_row(row, t, key, version);
        assert_memory_equal(question->lookup.block->data + part->offset +
                                (size_t)i * row_bytes_of[t],
                            row, row_bytes_of[t]);
        n_found++;
    }
    return n_found;
}

/* Look up keys [first, first + n) in one table. Returns how many have the row of `version`. */
static uint32_t found(struct hps_gpu_space *space, uint32_t table, hps_key first, uint32_t n,
                      uint8_t version)
{
    struct question question;

    ask_now(&question, space, first, n);
    wait_done(&question);
    assert_int_equal(question.lookup.status, HPS_OK);
    uint32_t n_found = check_part(&question, table, version);
    forget(&question);
    return n_found;
}

/* Wait until n insertions are complete. */
static void await_changes(uint32_t table, uint64_t n)
{
    struct hps_embed_range_usage usage;

    do {
        brief_pause();
        hps_gpu_space_usage(rig.space, table, &usage);
    } while (usage.n_inserted + usage.n_refused < n);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_lookup_when_rows_were_inserted_then_only_they_are_found(void **state)
{
    (void)state;
    open_all();
    for (uint32_t t = 0; t < N_TABLES; t++) {
        assert_int_equal(found(rig.space, t, 0, 100, 0), 0);
        insert(rig.space, t, 0, 1000, 1);
        assert_int_equal(report.n_inserted, 1000);
    }
    for (uint32_t t = 0; t < N_TABLES; t++) {
        assert_true(found(rig.space, t, 0, 1000, 1) >= 970); /* 2 % find no place in their set */
        assert_int_equal(found(rig.space, t, 1000, 999, 1), 0);
        assert_int_equal(found(rig.space, t, 0, 0, 1), 0);
        struct hps_embed_range_usage usage;
        hps_gpu_tier_sync(rig.tier);
        hps_gpu_space_usage(rig.space, t, &usage);
        assert_true(usage.n_rows >= 970 && usage.n_rows <= 1000);
    }
}

static void note_waiting(void *ctx)
{
    uint32_t *n_waiting = ctx;

    for (struct gpu_change *change = rig.tier->changes.staging; change != NULL;
         change = change->next) {
        n_waiting[change->table_id]++;
    }
    n_waiting[N_TABLES] = rig.tier->head != NULL; /* lookups */
}

static void test_insert_when_a_large_cache_is_being_cleared_then_other_tables_do_not_wait(
    void **state)
{
    (void)state;
    uint32_t n_waiting[N_TABLES + 1] = {0};
    struct question question;

    open_tier(128 << 20, 0, 0);
    rig.shares[1] = (struct hps_gpu_share){.n_rows = 3000000, .n_rows_cached = 1500000};
    rig.space = open_space();
    hps_device_sim_hold(rig.tier->device, true);
    hps_gpu_space_active(rig.space, true);
    for (uint32_t t = 2; t-- > 0;) { /* table 1 first; the first chunk of its clear does not end */
        insert(rig.space, t, 0, 100, 1);
        assert_int_equal(report.n_inserted, 100);
    }
    ask_now(&question, rig.space, 0, 100);
    hps_gpu_tier_sync(rig.tier);
    hps_gpu_tier_sync(rig.tier); /* the thread has ended an iteration */
    gpu_tier_call(rig.tier, note_waiting, n_waiting);
    assert_int_equal(n_waiting[0], 0);
    assert_int_equal(n_waiting[1], 1);
    assert_int_equal(n_waiting[N_TABLES], 0);
    hps_device_sim_hold(rig.tier->device, false);
    hps_gpu_tier_drain(rig.tier);
    assert_true(atomic_load(&question.done));
    assert_int_equal(check_part(&question, 1, 1), 0);
    assert_true(check_part(&question, 0, 1) >= 97);
    forget(&question);
    await_changes(1, 100);
    assert_true(found(rig.space, 1, 0, 100, 1) >= 97);
    assert_true(found(rig.space, 0, 0, 100, 1) >= 97);
}

static void note_slack(void *ctx)
{
    *(int *)ctx = prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
}

static void test_thread_when_it_pauses_then_the_timer_has_no_slack(void **state)
{
    (void)state;
    int slack_ns = -1;

    open_all();
    gpu_tier_call(rig.tier, note_slack, &slack_ns);
    assert_int_equal(slack_ns, 1);
}

static void test_usage_when_rows_were_inserted_then_counted_per_table_and_device(void **state)
{
    (void)state;
    struct hps_embed_range_usage usages[N_TABLES];
    struct hps_embed_cache_usage device;
    uint64_t bytes = 0;
    rig.shares[1].n_rows_cached = 0;
    open_all();
    hps_gpu_space_usages(rig.space, usages);
    assert_true(usages[0].n_slots >= ROWS); /* known since the space was opened */
    insert(rig.space, 2, 0, 100, 1);
    assert_true(found(rig.space, 2, 0, 100, 1) >= 98);
    hps_gpu_tier_sync(rig.tier);
    hps_gpu_space_usages(rig.space, usages);
    for (uint32_t t = 0; t < N_TABLES; t++) {
        bytes += usages[t].bytes;
        assert_int_equal(usages[t].n_rows, t == 2 ? usages[t].n_inserted : 0);
        assert_int_equal(usages[t].n_slots == 0, t == 1);
    }
    assert_int_equal(bytes, all_bytes());
    hps_gpu_tier_usage(rig.tier, &device);
    assert_int_equal(device.arena_bytes - device.free_bytes, bytes);
}

/* The tier's thread updates the usage while the rows are still being copied. */
static void test_usage_when_read_during_an_insertion_then_its_rows_count_later(void **state)
{
    (void)state;
    struct hps_embed_range_usage usage;
    open_all();
    hps_device_sim_hold(rig.tier->device, true);
    insert(rig.space, 2, 0, 100, 1);
    hps_gpu_tier_sync(rig.tier); /* twice: the first iteration stages the rows */
    hps_gpu_tier_sync(rig.tier);
    hps_gpu_space_usage(rig.space, 2, &usage);
    assert_int_equal(usage.n_inserted, 0);
    hps_device_sim_hold(rig.tier->device, false);
    await_changes(2, 100);
}

static void test_lookup_when_larger_than_a_batch_then_split_and_complete(void **state)
{
    (void)state;
    open_with(16 << 20, 100, 0); /* chunks of 96 keys */
    insert(rig.space, 2, 0, 3001, 1);
    await_changes(2, 3001);
    uint32_t n_whole = found(rig.space, 2, 0, 3001, 1);
    assert_true(n_whole >= 2900);
    uint32_t n_single = 0;
    for (hps_key key = 0; key < 50; key++) {
        n_single += found(rig.space, 2, key, 1, 1);
    }
    assert_int_equal(found(rig.space, 2, 0, 50, 1), n_single);
}

static void test_update_when_it_has_returned_then_no_lookup_sees_the_old_row(void **state)
{
    (void)state;
    open_all();
    insert(rig.space, 0, 0, 64, 0);
    uint32_t n_there = found(rig.space, 0, 0, 64, 0);
    assert_true(n_there > 0);
    for (uint8_t version = 1; version < 50; version++) {
        update(0, 0, 64, version);
        assert_int_equal(found(rig.space, 0, 0, 64, version), n_there);
    }
    update(0, 0, 32, ERASED);
    assert_int_equal(found(rig.space, 0, 0, 32, 49), 0);
    update(0, 0, 32, 50); /* an update inserts no rows */
    assert_int_equal(found(rig.space, 0, 0, 32, 50), 0);
}

/* If an update has no memory, the tier drops the caches of all tables. Insertions then fill new
 * caches. */
static void test_update_when_there_is_no_memory_then_no_old_row_is_found(void **state)
{
    (void)state;
    hps_key key = 5;
    hps_fault_heap_install(0);
    open_all();
    for (int round = 0; round < 20; round++) {
        uint32_t n = 0;
        while (n == 0) { /* until the caches exist again */
            insert(rig.space, 0, 0, 100, 1);
            n = found(rig.space, 0, 0, 100, 1);
        }
        uint8_t *row = make_rows(0, key, 1, 2);
        hps_fault_heap_starve(true);
        hps_gpu_update(rig.space, 0, &key, row, 1);
        hps_gpu_update(rig.space, 0, &key, row, 1);
        hps_fault_heap_starve(false);
        hps_free(row);
        assert_int_equal(found(rig.space, 0, 0, 100, 2), 0);
    }
    teardown(NULL);
    memset(&rig, 0, sizeof(rig));
    hps_fault_heap_remove();
}

static bool odd_is_fresh(const void *ctx, uint32_t i)
{
    (void)ctx;
    return i % 2 == 1;
}

static const struct hps_insert_guard odd_guard = {.fresh = odd_is_fresh};

static void test_insert_when_stale_or_the_queue_is_full_then_left_out_and_counted(void **state)
{
    (void)state;
    open_with(16 << 20, 0, 64 << 10);
    how.guard = &odd_guard;
    insert(rig.space, 0, 0, 100, 1); /* keys 99, 98 …: even keys are fresh */
    how.guard = NULL;
    assert_int_equal(report.n_stale, 50);
    assert_int_equal(report.n_inserted, 50);
    for (hps_key key = 0; key < 100; key++) {
        uint32_t n = found(rig.space, 0, key, 1, 1);
        assert_true(n == 0 || key % 2 == 0);
    }
    hps_device_sim_hold(rig.tier->device, true); /* queued changes stay queued */
    for (int i = 0; i < 1000 && report.n_no_capacity == 0; i++) {
        insert(rig.space, 2, 0, 100, 1);
        assert_int_equal(report.n_inserted + report.n_no_capacity, 100);
    }
    assert_int_equal(report.n_no_capacity, 100);
    hps_device_sim_hold(rig.tier->device, false);
}

/* Rows in flight count, too, because lookups wait behind them. */
static void test_insert_when_the_limit_of_rows_in_flight_is_reached_then_left_out(void **state)
{
    (void)state;
    uint64_t n_inserted = 0;
    open_with(16 << 20, 0, 2 << 20);
    hps_device_sim_hold(rig.tier->device, true);
    for (int i = 0; i < 200; i++) {
        insert(rig.space, 2, 0, 100, 1);
        n_inserted += report.n_inserted;
        hps_gpu_tier_drain(rig.tier); /* stages all changes that fit */
    }
    assert_true(n_inserted > 0);
    assert_true(n_inserted * row_bytes_of[2] <= 2 << 20);
    hps_device_sim_hold(rig.tier->device, false);
}

static bool is_full(struct hps_gpu_tier *tier)
{
    hps_lock_acquire(&tier->changes.lock);
    bool full = tier->changes.bytes + tier->changes.staged_bytes > 300 << 10;
    hps_lock_release(&tier->changes.lock);
    return full;
}

static void *release_later(void *arg)
{
    AWAIT(is_full(arg));
    hps_device_sim_hold(rig.tier->device, false);
    return NULL;
}

static void test_insert_when_it_waits_then_all_rows_are_inserted(void **state)
{
    (void)state;
    pthread_t thread;
    open_with(16 << 20, 0, 600 << 10);
    hps_device_sim_hold(rig.tier->device, true);
    assert_int_equal(pthread_create(&thread, NULL, release_later, rig.tier), 0);
    how.waits = true;
    for (hps_key first = 0; first < 3000; first += 1000) {
        insert(rig.space, 2, first, 1000, 1);
        assert_int_equal(report.n_inserted, 1000);
    }
    pthread_join(thread, NULL);
    await_changes(2, 3000);
    assert_true(found(rig.space, 2, 0, 3000, 1) > 2900);
}

/* The change is larger than the queue. */
static void test_change_when_large_then_queued_in_pieces(void **state)
{
    (void)state;
    open_with(16 << 20, 0, 1536 << 10);
    how.guard = &odd_guard;
    insert(rig.space, 2, 0, ROWS, 1);
    assert_int_equal(report.n_inserted + report.n_stale + report.n_no_capacity, ROWS);
    assert_true(report.n_inserted >= 1000 && report.n_stale >= 1000);
    await_changes(2, report.n_inserted);
    uint32_t n_first = found(rig.space, 2, ROWS - 300, 300, 1);
    uint32_t n_last = found(rig.space, 2, 0, 300, 1);
    assert_true(n_first > 100);
    update(2, 0, ROWS, 2);
    assert_int_equal(found(rig.space, 2, ROWS - 300, 300, 2), n_first);
    assert_int_equal(found(rig.space, 2, 0, 300, 2), n_last);
    update(2, 0, ROWS, ERASED);
    assert_int_equal(found(rig.space, 2, ROWS - 300, 300, 2) + found(rig.space, 2, 0, 300, 2), 0);
}

/* A new row that is not used more than the rows of its set is refused. A wanted row, which a
 * reply lacked, is inserted so that the next lookup finds it. */
static void test_insert_when_wanted_then_inserted_even_if_rarely_used(void **state)
{
    (void)state;
    struct hps_embed_range_usage usage;
    rig.shares[0] = (struct hps_gpu_share){.n_rows = ROWS, .n_rows_cached = 64};
    open_all();
    insert(rig.space, 0, 0, 1000, 1); /* all sets are full */
    insert(rig.space, 0, 2000, 8, 1);
    await_changes(0, 1008);
    assert_int_equal(found(rig.space, 0, 2000, 8, 1), 0);
    for (hps_key key = 3000; key < 3010; key++) {
        how.wanted = true;
        insert(rig.space, 0, key, 1, 1);
        assert_int_equal(report.n_inserted, 1);
        assert_int_equal(found(rig.space, 0, key, 1, 1), 1);
    }
    hps_gpu_tier_sync(rig.tier);
    hps_gpu_space_usage(rig.space, 0, &usage);
    assert_int_equal(usage.n_evicted, 10);
    assert_int_equal(usage.n_rows, usage.n_slots);
}

static void test_space_when_it_does_not_fit_then_cached_once_active_with_free_memory(void **state)
{
    (void)state;
    open_with(all_bytes() * 3 / 2, 0, 0);
    insert(rig.space, 2, 0, 100, 1);
    assert_true(found(rig.space, 2, 0, 100, 1) > 90);
    struct hps_gpu_space *next = open_space();
    insert(next, 2, 0, 100, 2);
    assert_int_equal(found(next, 2, 0, 100, 2), 0);
    assert_true(found(rig.space, 2, 0, 100, 1) > 90); /* it did not evict the active version */

    hps_gpu_space_active(rig.space, false);
    hps_gpu_space_active(next, true);
    uint32_t n = 0;
    while (n == 0) { /* after the work in flight has ended */
        insert(next, 2, 0, 100, 2);
        n = found(next, 2, 0, 100, 2);
    }
    assert_int_equal(found(rig.space, 2, 0, 100, 1), 0);
    hps_gpu_space_close(rig.space);
    rig.space = next;
}

static uint64_t bytes_of(uint32_t table)
{
    return hps_embed_range_bytes(row_bytes_of[table], ROWS, ROWS);
}

/* Tables that do not fit get no cache; smaller tables after them do. */
static void test_caches_when_not_all_fit_then_the_fitting_ones_are_created(void **state)
{
    (void)state;
    uint32_t sizes[2];
    open_tier(bytes_of(0) - 4096, 0, 0);
    rig.space = open_space();
    for (uint32_t i = 0; i < 2; i++) { /* before and after the space is active */
        assert_false(hps_gpu_space_caches(rig.space, 0));
        assert_true(hps_gpu_space_caches(rig.space, 1));
        assert_false(hps_gpu_space_caches(rig.space, 2));
        assert_true(hps_gpu_space_present(rig.space));
        assert_false(hps_gpu_space_without_capacity(rig.space, rig.tier));
        sizes[i] = hps_gpu_space_tables_without_capacity(rig.space, rig.tier);
        hps_gpu_space_active(rig.space, true);
        AWAIT(!hps_gpu_space_coming(rig.space));
    }
    assert_int_equal(sizes[0], 2);
    assert_int_equal(sizes[1], 2);
    assert_int_equal(hps_gpu_space_tables_without_capacity(rig.space, NULL), 2);
    assert_int_equal(hps_gpu_space_tables_without_capacity(NULL, NULL), 0);
    for (uint32_t t = 0; t < N_TABLES; t++) {
        insert(rig.space, t, 0, 100, 1);
        assert_int_equal(report.n_inserted, t == 1 ? 100 : 0);
        assert_int_equal(found(rig.space, t, 0, 100, 1), t == 1 ? 100 : 0);
    }
}

/* The missing cache gets the memory of evicted caches, even if this memory is fragmented. */
static void test_caches_when_memory_becomes_free_then_the_missing_ones_are_created(void **state)
{
    (void)state;
    struct hps_gpu_share shares[N_TABLES];
    memcpy(shares, rig.shares, sizeof(shares));
    open_tier(bytes_of(0) + bytes_of(1) + bytes_of(2) + bytes_of(0) - 4096, 0, 0);
    rig.shares[1].n_rows_cached = rig.shares[2].n_rows_cached = 0;
    struct hps_gpu_space *other = open_space();
    memcpy(rig.shares, shares, sizeof(shares));
    rig.space = open_space();
    assert_int_equal(hps_gpu_space_tables_without_capacity(rig.space, rig.tier), 1);
    assert_int_equal(hps_gpu_space_tables_without_capacity(other, rig.tier), 0);
    assert_false(hps_gpu_space_caches(rig.space, 2));
    hps_gpu_space_active(rig.space, true);
    AWAIT(!hps_gpu_space_coming(rig.space));
    assert_int_equal(hps_gpu_space_tables_without_capacity(rig.space, rig.tier), 0);
    assert_false(hps_gpu_space_caches(other, 0));
    for (uint32_t t = 0; t < N_TABLES; t++) {
        insert(rig.space, t, 0, 100, 1);
        assert_int_equal(found(rig.space, t, 0, 100, 1), 100);
    }
    hps_gpu_space_close(other);
}

/* Read the log until it has a complete line with `text`. */
static void read_log(int fd, const char *text, char *log, size_t size)
{
    size_t n = 0;
    char *line = NULL;

    while (line == NULL || strchr(line, '\n') == NULL) {
        struct pollfd input = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&input, 1, GIVE_UP_US / 1000), 1);
        ssize_t got = read(fd, log + n, size - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
        log[n] = '\0';
        line = strstr(log, text);
    }
}

static void test_space_when_it_does_not_fit_then_logged_once_with_both_sizes(void **state)
{
    (void)state;
    char log[4096];
    char needed[64];
    int fds[2];
    rig.shares[0].n_rows_cached = rig.shares[1].n_rows_cached = 0;
    uint64_t bytes = all_bytes();
    assert_int_equal(pipe(fds), 0);
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, fds[1]);
    snprintf(needed, sizeof(needed), " needed_bytes=%" PRIu64 " ", bytes);
    open_tier(bytes - 4096, 0, 0);
    rig.space = open_space();
    read_log(fds[0], "other versions use the device memory", log, sizeof(log));
    assert_non_null(strstr(log, needed));
    assert_non_null(strstr(log, "version=m/3 "));
    hps_gpu_space_active(rig.space, true);
    read_log(fds[0], "the device lacks memory", log, sizeof(log));
    assert_non_null(strstr(log, needed));
    assert_non_null(strstr(log, " free_bytes="));
    hps_gpu_space_active(rig.space, true); /* tries again to create the caches */
    hps_gpu_space_active(rig.space, true);
    hps_gpu_tier_drain(rig.tier);
    hps_log_setup(HPS_LOG_INFO, HPS_LOG_LOGFMT, STDERR_FILENO);
    close(fds[1]);
    assert_int_equal(read(fds[0], log, sizeof(log)), 0);
    close(fds[0]);
}

static void read_wanted(void *ctx)
{
    *(bool *)ctx = rig.tier->wanted;
}

/* Otherwise the tier's thread would search for memory forever. */
static void test_lost_when_a_version_waits_for_memory_then_the_wait_ends(void **state)
{
    (void)state;
    struct question question;
    bool wanted = false;
    open_with(all_bytes() * 3 / 2, 0, 0);
    struct hps_gpu_space *next = open_space();
    insert(rig.space, 0, 0, 100, 1);
    assert_true(found(rig.space, 0, 0, 100, 1) > 90);
    hps_device_sim_hold(rig.tier->device, true);
    ask_now(&question, rig.space, 0, 100);
    hps_gpu_space_active(rig.space, false);
    hps_gpu_space_active(next, true);
    gpu_tier_call(rig.tier, read_wanted, &wanted);
    assert_true(wanted); /* the work in flight uses the memory */
    hps_device_give_up(rig.tier->device, "enough");
    AWAIT(hps_gpu_tier_lost(rig.tier));
    gpu_tier_call(rig.tier, read_wanted, &wanted);
    assert_false(wanted);
    wait_done(&question);
    forget(&question);
    hps_gpu_space_close(next);
}

/* A batch that waits for memory uses caches of a version, which another version evicts. */
static void test_space_when_evicted_while_a_batch_waits_then_the_batch_completes(void **state)
{
    (void)state;
    struct question questions[3];
    open_with(all_bytes() * 3 / 2, 0, 0);
    struct hps_gpu_space *next = open_space();
    for (uint32_t t = 0; t < N_TABLES; t++) {
        insert(rig.space, t, 0, 1000, 1);
    }
    assert_true(found(rig.space, 2, 0, 1000, 1) > 0);
    hps_device_sim_hold(rig.tier->device, true);
    for (int i = 0; i < 3; i++) { /* each needs more than half of the memory for rows in flight */
        ask_now(&questions[i], rig.space, 0, 3800);
    }
    hps_gpu_space_active(rig.space, false); /* also waits until the thread has the lookups */
    hps_gpu_space_active(next, true);
    for (int i = 0; i < 100; i++) { /* iterations */
        hps_gpu_tier_sync(rig.tier);
    }
    hps_device_sim_hold(rig.tier->device, false);
    for (int i = 0; i < 3; i++) {
        wait_done(&questions[i]);
        assert_int_equal(questions[i].lookup.status, HPS_OK);
        (void)check_part(&questions[i], 2, 1);
        forget(&questions[i]);
    }
    AWAIT(hps_gpu_space_caches(next, 0));
    assert_false(hps_gpu_space_caches(rig.space, 0));
    insert(rig.space, 0, 0, 10, 1);
    assert_int_equal(report.n_inserted + report.n_no_capacity + report.n_stale, 0);
    hps_gpu_space_close(next);
}

/* Only changes are in flight, so no lookup would report the loss. */
static void test_lost_when_there_is_no_lookup_then_it_is_detected(void **state)
{
    (void)state;
    open_all();
    hps_device_sim_fail(rig.tier->device, 0);
    insert(rig.space, 0, 0, 100, 1);
    AWAIT(hps_gpu_tier_lost(rig.tier));
    assert_false(hps_gpu_space_caches(rig.space, 0));
}

/* Both devices write replies into one slab. */
static void test_open_when_two_devices_share_the_slab_then_each_replies(void **state)
{
    (void)state;
    struct hps_gpu_space *other = NULL;
    struct hps_error err;
    open_all();
    struct hps_gpu_tier *tier = open_device(1, 16 << 20, 0, 0, SLOW_NOT_LOST_US);
    assert_int_equal(hps_gpu_space_open(tier, &space_options, &other, &err), HPS_OK);
    hps_gpu_space_active(other, true);
    insert(rig.space, 0, 0, 100, 1);
    insert(other, 0, 100, 100, 2);
    assert_true(found(rig.space, 0, 0, 200, 1) >= 95);
    assert_int_equal(found(rig.space, 0, 100, 100, 1), 0);
    hps_gpu_space_close(rig.space);
    hps_gpu_tier_close(rig.tier);
    assert_true(found(other, 0, 0, 200, 2) >= 95); /* close removed no row */
    rig.space = other;
    rig.tier = tier;
}

/* Open rig.space on two devices. Returns the tier of the second one. */
static struct hps_gpu_tier *open_two(void)
{
    struct hps_error err;
    open_tier(16 << 20, 0, 0);
    struct hps_gpu_tier *second = open_device(1, 16 << 20, 0, 0, SLOW_NOT_LOST_US);
    rig.space = open_space();
    assert_int_equal(hps_gpu_space_add(rig.space, second, &space_options, &err), HPS_OK);
    hps_gpu_space_active(rig.space, true);
    return second;
}

static void close_two(struct hps_gpu_tier *second)
{
    hps_gpu_space_close(rig.space);
    rig.space = NULL;
    hps_gpu_tier_close(second);
}

static void test_lookup_when_on_two_devices_then_the_one_with_fewer_waiting_lookups(void **state)
{
    (void)state;
    struct question questions[9];
    unsigned n_first = 0;
    struct hps_gpu_tier *second = open_two();
    hps_device_sim_hold(rig.tier->device, true);
    hps_device_sim_hold(second->device, true);
    for (int i = 0; i < 8; i++) {
        ask_now(&questions[i], rig.space, 0, 10);
        n_first += questions[i].lookup.asked->tier == rig.tier ? 1 : 0;
    }
    assert_int_equal(n_first, 4);
    hps_device_sim_hold(second->device, false);
    for (int i = 0; i < 8; i++) {
        if (questions[i].lookup.asked->tier == second) {
            wait_done(&questions[i]);
        }
    }
    for (int i = 0; i < 3; i++) { /* the second device has no waiting lookups */
        ask_now(&questions[8], rig.space, 0, 10);
        assert_ptr_equal(questions[8].lookup.asked->tier, second);
        wait_done(&questions[8]);
        forget(&questions[8]);
    }
    hps_device_sim_hold(rig.tier->device, false);
    for (int i = 0; i < 8; i++) {
        wait_done(&questions[i]);
        assert_int_equal(questions[i].lookup.status, HPS_OK);
        forget(&questions[i]);
    }
    close_two(second);
}

static void test_changes_when_on_two_devices_then_rows_where_missed_and_updates_to_both(
    void **state)
{
    (void)state;
    struct hps_embed_range_usage usage;
    struct hps_gpu_tier *second = open_two();
    how.missed = rig.space->sibling;
    insert(rig.space, 0, 0, 50, 1);
    how.missed = NULL;
    assert_int_equal(report.n_inserted, 50);
    await_changes(0, 50);
    assert_int_equal(hps_gpu_space_rows(rig.space, rig.tier), 0);
    assert_true(hps_gpu_space_rows(rig.space, second) > 45);
    insert(rig.space, 0, 0, 50, 1); /* existing rows stay */
    assert_int_equal(report.n_inserted, 100);
    AWAIT(hps_gpu_space_rows(rig.space, rig.tier) >= 45);
    hps_gpu_space_usage(rig.space, 0, &usage);
    assert_int_equal(usage.n_rows, hps_gpu_space_rows(rig.space, rig.tier) +
                                       hps_gpu_space_rows(rig.space, second));
    assert_true(usage.n_slots < 2 * ROWS);
    for (uint8_t version = 2; version < 12; version++) {
        update(0, 7, 1, version);
        assert_int_equal(found(rig.space, 0, 7, 1, version), 1); /* devices alternate */
    }
    close_two(second);
}

static void test_lost_when_one_of_two_devices_is_lost_then_the_other_replies(void **state)
{
    (void)state;
    struct hps_gpu_tier *second = open_two();
    insert(rig.space, 0, 0, 100, 1);
    hps_device_give_up(second->device, "enough");
    insert(rig.space, 0, 100, 1, 1); /* so that the tier detects the loss */
    AWAIT(hps_gpu_tier_lost(second));
    assert_false(hps_gpu_space_lost(rig.space));
    assert_true(hps_gpu_space_caches(rig.space, 0));
    for (int i = 0; i < 4; i++) {
        assert_true(found(rig.space, 0, 0, 100, 1) > 90);
    }
    hps_device_give_up(rig.tier->device, "enough");
    insert(rig.space, 0, 101, 1, 1);
    AWAIT(hps_gpu_tier_lost(rig.tier));
    assert_true(hps_gpu_space_lost(rig.space));
    assert_false(hps_gpu_space_caches(rig.space, 0));
    expect_unavailable();
    close_two(second);
}

struct asker {
    pthread_t thread;
    hps_key first;
    uint32_t n_found;
};

static void *ask_often(void *arg)
{
    struct asker *asker = arg;

    for (uint32_t i = 0; i < 60; i++) {
        asker->n_found += found(rig.space, i % N_TABLES, asker->first + i, 70, 1);
    }
    return NULL;
}

static void test_lookup_when_many_run_concurrently_then_each_has_its_rows(void **state)
{
    (void)state;
    struct asker askers[4];
    open_all();
    for (uint32_t t = 0; t < N_TABLES; t++) {
        insert(rig.space, t, 0, 600, 1);
    }
    for (uint32_t i = 0; i < 4; i++) {
        askers[i] = (struct asker){.first = i * 100};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_often, &askers[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_true(askers[i].n_found > 60 * 70 * 9 / 10);
    }
}

static void test_lookup_when_its_block_is_of_another_pool_then_invalid(void **state)
{
    (void)state;
    struct question question;
    open_all();
    ask(&question, rig.space, 0, 10);
    struct hps_block *inside = question.lookup.block;
    struct hps_block_pool *others = hps_block_pool_new(0);
    question.lookup.block = hps_block_new(others, 1 << 20);
    assert_int_equal(hps_gpu_lookup(&question.lookup), HPS_INVALID);
    hps_block_unref(question.lookup.block);
    hps_block_pool_free(others);
    question.lookup.block = inside;
    forget(&question);
}

static void test_lost_when_at_any_moment_then_every_lookup_completes(void **state)
{
    (void)state;
    for (uint64_t moment = 0; moment < 40; moment += 3) {
        struct question questions[8];

        setup(NULL);
        open_all();
        insert(rig.space, 0, 0, 100, 1);
        assert_true(found(rig.space, 0, 0, 100, 1) > 0);
        hps_device_sim_fail(rig.tier->device, moment);
        for (int i = 0; i < 8; i++) {
            ask(&questions[i], rig.space, 0, 100);
            hps_status status = hps_gpu_lookup(&questions[i].lookup);
            if (status != HPS_OK) {
                assert_int_equal(status, HPS_UNAVAILABLE);
                questions[i].done = true;
                questions[i].lookup.status = status;
            }
            update(0, 1, 1, 1);
        }
        for (int i = 0; i < 8; i++) {
            wait_done(&questions[i]);
            hps_status status = questions[i].lookup.status;
            assert_true(status == HPS_OK || status == HPS_DATA_LOSS || status == HPS_UNAVAILABLE);
            if (status == HPS_OK) {
                check_part(&questions[i], 1, 1);
            }
            forget(&questions[i]);
        }
        while (!hps_gpu_tier_lost(rig.tier)) { /* until an operation fails */
            update(0, 1, 1, 1);
            brief_pause();
        }
        expect_unavailable();
        hps_gpu_space_active(rig.space, false);
        teardown(NULL);
    }
}

/* ---- a driver that hangs --------------------------------------------------------------------- */

static void test_usage_when_the_driver_hangs_then_returned_without_a_wait(void **state)
{
    (void)state;
    struct question question;
    struct hps_embed_range_usage usages[N_TABLES];
    struct hps_embed_cache_usage usage;
    open_all();
    hps_device_sim_driver_hang(rig.tier->device, true);
    ask_now(&question, rig.space, 0, 100); /* the tier's thread is in the driver, or soon will be */
    hps_gpu_space_usages(rig.space, usages);
    assert_true(usages[0].bytes > 0);
    hps_gpu_space_usage(rig.space, 1, &usages[1]);
    hps_gpu_tier_usage(rig.tier, &usage);
    assert_int_equal(usage.arena_bytes, 16 << 20);
    assert_false(atomic_load(&question.done));
    assert_false(hps_gpu_tier_lost(rig.tier));
    hps_device_sim_driver_hang(rig.tier->device, false);
    wait_done(&question);
    assert_int_equal(question.lookup.status, HPS_OK);
    forget(&question);
}

static void lookup_while_hung(void)
{
    struct question question;
    hps_device_sim_driver_hang(rig.tier->device, true);
    ask_now(&question, rig.space, 0, 100);
    wait_done(&question);
}

static void open_space_while_hung(void)
{
    hps_device_sim_driver_hang(rig.tier->device, true);
    (void)open_space();
}

static void update_while_hung(void)
{
    hps_device_sim_driver_hang(rig.tier->device, true);
    for (int i = 0; i < 10; i++) { /* more than the queue holds */
        update(2, 0, 100, 1);
    }
}

static void close_while_hung(void)
{
    hps_gpu_space_close(rig.space);
    hps_device_sim_driver_hang(rig.tier->device, true);
    hps_gpu_tier_close(rig.tier);
}

/* The device is lost while it writes a reply. */
static void close_while_written_to(void)
{
    struct question question;
    hps_device_sim_hang(rig.tier->device, true);
    ask_now(&question, rig.space, 0, 100);
    wait_done(&question);
    assert_int_equal(question.lookup.status, HPS_DATA_LOSS);
    teardown(NULL);
}

enum { HANG_STALL_US = 500 * 1000 };

static void test_process_when_device_memory_cannot_be_reclaimed_then_it_exits_with_1(void **state)
{
    (void)state;
    const char *hung = "device hung: a call of its driver has not returned";
    const struct {
        void (*run)(void);
        const char *text;
    } cases[] = {{lookup_while_hung, hung},
                 {open_space_while_hung, hung},
                 {update_while_hung, hung},
                 {close_while_hung, hung},
                 {close_while_written_to, "device not stopped: it is lost, and may still write"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char log[4096];
        int ends[2], how_ended = 0;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            hps_log_setup(HPS_LOG_ERROR, HPS_LOG_LOGFMT, ends[1]);
            setup(NULL);
            rig.tier = open_device(0, 16 << 20, 0, 100000, HANG_STALL_US);
            rig.space = open_space();
            hps_gpu_space_active(rig.space, true);
            cases[i].run();
            _exit(0);
        }
        close(ends[1]);
        read_log(ends[0], cases[i].text, log, sizeof(log));
        close(ends[0]);
        assert_int_equal(waitpid(child, &how_ended, 0), child);
        assert_true(WIFEXITED(how_ended) && WEXITSTATUS(how_ended) == 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        /* First, because ThreadSanitizer allows threads in a child only if the parent has none. */
        cmocka_unit_test(test_process_when_device_memory_cannot_be_reclaimed_then_it_exits_with_1),
        TEST(test_lookup_when_rows_were_inserted_then_only_they_are_found),
        TEST(test_usage_when_rows_were_inserted_then_counted_per_table_and_device),
        TEST(test_usage_when_read_during_an_insertion_then_its_rows_count_later),
        TEST(test_insert_when_a_large_cache_is_being_cleared_then_other_tables_do_not_wait),
        TEST(test_thread_when_it_pauses_then_the_timer_has_no_slack),
        TEST(test_lookup_when_larger_than_a_batch_then_split_and_complete),
        TEST(test_update_when_it_has_returned_then_no_lookup_sees_the_old_row),
        TEST(test_insert_when_stale_or_the_queue_is_full_then_left_out_and_counted),
        TEST(test_insert_when_wanted_then_inserted_even_if_rarely_used),
        TEST(test_space_when_it_does_not_fit_then_cached_once_active_with_free_memory),
        TEST(test_caches_when_not_all_fit_then_the_fitting_ones_are_created),
        TEST(test_caches_when_memory_becomes_free_then_the_missing_ones_are_created),
        TEST(test_change_when_large_then_queued_in_pieces),
        TEST(test_space_when_evicted_while_a_batch_waits_then_the_batch_completes),
        TEST(test_lost_when_there_is_no_lookup_then_it_is_detected),
        TEST(test_open_when_the_device_is_simulated_then_the_stall_limit_is_a_minute),
        TEST(test_open_when_two_devices_share_the_slab_then_each_replies),
        TEST(test_update_when_there_is_no_memory_then_no_old_row_is_found),
        TEST(test_insert_when_the_limit_of_rows_in_flight_is_reached_then_left_out),
        TEST(test_insert_when_it_waits_then_all_rows_are_inserted),
        TEST(test_space_when_it_does_not_fit_then_logged_once_with_both_sizes),
        TEST(test_lost_when_a_version_waits_for_memory_then_the_wait_ends),
        TEST(test_lookup_when_on_two_devices_then_the_one_with_fewer_waiting_lookups),
        TEST(test_changes_when_on_two_devices_then_rows_where_missed_and_updates_to_both),
        TEST(test_lost_when_one_of_two_devices_is_lost_then_the_other_replies),
        TEST(test_lookup_when_many_run_concurrently_then_each_has_its_rows),
        TEST(test_lookup_when_its_block_is_of_another_pool_then_invalid),
        cmocka_unit_test(test_lost_when_at_any_moment_then_every_lookup_completes),
        TEST(test_usage_when_the_driver_hangs_then_returned_without_a_wait),
#undef TEST
    };
    return cmocka_run_group_tests_name("gpu_tier", tests, NULL, NULL);
}
