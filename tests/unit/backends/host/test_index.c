/* SPDX-License-Identifier: Apache-2.0
 *
 * The index grows in small steps and keeps every key with its state. Its charge stays near the
 * size of the larger array. Erased slots and overflow marks are reused.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "backends/host/index.h"
#include "base/hash.h"
#include "base/heap.h"
#include "tests/lib/work.h"

static struct hps_host_budget budget;
static struct hps_host_account account;
static struct hps_epoch *epoch;
static struct hps_host_index index_;

static int set_up(void **state)
{
    (void)state;
    budget = (struct hps_host_budget){.bytes_max = UINT64_C(1) << 32};
    hps_host_account_init(&account, &budget);
    epoch = hps_epoch_new();
    return hps_host_index_open(&index_, &account, epoch, 12345, 0) == HPS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    hps_host_index_close(&index_);
    hps_epoch_free(epoch);
    return atomic_load(&budget.used_bytes) == 0 ? 0 : -1;
}

static void add(uint64_t i)
{
    assert_int_equal(hps_host_index_ensure_capacity(&index_), HPS_OK);
    assert_int_equal(hps_host_index_add(&index_, hps_mix64(i), (uint32_t)i, i % 3 == 0), HPS_OK);
}

static void check(uint64_t i)
{
    struct hps_host_place place = hps_host_index_find(&index_, hps_mix64(i));
    assert_non_null(place.bucket);
    assert_int_equal(hps_host_row_of(place), i);
    assert_int_equal(hps_host_is_marked(place), i % 3 == 0);
    assert_int_equal(hps_host_heat(place), i % 5 == 0 ? 2 : 0);
}

static void heat(uint64_t i)
{
    struct hps_host_place place = hps_host_index_find(&index_, hps_mix64(i));
    if (i % 5 == 0) {
        hps_host_touch(place);
        hps_host_touch(place);
    }
}

static void test_growth_when_in_progress_then_every_key_is_found_after_every_step(void **state)
{
    (void)state;
    enum { N = 3000 };
    uint64_t n_steps = 0;
    for (uint64_t i = 0; i < N; i++) {
        add(i);
        heat(i);
        uint64_t moved = atomic_load(&atomic_load(&index_.now)->moved);
        bool more = hps_host_index_step(&index_);
        if (more) {
            n_steps++;
            assert_true(atomic_load(&atomic_load(&index_.now)->moved) - moved <= 40);
        }
        if (i > N / 2 && more) {
            for (uint64_t k = 0; k <= i; k++) {
                check(k);
            }
        }
    }
    assert_true(n_steps > 20);
    assert_int_equal(index_.n_keys, N);
}

/* With rows of 128 bytes, all memory is at most 1.2 times the rows: the index, growth included,
 * has 25 bytes per key. */
static void test_growth_when_large_then_charged_little_more_than_one_index(void **state)
{
    (void)state;
    enum { N = HPS_TEST_WORK(2000000) };
    for (uint64_t i = 0; i < N; i++) {
        add(i);
        (void)hps_host_index_step(&index_);
        if (i > 100000 && i % 64 == 0) {
            assert_true(atomic_load(&account.used_bytes) <= i * 24);
        }
    }
    for (uint64_t i = 0; i < N; i += 7) {
        assert_int_equal(hps_host_row_of(hps_host_index_find(&index_, hps_mix64(i))), i);
    }
}

static void test_growth_when_reader_stays_inside_then_it_finds_all_and_growth_continues(
    void **state)
{
    (void)state;
    enum { N = HPS_TEST_WORK(400000) };
    for (uint64_t i = 0; i < N / 4; i++) {
        add(i);
    }
    struct hps_epoch_slot *reader = hps_epoch_enter(epoch);
    const struct hps_host_buckets *seen = atomic_load(&index_.now);
    for (uint64_t i = N / 4; i < N; i++) {
        add(i);
        (void)hps_host_index_step(&index_);
    }
    assert_true(seen != atomic_load(&index_.now));
    for (uint64_t i = 0; i < N / 4; i++) { /* in the array that it has seen first */
        struct hps_host_place place = hps_host_probe(
            hps_host_aim(seen, hps_host_hash(index_.seed, hps_mix64(i))), hps_mix64(i));
        assert_non_null(place.bucket);
        assert_int_equal(hps_host_row_of(place), i);
    }
    assert_non_null(index_.gone);
    hps_epoch_leave(epoch, reader);
    (void)hps_host_index_step(&index_);
    assert_null(index_.gone);
}

