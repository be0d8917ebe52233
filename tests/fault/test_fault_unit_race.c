/* SPDX-License-Identifier: Apache-2.0
 *
 * Units: lookups of keys in several tables while updates change all of these keys. Each update
 * of a group of keys writes its number into each row of the group, in every table, or deletes
 * all of them. A lookup of a group must find one number or no row; otherwise it has seen a part
 * of an update. A lookup of several groups must find their state after one update. Uses the real
 * stores in every order of tiers, with the gpu on the simulated device. The same lookups without
 * `unit` must fail, or the test proves nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "backends/host/map.h"
#include "backends/rocksdb/rocksdb.h"
#include "tests/lib/race_fixture.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/work.h"

enum {
    N_TABLES = 3,
    N_GROUPS = 16,
    GROUP_KEYS = 4,
    N_KEYS = N_GROUPS * GROUP_KEYS,
    N_READERS = 3,
    ROW_WORDS = 4,
    ROW_BYTES = ROW_WORDS * 8,
    N_UNITS = HPS_TEST_WORK(4000),
    N_LOOKUPS_MIN = HPS_TEST_WORK(1000), /* replies before updates end */
    N_UNITS_MAX = 2000 * 1000,           /* limit, if expected results are missing */
    DELETED = 128,                       /* flag in the log */
};

static const struct hps_call no_limit = {0};

/* The tiers of a race. */
enum { HOST = 1, DISK = 2, GPU = 4 };

struct race {
    unsigned tiers;
    bool unit;
    struct hps_tmpdir dir;
    struct hps_store *stores[2];
    uint32_t n_stores;
    struct hps_version *version;
    struct hps_block_pool *blocks;
    struct hps_gpu_tier *gpu;
    atomic_bool stop;
    _Atomic uint64_t n_answers, n_torn, n_reread, n_gpu;
    uint64_t n_units; /* of the updater; read at the end */
    _Atomic uint8_t
        *log; /* [N_UNITS_MAX + 2] by number: the group plus one, DELETED; 0: no update */
    struct race_wrong wrong;
};

struct reader {
    struct race *race;
    uint64_t seed;
    struct race_lookup own;
    struct hps_lookup_part parts[N_TABLES];
    uint32_t groups[N_GROUPS], n_groups; /* requested groups, and their keys */
    hps_key keys[N_KEYS];
    uint32_t offsets[N_GROUPS + 1]; /* a bag for each group */
};

/* ---- lookups --------------------------------------------------------------------------------- */

/* Read again until the lookup is not torn. */
static hps_status run_tries(struct reader *reader, struct hps_error *err)
{
    struct race *race = reader->race;
    hps_status status = race_lookup_run(&reader->own, err);
    atomic_fetch_add(&race->n_torn, status == HPS_ABORTED ? 1 : 0);
    while (status == HPS_ABORTED) {
        status = hps_lookup_reread(&reader->own.lookup, err);
        atomic_fetch_add(&race->n_reread, status == HPS_OK ? 1 : 0);
    }
    return status;
}

static bool is_found(const struct hps_lookup_part *part, uint32_t i)
{
    return part->key_status == NULL || part->key_status[i] == HPS_KEY_FOUND;
}

/* The same for a bag. The words of a row are floats so small that adding them adds their bits: a
 * number in the low half of each word, 0 in the high half. */
static uint64_t number_of_bag(const struct hps_lookup_part *part, uint32_t group)
{
    uint64_t row[ROW_WORDS];
    uint32_t n_found = 0;
    memcpy(row, part->rows + group * part->stride, sizeof(row));
    for (uint32_t i = group * GROUP_KEYS; i < (group + 1) * GROUP_KEYS; i++) {
        n_found += is_found(part, i) ? 1 : 0;
    }
    bool same = (n_found == 0 && row[0] == 0) || (n_found == GROUP_KEYS && row[0] % n_found == 0);
    for (unsigned w = 1; w < ROW_WORDS; w++) {
        same = same && row[w] == row[0];
    }
    return same ? row[0] / GROUP_KEYS : UINT64_MAX;
}

