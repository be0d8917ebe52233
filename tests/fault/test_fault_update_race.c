/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups that insert what they find below, updates, deletes and evictions of the same keys, all
 * at once over the real host map. A row says which key and which update it is of, so that every
 * torn row and every one older than what was published before its lookup began is seen. The same
 * race without the stamps must be caught, or the test proves nothing. Both with a gpu, too: on the
 * simulated device, whose rows come and go by themselves. And with a host map that has no index for
 * these keys, but a dense range, which grows during the race.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "cache/version/absent.h"
#include "tests/lib/fake_store.h"
#include "tests/lib/race_fixture.h"
#include "tests/lib/work.h"

enum {
    N_KEYS = 256,
    N_WALKERS = 3,
    WALK_KEYS = 16,
    BATCH_KEYS = 32,
    FIRST_KEYS = 64, /* of a dense range */
    ROW_WORDS = 16,  /* key, sequence, key, sequence, … */
    ROW_BYTES = ROW_WORDS * 8,
    N_BATCHES = HPS_TEST_WORK(16000),
    N_BATCHES_GPU = HPS_TEST_WORK(3000),
    N_BATCHES_MAX = 200 * 16000, /* where what must be seen is not seen */
};

static const struct hps_call no_limit = {0};
static hps_status (*host_insert)(struct hps_space *, const struct hps_call *,
                                 const struct hps_table *, const hps_key *, const uint32_t *,
                                 const uint8_t *, uint32_t, const struct hps_insert_guard *,
                                 struct hps_insert_report *);

static hps_status (*disk_get)(struct hps_space *, const struct hps_call *, const struct hps_table *,
                              struct hps_batch *);

/* A state of a key: the sequence of an update << 1, | 1 if it deleted the key. */
struct race {
    struct hps_store *stores[2];
    struct hps_store_ops late_ops;
    struct hps_store_ops late_disk;
    struct hps_version *version;
    struct hps_version *seen; /* by lookups: the same, or one with the same tiers but no stamps */
    struct hps_block_pool *blocks;
    struct hps_gpu_tier *gpu; /* NULL: none */
    bool guarded;
    bool dense;                         /* the host map has a dense range, and evicts nothing */
    uint32_t n_batches_min;             /* further ones until all that must be seen has been */
    _Atomic uint64_t n_batches;         /* the updater's */
    uint64_t n_evicted;                 /* from the host map, by itself; read at rest */
    _Atomic uint64_t started[N_KEYS];   /* state by the last update of the key, perhaps under way */
    _Atomic uint64_t published[N_KEYS]; /* by the last one that has ended */
    _Atomic uint64_t deletes[N_KEYS];   /* sequence of the last delete, perhaps under way */
    atomic_bool stop;
    _Atomic uint64_t n_gpu;   /* rows that it found */
    _Atomic uint64_t n_stale; /* insertions that the guard kept out */
    struct race_wrong wrong;
};

static struct race *racing; /* for the disk's operations, which are told of none */

struct walker {
    struct race *race;
    uint64_t seed;
    struct race_lookup own; /* of lookups of the gpu, as the rest */
    struct hps_lookup_part part;
};

static void fill_row(uint64_t *row, hps_key key, uint64_t sequence)
{
    for (unsigned i = 0; i < ROW_WORDS; i += 2) {
        row[i] = key;
        row[i + 1] = sequence;
    }
}

static void report(struct race *race, const char *what, hps_key key, uint64_t found, uint64_t floor)
{
    race_report(&race->wrong, "%s: key %llu is of %llu, published %llu%s", what,
                (unsigned long long)key, (unsigned long long)found, (unsigned long long)floor >> 1,
                floor % 2 != 0 ? " (deleted)" : "");
}

/* ---- lookups --------------------------------------------------------------------------------- */

/* What a lookup of the key that begins now must see at least. */
static uint64_t floor_of(struct race *race, hps_key key)
{
    uint64_t published = atomic_load(&race->published[key]);
    uint64_t started = atomic_load(&race->started[key]);
    return hps_update_sequence(race->version) >= started >> 1 ? started : published;
}

static void check_found(struct race *race, hps_key key, const uint64_t *row, uint64_t floor)
{
    uint64_t sequence = row[1];
    for (unsigned i = 0; i < ROW_WORDS; i += 2) {
        if (row[i] != key || row[i + 1] != sequence) {
            report(race, "torn row", key, row[i + 1], floor);
            return;
        }
    }
    if (sequence < floor >> 1 || (sequence == floor >> 1 && floor % 2 != 0)) {
        report(race, "stale row", key, sequence, floor);
    }
}

