/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes to a table without eviction while a reader stays inside. Memory that waits for the
 * reader is bounded and released later, and no write is refused for long.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "backends/host/map.h"
#include "backends/host/table.h"
#include "base/hash.h"
#include "base/heap.h"
#include "tests/lib/work.h"

enum { MIB = 1 << 20, ROW_MAX = 4096 };

struct rig {
    struct hps_host_shared shared;
    struct hps_host_table *table;
    atomic_bool incomplete;
    struct hps_epoch_slot *reader;
    uint32_t row_bytes;
};

static void open_rig(struct rig *rig, uint64_t bytes_max, uint32_t row_bytes)
{
    *rig = (struct rig){.row_bytes = row_bytes};
    rig->shared.budget.bytes_max = bytes_max;
    rig->shared.epoch = hps_epoch_new();
    rig->shared.seed = 12345;
    rig->shared.kernel = hps_host_kernel();
    rig->shared.rows_max = UINT64_MAX;
    rig->shared.rows_target = UINT64_MAX;
    assert_non_null(rig->shared.epoch);
    assert_int_equal(hps_host_table_new(&rig->shared, row_bytes, 0, &rig->incomplete, &rig->table),
                     HPS_OK);
}

static void reader_enter(struct rig *rig)
{
    rig->reader = hps_epoch_enter(rig->shared.epoch);
}

static void reader_leave(struct rig *rig)
{
    hps_epoch_leave(rig->shared.epoch, rig->reader);
    rig->reader = NULL;
}

static void close_rig(struct rig *rig)
{
    hps_host_table_free(rig->table);
    assert_int_equal(atomic_load(&rig->shared.budget.used_bytes), 0);
    hps_epoch_free(rig->shared.epoch);
}

static uint64_t used(const struct rig *rig)
{
    return atomic_load(&rig->shared.budget.used_bytes);
}

static void row_make(const struct rig *rig, uint8_t *row, hps_key key, uint64_t seq)
{
    uint64_t word = hps_mix64(key * 31 + seq);
    for (uint32_t i = 0; i < rig->row_bytes; i++) {
        row[i] = (uint8_t)(word >> (i % 8 * 8));
    }
}

static hps_status put(struct rig *rig, hps_key key, uint64_t seq)
{
    uint8_t row[ROW_MAX];
    row_make(rig, row, key, seq);
    return hps_host_table_put(rig->table, key, row);
}

static bool has(const struct rig *rig, hps_key key, uint64_t seq)
{
    uint8_t row[ROW_MAX];
    row_make(rig, row, key, seq);
    struct hps_host_place place = hps_host_index_find(&rig->table->index, key);
    return place.bucket != NULL &&
           memcmp(hps_host_row_at(&rig->table->rows, hps_host_row_of(place)), row,
                  rig->row_bytes) == 0;
}

/* ---- the index ------------------------------------------------------------------------------- */

/* Keys that are erased and added again under a reader reuse their own slots. The index of a few
 * keys does not fill up with dead slots, and no write is refused. */
static void test_keys_when_replaced_under_a_reader_then_index_stays_small(void **state)
{
    (void)state;
    enum { N = 2300, ROUNDS = 40 };
    struct rig rig;
    open_rig(&rig, UINT64_C(2048) * MIB, 13);
    for (hps_key key = 0; key < N; key++) {
        assert_int_equal(put(&rig, key, 0), HPS_OK);
    }
    uint64_t n_homes = atomic_load(&rig.table->index.now)->n_homes;
    reader_enter(&rig);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (hps_key key = 0; key < N; key++) {
            hps_host_table_erase(rig.table, key);
            assert_false(hps_host_table_has(rig.table, key));
            assert_int_equal(put(&rig, key, round), HPS_OK);
        }
    }
    assert_true(atomic_load(&rig.table->index.now)->n_homes <= 2 * n_homes);
    reader_leave(&rig);
    for (hps_key key = 0; key < N; key++) {
        assert_true(has(&rig, key, ROUNDS));
    }
    close_rig(&rig);
}