/* The number in the rows of a group; 0: the keys do not exist; UINT64_MAX: rows differ. */
static uint64_t number_of(const struct hps_lookup_part *part, uint32_t group)
{
    uint64_t number = 0;
    if (part->form == HPS_PART_POOLED) {
        return number_of_bag(part, group);
    }
    for (uint32_t i = group * GROUP_KEYS; i < (group + 1) * GROUP_KEYS; i++) {
        uint64_t row[ROW_WORDS] = {0};
        if (is_found(part, i)) {
            memcpy(row, part->rows + i * part->stride, sizeof(row));
        }
        bool same = i == group * GROUP_KEYS || row[0] == number;
        for (unsigned w = 1; w < ROW_WORDS; w++) {
            same = same && row[w] == row[0];
        }
        if (!same) {
            return UINT64_MAX;
        }
        number = row[0];
    }
    return number;
}

/* The numbers of groups after update m: each group has its last update up to m. */
static void state_after(struct race *race, uint64_t m, uint64_t numbers[N_GROUPS])
{
    bool known[N_GROUPS] = {false};
    memset(numbers, 0, N_GROUPS * sizeof(*numbers));
    for (unsigned n_known = 0; m > 0 && n_known < N_GROUPS; m--) {
        uint8_t entry = atomic_load(&race->log[m]);
        unsigned group = (entry & (DELETED - 1)) - 1u;
        if (!known[group]) {
            known[group] = true;
            n_known++;
            numbers[group] = (entry & DELETED) != 0 ? 0 : m;
        }
    }
}

/* Whether the groups had these numbers at one time, not before the highest number. */
static bool is_a_state(struct race *race, const uint32_t *groups, const uint64_t *seen, uint32_t n,
                       uint64_t newest)
{
    uint64_t state[N_GROUPS];
    state_after(race, newest, state);
    for (uint64_t m = newest;;) {
        uint32_t n_same = 0;
        for (uint32_t g = 0; g < n; g++) {
            n_same += state[groups[g]] == seen[g] ? 1 : 0;
        }
        if (n_same == n) {
            return true;
        }
        uint8_t entry = atomic_load(&race->log[++m]);
        unsigned group = (entry & (DELETED - 1)) - 1u;
        if (entry == 0) {
            return false;
        }
        state[group] = (entry & DELETED) != 0 ? 0 : m;
    }
}

static void check(struct reader *reader, uint64_t floor)
{
    struct race *race = reader->race;
    uint64_t seen[N_GROUPS];
    uint64_t newest = 0;
    for (uint32_t g = 0; g < reader->n_groups; g++) {
        uint64_t numbers[N_TABLES];
        bool whole = true;
        for (uint32_t t = 0; t < N_TABLES; t++) {
            numbers[t] = number_of(&reader->parts[t], g);
            whole = whole && numbers[t] == numbers[0] && numbers[t] != UINT64_MAX;
        }
        if (!whole) {
            race_report(&race->wrong, "a part of a unit: tables have %lld, %lld, %lld (floor %llu)",
                        (long long)numbers[0], (long long)numbers[1], (long long)numbers[2],
                        (unsigned long long)floor);
            return;
        }
        seen[g] = numbers[0];
        newest = numbers[0] > newest ? numbers[0] : newest;
    }
    for (uint32_t t = 0; t < N_TABLES; t++) {
        atomic_fetch_add(&race->n_gpu, reader->parts[t].walk.reports[HPS_TIER_GPU].n_found);
    }
    if (newest > 0 && !is_a_state(race, reader->groups, seen, reader->n_groups, newest)) {
        race_report(&race->wrong, "%u groups of which the newest has %llu: no state of all",
                    reader->n_groups, (unsigned long long)newest);
    }
}