static void check_missing(struct race *race, hps_key key, uint64_t floor)
{
    if (floor % 2 == 0 && atomic_load(&race->deletes[key]) <= floor >> 1) {
        report(race, "lost row", key, 0, floor);
    }
}

static void get(struct race *race, uint32_t tier, struct hps_batch *batch)
{
    struct hps_space *space = race->version->tiers[tier];
    if (space->store->ops->get(space, &no_limit, &race->version->tables[0], batch) != HPS_OK) {
        report(race, "failed get", batch->keys[0], 0, 0);
    }
}

static bool never(const void *ctx)
{
    (void)ctx;
    return false;
}

/* As a lookup does: host map, then disk; what the disk had is inserted above. */
static void walk_tiers(struct race *race, struct hps_batch *batch, struct hps_walk *walk)
{
    const struct hps_walk_call call = {.cancelled = never};
    struct hps_error err = {0};
    hps_walk_init(walk, race->seen, &race->seen->tables[0], batch);
    hps_status status = hps_walk_memory(walk, &call, &err);
    if (status == HPS_OK && !hps_walk_done(walk)) {
        status = hps_walk_rest(walk, &call, &err);
    }
    if (status != HPS_OK || walk->batch.n > 0) {
        report(race, err.text, 0, 0, 0);
    }
    atomic_fetch_add(&race->n_stale, walk->reports[HPS_TIER_HOST].n_stale);
}

static void do_lookup(struct race *race, uint64_t *seed)
{
    hps_key keys[WALK_KEYS];
    uint32_t slots[WALK_KEYS];
    uint64_t floors[WALK_KEYS];
    uint64_t rows[WALK_KEYS][ROW_WORDS];
    hps_key first = race_draw(seed) % N_KEYS;
    for (uint32_t i = 0; i < WALK_KEYS; i++) {
        keys[i] = (first + (hps_key)i * 7) % N_KEYS;
        slots[i] = i;
        floors[i] = floor_of(race, keys[i]);
    }
    struct hps_batch batch = {
        .keys = keys, .slots = slots, .rows = (uint8_t *)rows, .n = WALK_KEYS};
    struct hps_walk walk;
    walk_tiers(race, &batch, &walk);
    for (uint32_t i = 0; i < WALK_KEYS; i++) {
        if (i < walk.n_absent) {
            check_missing(race, keys[i], floors[slots[i]]);
        } else {
            check_found(race, keys[i], rows[slots[i]], floors[slots[i]]);
        }
    }
}

static void run_lookup(struct walker *walker, const hps_key *keys)
{
    struct race *race = walker->race;
    struct hps_error err = {0};

    hps_arena_reset(walker->own.arena);
    walker->part = (struct hps_lookup_part){
        .table = &race->seen->tables[0], .keys = (const uint8_t *)keys, .n_keys = WALK_KEYS};
    walker->own.lookup =
        (struct hps_lookup){.version = race->seen,
                            .arena = walker->own.arena,
                            .parts = &walker->part,
                            .n_parts = 1,
                            .miss_policy = HPS_MISS_EXACT,
                            .unknown_policy = HPS_UNKNOWN_ZERO,
                            .path = (enum hps_lookup_path)(race_draw(&walker->seed) % 3),
                            .blocks = race->blocks};
    if (race_lookup_run(&walker->own, &err) != HPS_OK) {
        report(race, err.text, 0, 0, 0);
    }
    atomic_fetch_add(&race->n_gpu, walker->part.walk.reports[HPS_TIER_GPU].n_found);
    atomic_fetch_add(&race->n_stale, walker->part.walk.reports[HPS_TIER_GPU].n_stale);
}

static void lookup_with_gpu(struct walker *walker)
{
    struct race *race = walker->race;
    hps_key keys[WALK_KEYS];
    uint64_t floors[WALK_KEYS];
    hps_key first = race_draw(&walker->seed) % N_KEYS;

    for (uint32_t i = 0; i < WALK_KEYS; i++) {
        keys[i] = (first + (hps_key)i * 7) % N_KEYS;
        floors[i] = floor_of(race, keys[i]);
    }
    run_lookup(walker, keys);
    for (uint32_t i = 0; i < WALK_KEYS; i++) {
        const uint8_t *status = walker->part.key_status;
        uint64_t row[ROW_WORDS];
        memcpy(row, walker->part.rows + i * sizeof(row), sizeof(row));
        if (status != NULL && status[i] != HPS_KEY_FOUND) {
            check_missing(race, keys[i], floors[i]);
        } else {
            check_found(race, keys[i], row, floors[i]);
        }
    }
    hps_block_unref(walker->own.lookup.block);
}