static void test_slots_when_killed_then_reused_only_once_buried(void **state)
{
    (void)state;
    enum { N = 1000, ROUNDS = HPS_TEST_WORK(300) };
    uint32_t generation = 0;
    uint64_t slot = 0;
    for (uint64_t i = 0; i < N; i++) {
        add(i);
    }
    while (hps_host_index_step(&index_)) {
    }
    const struct hps_host_buckets *now = atomic_load(&index_.now);
    for (uint64_t i = 0; i < (uint64_t)N * ROUNDS; i++) {
        struct hps_host_place place = hps_host_index_find(&index_, hps_mix64(i));
        assert_non_null(place.bucket);
        hps_host_index_kill(&index_, place, &generation, &slot);
        assert_int_equal(index_.n_dead, 1);
        add(i + N);
        struct hps_host_place other = hps_host_index_find(&index_, hps_mix64(i + N));
        assert_false(other.bucket == place.bucket && other.slot == place.slot);
        assert_null(hps_host_index_find(&index_, hps_mix64(i)).bucket);
        hps_host_index_bury(&index_, generation, slot);
        assert_int_equal(index_.n_dead, 0);
    }
    assert_ptr_equal(now, atomic_load(&index_.now)); /* the index did not grow */
    uint64_t n_passed = 0;
    for (uint64_t i = 0; i < (uint64_t)N; i++) {
        struct hps_host_place place = hps_host_index_find(&index_, hps_mix64(N * ROUNDS + i));
        hps_host_index_kill(&index_, place, &generation, &slot);
        hps_host_index_bury(&index_, generation, slot);
    }
    for (uint64_t i = 0; i < now->n_homes; i++) {
        n_passed += hps_host_passed(hps_host_state(&now->array[i])) ? 1 : 0;
    }
    assert_int_equal(n_passed, 0); /* no mark makes a miss probe further buckets */
}

static void test_bury_when_array_was_replaced_then_no_effect(void **state)
{
    (void)state;
    uint32_t generation = 0;
    uint64_t slot = 0;
    for (uint64_t i = 0; i < 100; i++) {
        add(i);
    }
    while (hps_host_index_step(&index_)) {
    }
    hps_host_index_kill(&index_, hps_host_index_find(&index_, hps_mix64(50)), &generation, &slot);
    assert_int_equal(hps_host_index_reserve(&index_, 1000), HPS_OK);
    while (hps_host_index_step(&index_)) {
    }
    assert_int_equal(index_.n_dead, 0);
    hps_host_index_bury(&index_, generation, slot);
    assert_int_equal(index_.n_dead, 0);
    assert_int_equal(index_.n_keys, 99);
}

static void test_clear_when_growing_then_empty_and_all_memory_is_released(void **state)
{
    (void)state;
    uint64_t i = 0;
    while (!hps_host_index_step(&index_) || i < 50000) {
        add(i++);
    }
    hps_host_index_clear(&index_);
    assert_int_equal(index_.n_keys, 0);
    assert_null(hps_host_index_find(&index_, hps_mix64(1)).bucket);
    (void)hps_host_index_step(&index_);
    assert_int_equal(atomic_load(&account.used_bytes), 0);
    add(1);
    assert_non_null(hps_host_index_find(&index_, hps_mix64(1)).bucket);
}

/* ---- readers where buckets move -------------------------------------------------------------- */

enum {
    N_EDGE = 40000,
    EDGE = 24,
#ifdef HPS_TSAN
    ROUNDS = 4,
#else
    ROUNDS = 12,
#endif
};

struct edge {
    hps_key keys[N_EDGE]; /* sorted by hash, and so by bucket */
    atomic_bool done;
    atomic_ulong n_found;
    atomic_uint n_missed;
};

static int by_hash(const void *a, const void *b)
{
    uint64_t x = hps_host_hash(index_.seed, *(const hps_key *)a);
    uint64_t y = hps_host_hash(index_.seed, *(const hps_key *)b);
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Look up the keys of buckets that are being moved. */
static void *find_at_the_edge(void *ctx)
{
    struct edge *edge = ctx;
    while (!atomic_load(&edge->done)) {
        struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
        const struct hps_host_buckets *now = atomic_load(&index_.now);
        const struct hps_host_buckets *from = atomic_load(&now->from);
        if (from != NULL) {
            uint64_t at = atomic_load(&now->moved) * N_EDGE / from->n_homes;
            uint64_t end = at + EDGE < N_EDGE ? at + EDGE : N_EDGE;
            for (uint64_t i = at > EDGE ? at - EDGE : 0; i < end; i++) {
                struct hps_host_place place = hps_host_index_find(&index_, edge->keys[i]);
                bool right = place.bucket != NULL && hps_host_row_of(place) == edge->keys[i] >> 40;
                atomic_fetch_add(&edge->n_found, right ? 1 : 0);
                atomic_fetch_add(&edge->n_missed, right ? 0 : 1);
            }
        }
        hps_epoch_leave(epoch, slot);
    }
    return NULL;
}

/* Readers do not wait while buckets move, and find each key in one of the two arrays. */
static void test_growth_when_readers_are_where_buckets_move_then_no_key_is_ever_missed(void **state)
{
    (void)state;
    struct edge *edge = hps_calloc(1, sizeof(*edge));
    pthread_t reader;
    for (uint64_t i = 0; i < N_EDGE; i++) {
        edge->keys[i] = hps_mix64(i + 1);
        assert_int_equal(hps_host_index_ensure_capacity(&index_), HPS_OK);
        assert_int_equal(
            hps_host_index_add(&index_, edge->keys[i], (uint32_t)(edge->keys[i] >> 40), false),
            HPS_OK);
    }
    qsort(edge->keys, N_EDGE, sizeof(hps_key), by_hash);
    assert_int_equal(pthread_create(&reader, NULL, find_at_the_edge, edge), 0);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        assert_int_equal(hps_host_index_reserve(&index_, (uint64_t)N_EDGE * (1 + round)), HPS_OK);
        while (hps_host_index_step(&index_)) {
            while (atomic_load(&edge->n_found) == 0) {
                sched_yield(); /* the reader begins while buckets move */
            }
        }
    }
    atomic_store(&edge->done, true);
    pthread_join(reader, NULL);
    assert_int_equal(atomic_load(&edge->n_missed), 0);
    assert_true(atomic_load(&edge->n_found) > 0);
    hps_free(edge);
}