/* Choose consecutive groups from a random start. */
static void draw_groups(struct reader *reader)
{
    uint32_t first = (uint32_t)(race_draw(&reader->seed) % N_GROUPS);
    reader->n_groups = 1 + (uint32_t)(race_draw(&reader->seed) % N_GROUPS);
    for (uint32_t g = 0; g < reader->n_groups; g++) {
        reader->groups[g] = (first + g) % N_GROUPS;
        for (uint32_t i = 0; i < GROUP_KEYS; i++) {
            reader->keys[g * GROUP_KEYS + i] = reader->groups[g] * GROUP_KEYS + i;
        }
        reader->offsets[g + 1] = (g + 1) * GROUP_KEYS;
    }
}

/* Row by row, as stored or in one matrix; or a bag for each group, in some tables or all. */
static void draw_form(struct reader *reader)
{
    unsigned form = (unsigned)(race_draw(&reader->seed) % 4);
    for (uint32_t t = 0; t < N_TABLES && form >= 2; t++) {
        bool pooled = form == 3 || race_draw(&reader->seed) % 2 == 0;
        reader->parts[t].pooling = pooled ? HPS_POOLING_SUM : HPS_POOLING_NONE;
        reader->parts[t].n_bags = reader->n_groups;
        reader->parts[t].offsets = reader->offsets;
    }
    reader->own.lookup.layout = form % 2 == 1 ? HPS_LAYOUT_CONCAT : HPS_LAYOUT_PER_TABLE;
}

static void do_lookup(struct reader *reader)
{
    struct race *race = reader->race;
    struct hps_lookup *lookup = &reader->own.lookup;
    struct hps_error err = {0};
    draw_groups(reader);
    hps_arena_reset(reader->own.arena);
    for (uint32_t t = 0; t < N_TABLES; t++) {
        reader->parts[t] = (struct hps_lookup_part){.table = &race->version->tables[t],
                                                    .keys = (const uint8_t *)reader->keys,
                                                    .n_keys = reader->n_groups * GROUP_KEYS};
    }
    *lookup = (struct hps_lookup){.version = race->version,
                                  .arena = reader->own.arena,
                                  .parts = reader->parts,
                                  .n_parts = N_TABLES,
                                  .miss_policy = HPS_MISS_EXACT,
                                  .unknown_policy = HPS_UNKNOWN_ZERO,
                                  .unit = race->unit,
                                  .path = (enum hps_lookup_path)(race_draw(&reader->seed) % 3),
                                  .blocks = race->blocks};
    draw_form(reader);
    uint64_t floor = hps_update_sequence(race->version);
    if (run_tries(reader, &err) != HPS_OK) {
        race_report(&race->wrong, "%s", err.text);
    } else {
        check(reader, floor);
        atomic_fetch_add(&race->n_answers, 1);
    }
    hps_lookup_release(lookup);
    hps_block_unref(lookup->block);
}

static void *reader_main(void *arg)
{
    struct reader *reader = arg;
    while (!atomic_load(&reader->race->stop)) {
        do_lookup(reader);
    }
    return NULL;
}

/* ---- evictions and updates ------------------------------------------------------------------- */

/* Evict rows, so that rows come from every tier. */
static void *evictor_main(void *arg)
{
    struct race *race = arg;
    struct hps_space *top = race->version->tiers[0];
    uint64_t seed = 99;
    while (!atomic_load(&race->stop)) {
        hps_key key = race_draw(&seed) % N_KEYS;
        const struct hps_table *table = &race->version->tables[race_draw(&seed) % N_TABLES];
        if (race->tiers != HOST && (race->tiers & HOST) != 0 &&
            top->store->ops->erase(top, &no_limit, table, &key, 1) != HPS_OK) {
            race_report(&race->wrong, "failed eviction");
        }
        if (race->gpu != NULL && key % 8 == 0) {
            hps_gpu_update(race->version->gpu, table->id, &key, NULL, 1);
        }
        sched_yield();
    }
    return NULL;
}

static bool enough(struct race *race)
{
    if (!race->unit || atomic_load(&race->wrong.n) > 0) {
        return atomic_load(&race->wrong.n) > 0;
    }
    return race->n_units >= N_UNITS && atomic_load(&race->n_answers) >= N_LOOKUPS_MIN &&
           atomic_load(&race->n_reread) > 0 && (race->gpu == NULL || atomic_load(&race->n_gpu) > 0);
}