/* Only a few keys: all changes are near the end of the index. */
static void test_keys_when_a_few_are_replaced_under_a_reader_then_never_refused(void **state)
{
    (void)state;
    enum { N = 5, ROUNDS = 20000 };
    struct rig rig;
    open_rig(&rig, UINT64_C(2048) * MIB, 2);
    reader_enter(&rig);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        hps_key key = round % N;
        hps_host_table_erase(rig.table, key);
        assert_int_equal(put(&rig, key, round), HPS_OK);
    }
    assert_int_equal(rig.table->index.n_keys, N);
    assert_true(rig.table->index.n_dead <= 2 * N);
    reader_leave(&rig);
    close_rig(&rig);
}

/* A slot waits for the readers of the last erasure of its key, not of the first. */
static void test_slot_when_its_key_was_added_again_then_waits_for_the_last_readers(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig, 64 * MIB, 8);
    assert_int_equal(put(&rig, 1, 1), HPS_OK);
    struct hps_host_place first = hps_host_index_find(&rig.table->index, 1);
    reader_enter(&rig);
    hps_host_table_erase(rig.table, 1);
    assert_int_equal(put(&rig, 1, 2), HPS_OK);
    struct hps_host_place again = hps_host_index_find(&rig.table->index, 1);
    assert_true(first.bucket == again.bucket && first.slot == again.slot);
    hps_host_limbo_seal(&rig.table->limbo);
    struct hps_epoch_slot *late = hps_epoch_enter(rig.shared.epoch);
    reader_leave(&rig); /* only the second erasure has a reader */
    hps_host_table_erase(rig.table, 1);
    hps_host_limbo_seal(&rig.table->limbo);
    for (hps_key key = 2; key < 3000; key++) { /* reuses all that may leave limbo */
        assert_int_equal(put(&rig, key, 0), HPS_OK);
        assert_int_equal(put(&rig, key, 1), HPS_OK);
    }
    hps_epoch_leave(rig.shared.epoch, late);
    for (hps_key key = 2; key < 3000; key++) {
        assert_true(has(&rig, key, 1));
    }
    assert_false(hps_host_table_has(rig.table, 1));
    close_rig(&rig);
}

/* New keys each time: their slots cannot be reused under the reader, so the index grows. It
 * shrinks after the reader has left. */