/* The host map's own, a little later: an update may come between the read of a row and this. */
static hps_status insert_late(struct hps_space *space, const struct hps_call *call,
                              const struct hps_table *table, const hps_key *keys,
                              const uint32_t *slots, const uint8_t *rows, uint32_t n,
                              const struct hps_insert_guard *guard,
                              struct hps_insert_report *out_report)
{
    sched_yield();
    return host_insert(space, call, table, keys, slots, rows, n, guard, out_report);
}

/* The updater asks for some keys of its batches, too, and cannot wait for itself. */
static _Thread_local bool is_updater;

/* The disk's own, answered after an update that it came before, so that its rows are offered to the
 * gpu when they may be stale. */
static hps_status get_late(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, struct hps_batch *batch)
{
    struct race *race = racing;
    hps_status status = disk_get(space, call, table, batch);
    uint64_t n_batches = atomic_load(&race->n_batches);

    while (!is_updater && atomic_load(&race->n_batches) < n_batches + 2 &&
           !atomic_load(&race->stop)) {
        sched_yield();
    }
    return status;
}

static void *walker_main(void *arg)
{
    struct walker *walker = arg;
    while (!atomic_load(&walker->race->stop)) {
        if (walker->race->gpu != NULL) {
            lookup_with_gpu(walker);
        } else {
            do_lookup(walker->race, &walker->seed);
        }
    }
    return NULL;
}

/* ---- evictions and updates ------------------------------------------------------------------- */

static void *evictor_main(void *arg)
{
    struct race *race = arg;
    struct hps_space *host = race->version->tiers[0];
    uint64_t seed = 99;
    while (!atomic_load(&race->stop)) {
        hps_key key = race_draw(&seed) % N_KEYS;
        if (host->store->ops->erase(host, &no_limit, &race->version->tables[0], &key, 1) !=
            HPS_OK) {
            report(race, "failed eviction", key, 0, 0);
        }
        if (race->gpu != NULL && key % 2 == 0) {
            hps_gpu_update(race->version->gpu, 0, &key, NULL, 1);
        }
        sched_yield();
    }
    return NULL;
}

struct batch {
    hps_key puts[BATCH_KEYS], deletes[BATCH_KEYS];
    uint64_t rows[BATCH_KEYS][ROW_WORDS];
    struct hps_update_part parts[2];
};

static void fill_batch(struct race *race, uint64_t sequence, uint64_t *seed, struct batch *batch)
{
    struct hps_update_part *puts = &batch->parts[0];
    struct hps_update_part *deletes = &batch->parts[1];
    hps_key first = race_draw(seed) % N_KEYS;
    *puts = (struct hps_update_part){
        .row_bytes = ROW_BYTES, .keys = batch->puts, .rows = (const uint8_t *)batch->rows};
    *deletes = (struct hps_update_part){.keys = batch->deletes};
    for (uint32_t i = 0; i < BATCH_KEYS; i++) {
        hps_key key = (first + (hps_key)i * 3) % N_KEYS;
        bool deleted = race_draw(seed) % 8 == 0;
        if (deleted) {
            batch->deletes[deletes->n++] = key;
            atomic_store(&race->deletes[key], sequence);
        } else {
            fill_row(batch->rows[puts->n], key, sequence);
            batch->puts[puts->n++] = key;
        }
        atomic_store(&race->started[key], sequence << 1 | (deleted ? 1 : 0));
    }
}

static void publish(struct race *race, const struct batch *batch)
{
    for (unsigned p = 0; p < 2; p++) {
        for (uint32_t i = 0; i < batch->parts[p].n; i++) {
            hps_key key = batch->parts[p].keys[i];
            atomic_store(&race->published[key], atomic_load(&race->started[key]));
        }
    }
}

static bool has_seen_memory(const struct race *race)
{
    return race->gpu != NULL ? atomic_load(&race->n_gpu) > 0 : race->dense || race->n_evicted > 0;
}

/* Whether the race has been one: who runs when is the machine's to say, and a busy one may let all
 * updates by before the first lookup. */