/* Apply one unit: a group in every table. */
static hps_status apply_unit(struct race *race, uint64_t number, uint64_t *seed,
                             struct hps_error *err)
{
    hps_key keys[GROUP_KEYS];
    uint64_t rows[GROUP_KEYS][ROW_WORDS];
    struct hps_update_part parts[N_TABLES];
    uint32_t group = (uint32_t)(race_draw(seed) % N_GROUPS);
    hps_key first = group * GROUP_KEYS;
    bool deleted = race_draw(seed) % 8 == 0;
    atomic_store(&race->log[number], (uint8_t)((group + 1) | (deleted ? DELETED : 0)));
    for (uint32_t i = 0; i < GROUP_KEYS; i++) {
        keys[i] = first + i;
        for (unsigned w = 0; w < ROW_WORDS; w++) {
            rows[i][w] = number;
        }
    }
    for (uint32_t t = 0; t < N_TABLES; t++) {
        parts[t] = (struct hps_update_part){.table_id = t,
                                            .row_bytes = deleted ? 0 : ROW_BYTES,
                                            .n = GROUP_KEYS,
                                            .keys = keys,
                                            .rows = deleted ? NULL : (const uint8_t *)rows};
    }
    const struct hps_update_batch batch = {
        .parts = parts, .n_parts = N_TABLES, .nan_allowed = true};
    return hps_update_apply(race->version, &batch, err);
}

static void *updater_main(void *arg)
{
    struct race *race = arg;
    struct hps_error err = {0};
    uint64_t seed = 7;
    while (race->n_units < N_UNITS_MAX && !enough(race)) {
        if (apply_unit(race, race->n_units + 1, &seed, &err) != HPS_OK) {
            race_report(&race->wrong, "%s", err.text);
        }
        if (race->gpu != NULL) { /* otherwise its queue has no space for insertions */
            hps_gpu_tier_sync(race->gpu);
        }
        race->n_units++;
    }
    atomic_store(&race->stop, true);
    return NULL;
}

/* ---- the race -------------------------------------------------------------------------------- */

static void open_stores(struct race *race)
{
    struct hps_error err;
    const struct hps_host_map_options host = {.bytes_max = UINT64_C(64) << 20,
                                              .evicts = (race->tiers & DISK) != 0,
                                              .rows_max = N_KEYS,
                                              .target_ratio = 0.9};
    hps_tmpdir_open(&race->dir);
    const struct hps_rocksdb_options disk = {.path = race->dir.path,
                                             .n_threads = 1,
                                             .batch_keys_max = 1024,
                                             .disk_free_min_bytes = 1,
                                             .block_cache_bytes = 1 << 20,
                                             .read_mode = HPS_READ_BUFFERED,
                                             .wal_sync_ms = 1000};
    if ((race->tiers & HOST) != 0) {
        assert_int_equal(hps_host_map_open_with(&host, &race->stores[race->n_stores++], &err),
                         HPS_OK);
    }
    if ((race->tiers & DISK) != 0) {
        hps_status status = hps_rocksdb_open(&disk, &race->stores[race->n_stores++], &err);
        assert_int_equal(status, HPS_OK);
    }
}

static void open_version(struct race *race)
{
    struct hps_version *version = hps_version_new("m", 1, N_TABLES);
    struct hps_error err;
    char name[2] = "a";
    for (uint32_t t = 0; t < N_TABLES; t++, name[0]++) {
        version->tables[t] = (struct hps_table){.name = hps_strdup(name),
                                                .id = t,
                                                .dim = ROW_BYTES / 4,
                                                .row_bytes = ROW_BYTES,
                                                .dtype = HPS_DTYPE_FP32,
                                                .n_rows = N_KEYS};
    }
    const struct hps_space_id id = {"m", 1, version->tables, N_TABLES, 0};
    for (uint32_t i = 0; i < race->n_stores; i++) {
        struct hps_store *store = race->stores[i];
        assert_int_equal(store->ops->space_open(store, &id, &version->tiers[i], &err), HPS_OK);
        version->n_tiers++;
    }
    assert_int_equal(hps_update_open(version, &err), HPS_OK);
    hps_version_pin(version);
    race->version = version;
}