static void test_index_when_new_keys_replace_old_ones_under_a_reader_then_shrinks_again(
    void **state)
{
    (void)state;
    enum { N = 1000, TURNS = 60000 };
    struct rig rig;
    open_rig(&rig, UINT64_C(2048) * MIB, 16);
    for (hps_key key = 0; key < N; key++) {
        assert_int_equal(put(&rig, key, 0), HPS_OK);
    }
    uint64_t n_homes = atomic_load(&rig.table->index.now)->n_homes;
    uint64_t before = used(&rig);
    reader_enter(&rig);
    for (hps_key key = N; key < N + TURNS; key++) {
        assert_int_equal(put(&rig, key, 0), HPS_OK);
        hps_host_table_erase(rig.table, key - N);
    }
    assert_true(atomic_load(&rig.table->index.now)->n_homes > 4 * n_homes);
    reader_leave(&rig);
    for (uint64_t i = 0; i < 3 * TURNS; i++) {
        assert_int_equal(put(&rig, TURNS + i % N, 1), HPS_OK);
    }
    assert_true(atomic_load(&rig.table->index.now)->n_homes <= 4 * n_homes);
    assert_true(used(&rig) <= before + MIB);
    for (hps_key key = TURNS; key < TURNS + N; key++) {
        assert_true(has(&rig, key, 1));
    }
    close_rig(&rig);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void test_rows_when_a_reader_stays_then_bounded_and_released(void **state)
{
    (void)state;
    enum { N = 1000, TURNS = HPS_TEST_WORK(400000), ROW = 512 };
    struct rig rig;
    open_rig(&rig, UINT64_C(2048) * MIB, ROW);
    for (hps_key key = 0; key < N; key++) {
        assert_int_equal(put(&rig, key, 0), HPS_OK);
    }
    uint64_t before = used(&rig);
    uint64_t n_refused = 0;
    uint64_t seqs[N] = {0};
    reader_enter(&rig);
    for (uint64_t seq = 1; seq < TURNS; seq++) {
        hps_status status = put(&rig, seq % N, seq);
        assert_true(status == HPS_OK || status == HPS_EXHAUSTED);
        n_refused += status != HPS_OK ? 1 : 0;
        seqs[seq % N] = status == HPS_OK ? seq : seqs[seq % N];
        assert_true(used(&rig) <= before + 18 * (uint64_t)MIB);
    }
    assert_true(n_refused > 0);
    assert_false(atomic_load(&rig.incomplete));
    for (hps_key key = 0; key < N; key++) { /* a refused write keeps the old row */
        assert_true(has(&rig, key, seqs[key]));
    }
    reader_leave(&rig);
    for (uint64_t seq = TURNS; seq < TURNS + 80 * N; seq++) {
        assert_int_equal(put(&rig, seq % N, seq), HPS_OK); /* without a retry */
        seqs[seq % N] = seq;
    }
    assert_true(used(&rig) <= before + MIB);
    for (hps_key key = 0; key < N; key++) {
        assert_true(has(&rig, key, seqs[key]));
    }
    close_rig(&rig);
}

/* Rows that no writer replaces are moved wherever they are, and stay visible to readers. */
static void test_rows_when_most_keys_are_erased_then_the_rest_move_and_memory_is_released(
    void **state)
{
    (void)state;
    enum { N = HPS_TEST_WORK(50000), STAYS = 100 };
    struct rig rig;
    static const uint32_t widths[] = {2, 60, 1040};
    for (unsigned w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        open_rig(&rig, UINT64_C(256) * MIB, widths[w]);
        for (hps_key key = 0; key < N; key++) {
            assert_int_equal(put(&rig, key, 0), HPS_OK);
        }
        uint64_t full = used(&rig);
        for (hps_key key = 0; key < N; key++) {
            if (key % STAYS != 0) {
                hps_host_table_erase(rig.table, key);
            }
        }
        for (uint64_t i = 0; i < 2 * N; i++) { /* calls that only do maintenance */
            hps_host_table_erase(rig.table, UINT64_MAX);
            if (i % 64 == 0) {
                assert_true(has(&rig, i / 64 * STAYS % N, 0));
            }
        }
        for (hps_key key = 0; key < N; key++) {
            assert_int_equal(hps_host_table_has(rig.table, key), key % STAYS == 0);
            assert_true(key % STAYS != 0 || has(&rig, key, 0));
        }
        assert_true(used(&rig) <= full / 10 || used(&rig) <= MIB);
        for (hps_key key = 0; key < N; key++) { /* the table grows again */
            assert_int_equal(put(&rig, key, 2), HPS_OK);
        }
        for (hps_key key = 0; key < N; key++) {
            assert_true(has(&rig, key, 2));
        }
        close_rig(&rig);
    }
}

/* ---- all at once ----------------------------------------------------------------------------- */

static const struct hps_call no_limit = {0};

struct race {
    struct hps_store *store;
    struct hps_space *space;
    struct hps_table table;
    atomic_bool done;
    atomic_ulong n_found;
    atomic_uint n_bad;
};

enum { RACE_KEYS = 2300, RACE_BATCH = 512 };

/* Rows contain the low bytes of their key. */
static void race_row(const struct race *race, uint8_t *row, hps_key key)
{
    memset(row, (int)(key & 0xff), race->table.row_bytes);
    row[1] = (uint8_t)(key >> 8);
}

static void *race_read(void *ctx)
{
    struct race *race = ctx;
    hps_key keys[RACE_BATCH];
    uint32_t slots[RACE_BATCH];
    uint8_t rows[RACE_BATCH * 64];
    uint64_t random = hps_mix64((uint64_t)(uintptr_t)&keys);
    while (!atomic_load(&race->done)) {
        hps_key asked[RACE_BATCH];
        for (uint32_t i = 0; i < RACE_BATCH; i++) {
            random = hps_mix64(random + i);
            keys[i] = asked[i] = random % RACE_KEYS;
            slots[i] = i;
        }
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = RACE_BATCH};
        hps_status status = race->store->ops->get(race->space, &no_limit, &race->table, &batch);
        unsigned n_bad = status == HPS_OK ? 0 : 1;
        for (uint32_t i = batch.n; i < RACE_BATCH; i++) {
            uint8_t wanted[64];
            race_row(race, wanted, asked[slots[i]]);
            const uint8_t *row = rows + (size_t)slots[i] * race->table.row_bytes;
            n_bad += memcmp(row, wanted, race->table.row_bytes) != 0 ? 1 : 0;
        }
        atomic_fetch_add(&race->n_bad, n_bad);
        atomic_fetch_add(&race->n_found, RACE_BATCH - batch.n);
    }
    return NULL;
}