/* A key with this hash. */
static hps_key key_with(uint64_t hash)
{
    uint64_t inverse = 1; /* of the factor, by Newton's method */
    for (unsigned i = 0; i < 6; i++) {
        inverse *= 2 - UINT64_C(0xd6e8feb86659fd93) * inverse;
    }
    uint64_t h = hash ^ (hash >> 32);
    h *= inverse;
    h ^= h >> 32;
    h *= inverse;
    h ^= h >> 32;
    return h ^ index_.seed;
}

/* The i-th of many keys that hash to one bucket, `share` sixteenths of the way from the first
 * home to the last. */
static hps_key crowded(unsigned share, uint64_t i)
{
    return key_with((share == 16 ? UINT64_MAX - 99999 : UINT64_MAX / 16 * share) + i);
}

/* More keys than all buckets from their home to the end have slots, and other keys in between.
 * Inserted keys are found at every step of a growth. Erased keys leave no trace. */
static void test_keys_when_all_hash_to_one_bucket_then_found_or_refused(void **state)
{
    (void)state;
    enum { N = 3000, N_CROWD = 400 };
    uint32_t generation[N_CROWD];
    uint64_t slot[N_CROWD];
    for (unsigned share = 0; share <= 16; share += 8) {
        assert_int_equal(hps_host_index_reserve(&index_, N + N_CROWD), HPS_OK);
        for (uint64_t i = 0; i < N; i++) {
            assert_int_equal(hps_host_index_add(&index_, hps_mix64(i), (uint32_t)i, false), HPS_OK);
        }
        uint32_t n_in = 0;
        hps_status status = HPS_OK;
        while (status == HPS_OK && n_in < N_CROWD) {
            status = hps_host_index_add(&index_, crowded(share, n_in), N + n_in, false);
            n_in += status == HPS_OK ? 1 : 0;
        }
        assert_true(share == 16 ? n_in > 100 && n_in < 200 : n_in == N_CROWD);
        assert_int_equal(hps_host_index_reserve(&index_, 2 * N), HPS_OK);
        bool more = true;
        while (more) {
            for (uint32_t i = 0; i < N_CROWD; i++) {
                struct hps_host_place place = hps_host_index_find(&index_, crowded(share, i));
                assert_true(i < n_in ? place.bucket != NULL : place.bucket == NULL);
                assert_true(i >= n_in || hps_host_row_of(place) == N + i);
            }
            more = hps_host_index_step(&index_);
        }
        for (uint32_t i = 0; i < n_in; i++) {
            hps_host_index_kill(&index_, hps_host_index_find(&index_, crowded(share, i)),
                                &generation[i], &slot[i]);
            assert_null(hps_host_index_find(&index_, crowded(share, i)).bucket);
        }
        for (uint32_t i = 0; i < n_in; i++) {
            hps_host_index_bury(&index_, generation[i], slot[i]);
        }
        for (uint64_t i = 0; i < N; i++) {
            assert_int_equal(hps_host_row_of(hps_host_index_find(&index_, hps_mix64(i))), i);
        }
        assert_int_equal(index_.n_keys, N);
        assert_int_equal(index_.n_dead, 0);
        hps_host_index_clear(&index_);
        (void)hps_host_index_step(&index_);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_growth_when_in_progress_then_every_key_is_found_after_every_step, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(
            test_growth_when_large_then_charged_little_more_than_one_index, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_growth_when_reader_stays_inside_then_it_finds_all_and_growth_continues, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(test_slots_when_killed_then_reused_only_once_buried, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            test_growth_when_readers_are_where_buckets_move_then_no_key_is_ever_missed, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(test_keys_when_all_hash_to_one_bucket_then_found_or_refused,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bury_when_array_was_replaced_then_no_effect, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            test_clear_when_growing_then_empty_and_all_memory_is_released, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("host_index", tests, NULL, NULL);
}