static bool has_seen_all(struct race *race)
{
    struct hps_space *host = race->version->tiers[0];

    if (!race->guarded || atomic_load(&race->wrong.n) > 0) {
        return atomic_load(&race->wrong.n) > 0;
    }
    race->n_evicted += host->store->ops->limits->evictions_take(host, &race->version->tables[0]);
    return atomic_load(&race->n_stale) > 0 && has_seen_memory(race);
}

static void *updater_main(void *arg)
{
    struct race *race = arg;
    struct batch batch;
    struct hps_error err;
    uint64_t seed = 7;
    is_updater = true;
    for (uint64_t i = 1; i <= N_BATCHES_MAX; i++) {
        const struct hps_update_batch update = {
            .parts = batch.parts, .n_parts = 2, .nan_allowed = true};
        fill_batch(race, i, &seed, &batch);
        if (hps_update_apply(race->version, &update, &err) != HPS_OK) {
            report(race, err.text, 0, i, 0);
        }
        publish(race, &batch);
        if (race->gpu != NULL) { /* or its queue would have no room for insertions */
            hps_gpu_tier_sync(race->gpu);
        }
        race->n_batches = i;
        if (i >= race->n_batches_min) {
            if (has_seen_all(race)) {
                break;
            }
            sched_yield();
        }
    }
    atomic_store(&race->stop, true);
    return NULL;
}

/* ---- the race -------------------------------------------------------------------------------- */

/* A version of one table over the race's stores. spaces: NULL, or those to use. */
static struct hps_version *open_version(struct race *race, struct hps_space *const *spaces)
{
    const struct hps_table table = {.id = 0,
                                    .dim = ROW_BYTES / 4,
                                    .row_bytes = ROW_BYTES,
                                    .dtype = HPS_DTYPE_FP32,
                                    .n_rows = N_KEYS};
    struct hps_version *version = hps_version_new("m", 1, 1);
    struct hps_error err;
    version->tables[0] = table;
    version->tables[0].name = hps_strdup("t");
    const struct hps_space_id id = {"m", 1, version->tables, 1, 0};
    for (uint32_t i = 0; i < 2; i++) {
        if (spaces != NULL) {
            version->tiers[i] = spaces[i];
        } else {
            assert_int_equal(
                race->stores[i]->ops->space_open(race->stores[i], &id, &version->tiers[i], &err),
                HPS_OK);
        }
        version->n_tiers++;
    }
    return version;
}

static void open_race(struct race *race)
{
    const struct hps_fake_options disk = {
        .name = "disk", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_DURABLE | HPS_STORE_BLOCKING};
    struct hps_error err;
    pthread_mutex_init(&race->wrong.lock, NULL);
    const struct hps_host_map_options host = {.bytes_max = UINT64_C(64) << 20,
                                              .evicts = true,
                                              .dense = race->dense,
                                              .rows_max = race->dense ? 0 : N_KEYS / 2,
                                              .target_ratio = 0.9};
    assert_int_equal(hps_host_map_open_with(&host, &race->stores[0], &err), HPS_OK);
    race->late_ops = *race->stores[0]->ops;
    host_insert = race->late_ops.insert;
    race->late_ops.insert = insert_late;
    race->stores[0]->ops = &race->late_ops;
    race->stores[1] = hps_fake_store_new(&disk);
    race->version = open_version(race, NULL);
    assert_int_equal(hps_update_open(race->version, &err), HPS_OK);
    hps_version_pin(race->version);
    if (race->dense) {
        hps_key keys[FIRST_KEYS];
        for (uint32_t i = 0; i < FIRST_KEYS; i++) {
            keys[i] = i;
        }
        assert_int_equal(race->stores[0]->ops->limits->reserve(race->version->tiers[0],
                                                               &race->version->tables[0], keys,
                                                               FIRST_KEYS, &err),
                         HPS_OK);
    }
    race->seen = race->guarded ? race->version : open_version(race, race->version->tiers);
    if (race->seen != race->version) {
        hps_absent_free(race->seen->absent); /* which updates know nothing of */
        race->seen->absent = NULL;
    }
    for (hps_key key = 0; key < N_KEYS; key++) {
        uint64_t row[ROW_WORDS];
        struct hps_space *space = race->version->tiers[1];
        fill_row(row, key, 0);
        assert_int_equal(space->store->ops->put(space, &no_limit, &race->version->tables[0], &key,
                                                (const uint8_t *)row, 1),
                         HPS_OK);
    }
}

/* Above the others. Of a version that is seen without stamps the host map is taken out, so that
 * what is stale is the gpu's. */