/* Put or erase a key. A refused put is repeated until readers have left. */
static void race_write(struct race *race, uint64_t random)
{
    const struct hps_store_ops *ops = race->store->ops;
    hps_key key = random % RACE_KEYS;
    uint8_t row[64];
    race_row(race, row, key);
    if (random >> 62 == 0) {
        assert_int_equal(ops->erase(race->space, &no_limit, &race->table, &key, 1), HPS_OK);
        return;
    }
    hps_status status = HPS_EXHAUSTED;
    while (status == HPS_EXHAUSTED) {
        status = ops->put(race->space, &no_limit, &race->table, &key, row, 1);
        if (status == HPS_EXHAUSTED) {
            sched_yield();
        }
    }
    assert_int_equal(status, HPS_OK);
}

static void race_run(uint32_t row_bytes)
{
    enum { N_READERS = 3 };
    struct hps_error error;
    struct race race = {.table = {.name = "t", .dim = 1, .row_bytes = row_bytes}};
    struct hps_space_id id = {.model = "m", .version = 1, .tables = &race.table, .n_tables = 1};
    struct hps_store_usage usage;
    pthread_t readers[N_READERS];
    assert_int_equal(hps_host_map_open(UINT64_C(2048) * MIB, &race.store, &error), HPS_OK);
    const struct hps_store_ops *ops = race.store->ops;
    assert_int_equal(ops->space_open(race.store, &id, &race.space, &error), HPS_OK);
    for (unsigned i = 0; i < N_READERS; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, race_read, &race), 0);
    }
    for (uint64_t i = 0; i < HPS_TEST_WORK(1000000) || atomic_load(&race.n_found) < 10000; i++) {
        race_write(&race, hps_mix64(i));
        if (i % 4096 == 0) {
            ops->space_usage(race.space, &usage);
            assert_true(usage.used_bytes <= 20 * (uint64_t)MIB);
        }
    }
    atomic_store(&race.done, true);
    for (unsigned i = 0; i < N_READERS; i++) {
        pthread_join(readers[i], NULL);
    }
    assert_int_equal(atomic_load(&race.n_bad), 0);
    for (uint64_t i = 0; i < HPS_TEST_WORK(600000); i++) {
        race_write(&race, hps_mix64(i));
    }
    ops->space_usage(race.space, &usage);
    assert_true(usage.used_bytes <= 2 * (uint64_t)MIB);
    ops->space_close(race.space);
    ops->close(race.store);
}

static void test_table_when_small_with_changing_readers_then_never_refused_for_long(void **state)
{
    (void)state;
    race_run(2);
    race_run(60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_when_replaced_under_a_reader_then_index_stays_small),
        cmocka_unit_test(test_keys_when_a_few_are_replaced_under_a_reader_then_never_refused),
        cmocka_unit_test(test_slot_when_its_key_was_added_again_then_waits_for_the_last_readers),
        cmocka_unit_test(
            test_index_when_new_keys_replace_old_ones_under_a_reader_then_shrinks_again),
        cmocka_unit_test(test_rows_when_a_reader_stays_then_bounded_and_released),
        cmocka_unit_test(
            test_rows_when_most_keys_are_erased_then_the_rest_move_and_memory_is_released),
        cmocka_unit_test(test_table_when_small_with_changing_readers_then_never_refused_for_long),
    };
    return cmocka_run_group_tests_name("host_memory", tests, NULL, NULL);
}