static struct race *race_new(unsigned tiers, bool unit)
{
    struct race *race = hps_calloc(1, sizeof(*race));
    assert_non_null(race);
    race->tiers = tiers;
    race->unit = unit;
    race->log = hps_calloc(N_UNITS_MAX + 2, sizeof(*race->log));
    assert_non_null(race->log);
    pthread_mutex_init(&race->wrong.lock, NULL);
    race->blocks = hps_block_pool_new(0);
    assert_int_equal(hps_block_pool_slab_add(race->blocks, RACE_GPU_SLAB), HPS_OK);
    open_stores(race);
    open_version(race);
    if ((tiers & GPU) != 0) {
        race->gpu = race_gpu_open(race->version, race->blocks, N_KEYS, 64 << 10);
    }
    return race;
}

static void race_free(struct race *race)
{
    race_gpu_close(race->gpu, race->version);
    for (uint32_t i = 0; i < race->n_stores; i++) {
        race->stores[i]->ops->space_close(race->version->tiers[i]);
        race->stores[i]->ops->close(race->stores[i]);
    }
    hps_version_unpin(race->version);
    hps_version_free(race->version);
    hps_block_pool_free(race->blocks);
    hps_tmpdir_close(&race->dir);
    pthread_mutex_destroy(&race->wrong.lock);
    hps_free(race->log);
    hps_free(race);
}

static void run_race(struct race *race)
{
    struct race_thread threads[N_READERS + 2] = {{evictor_main, race}, {updater_main, race}};
    struct reader readers[N_READERS];
    for (unsigned i = 0; i < N_READERS; i++) {
        readers[i] = (struct reader){
            .race = race, .seed = 1000 * (i + 1), .own.arena = hps_arena_new(4096, 1 << 20)};
        threads[2 + i] = (struct race_thread){reader_main, &readers[i]};
    }
    race_run(threads, N_READERS + 2);
    for (unsigned i = 0; i < N_READERS; i++) {
        hps_arena_free(readers[i].own.arena);
    }
}

/* No lookup sees part of a unit, and none fails. */
static void race_units(unsigned tiers)
{
    struct race *race = race_new(tiers, true);
    run_race(race);
    print_message(
        "tiers %u: %llu units, %llu answers, %llu torn, %llu read again, %llu rows of gpu\n", tiers,
        (unsigned long long)race->n_units, (unsigned long long)race->n_answers,
        (unsigned long long)race->n_torn, (unsigned long long)race->n_reread,
        (unsigned long long)race->n_gpu);
    assert_string_equal(race->wrong.text, "");
    assert_int_equal(hps_update_sequence(race->version), race->n_units);
    race_free(race);
}

/* The same without `unit`: lookups must see parts of units. */
static void race_rows(unsigned tiers)
{
    struct race *race = race_new(tiers, false);
    run_race(race);
    print_message("found, as it must be: %s\n", race->wrong.text);
    assert_true(race->wrong.n > 0);
    assert_true(strstr(race->wrong.text, "a part of a unit") != NULL ||
                strstr(race->wrong.text, "no state of all") != NULL);
    race_free(race);
}

static void test_unit_when_any_tiers_then_all_or_nothing(void **state)
{
    static const unsigned tiers[] = {HOST, DISK, HOST | DISK, GPU | DISK, GPU | HOST | DISK};
    (void)state;
    for (unsigned i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++) {
        race_units(tiers[i]);
    }
}

static void test_rows_when_any_tiers_then_parts_of_units_are_found(void **state)
{
    (void)state;
    race_rows(HOST | DISK);
    race_rows(GPU | HOST | DISK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unit_when_any_tiers_then_all_or_nothing),
        cmocka_unit_test(test_rows_when_any_tiers_then_parts_of_units_are_found),
    };
    return cmocka_run_group_tests_name("unit_race", tests, NULL, NULL);
}