static void open_gpu(struct race *race)
{
    race->blocks = hps_block_pool_new(0);
    assert_int_equal(hps_block_pool_slab_add(race->blocks, RACE_GPU_SLAB), HPS_OK);
    race->gpu = race_gpu_open(race->version, race->blocks, N_KEYS, 1 << 20);
    disk_get = race->stores[1]->ops->get;
    race->late_disk = *race->stores[1]->ops;
    race->late_disk.get = get_late;
    racing = race;
    race->stores[1]->ops = &race->late_disk;
    if (race->seen != race->version) {
        race->seen->gpu = race->version->gpu;
        race->seen->tiers[0] = race->seen->tiers[1];
        race->seen->n_tiers = 1;
    }
}

static void close_race(struct race *race)
{
    race_gpu_close(race->gpu, race->version);
    hps_block_pool_free(race->blocks);
    for (uint32_t i = 0; i < 2; i++) {
        race->stores[i]->ops->space_close(race->version->tiers[i]);
        race->stores[i]->ops->close(race->stores[i]);
    }
    if (race->seen != race->version) {
        hps_version_free(race->seen);
    }
    hps_version_unpin(race->version);
    hps_version_free(race->version);
    pthread_mutex_destroy(&race->wrong.lock);
}

/* Nothing moves any more: tiers that have a key agree with what was published last. */
static void check_at_rest(struct race *race)
{
    for (hps_key key = 0; key < N_KEYS; key++) {
        uint64_t state = atomic_load(&race->published[key]);
        for (uint32_t tier = 0; tier < 2; tier++) {
            hps_key asked = key;
            uint32_t slot = 0;
            uint64_t row[ROW_WORDS];
            struct hps_batch batch = {
                .keys = &asked, .slots = &slot, .rows = (uint8_t *)row, .n = 1};
            get(race, tier, &batch);
            if (batch.n == 0) {
                check_found(race, key, row, state);
            } else if (tier == 1) {
                check_missing(race, key, state);
            }
        }
    }
}

static void run_race(struct race *race)
{
    struct race_thread threads[N_WALKERS + 2] = {{evictor_main, race}, {updater_main, race}};
    struct walker walkers[N_WALKERS];
    for (unsigned i = 0; i < N_WALKERS; i++) {
        walkers[i] = (struct walker){
            .race = race, .seed = 1000 * (i + 1), .own.arena = hps_arena_new(4096, 1 << 20)};
        threads[2 + i] = (struct race_thread){walker_main, &walkers[i]};
    }
    race_run(threads, N_WALKERS + 2);
    for (unsigned i = 0; i < N_WALKERS; i++) {
        if (race->gpu != NULL) {
            lookup_with_gpu(&walkers[i]);
        }
        hps_arena_free(walkers[i].own.arena);
    }
    check_at_rest(race);
}

/* guarded: no row is stale, torn or lost; else some are found. */
static void run_case(bool guarded, bool gpu, bool dense)
{
    struct race *race = hps_calloc(1, sizeof(*race));
    race->guarded = guarded;
    race->dense = dense;
    race->n_batches_min = !guarded ? 0 : gpu ? N_BATCHES_GPU : N_BATCHES;
    open_race(race);
    if (gpu) {
        open_gpu(race);
    }
    run_race(race);
    if (guarded) {
        assert_string_equal(race->wrong.text, "");
        assert_true(race->n_stale > 0); /* there was something to catch */
        assert_true(has_seen_memory(race));
        assert_int_equal(hps_update_sequence(race->version), race->n_batches);
    } else {
        print_message("found, as it must be: %s\n", race->wrong.text);
        assert_true(race->wrong.n > 0);
    }
    assert_int_equal(hps_update_dense_rows(race->version, 0) > 0, dense);
    close_race(race);
    hps_free(race);
}

static void test_race_when_insertions_are_guarded_then_no_row_is_stale_torn_or_lost(void **state)
{
    (void)state;
    run_case(true, false, false);
    run_case(true, true, false);
    run_case(true, false, true);
}

static void test_race_when_the_guard_is_removed_then_stale_rows_are_found(void **state)
{
    (void)state;
    run_case(false, false, false);
    run_case(false, true, false);
    run_case(false, false, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_race_when_insertions_are_guarded_then_no_row_is_stale_torn_or_lost),
        cmocka_unit_test(test_race_when_the_guard_is_removed_then_stale_rows_are_found),
    };
    return cmocka_run_group_tests_name("update_race", tests, NULL, NULL);
}
