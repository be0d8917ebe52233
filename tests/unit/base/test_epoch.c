/* SPDX-License-Identifier: Apache-2.0
 *
 * Reclamation: rules on one thread, then a race of readers and writers.
 */
#include "base/epoch.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "tests/lib/fault_heap.h"

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static void test_passed_when_no_reader_then_at_once(void **state)
{
    (void)state;
    struct hps_epoch *epoch = hps_epoch_new();
    for (unsigned i = 0; i < 10; i++) {
        assert_true(hps_epoch_passed(epoch, hps_epoch_retire(epoch)));
    }
    hps_epoch_free(epoch);
    hps_epoch_free(NULL);
}

static void test_passed_when_reader_inside_then_after_it_left(void **state)
{
    (void)state;
    struct hps_epoch *epoch = hps_epoch_new();
    uint64_t before = hps_epoch_retire(epoch);
    struct hps_epoch_slot *early = hps_epoch_enter(epoch);
    uint64_t stamp = hps_epoch_retire(epoch);
    struct hps_epoch_slot *late = hps_epoch_enter(epoch);
    assert_true(hps_epoch_passed(epoch, before)); /* retired before any reader entered */
    assert_false(hps_epoch_passed(epoch, stamp));
    hps_epoch_leave(epoch, early);
    assert_true(hps_epoch_passed(epoch, stamp)); /* the late reader cannot have seen it */
    uint64_t next = hps_epoch_retire(epoch);
    assert_false(hps_epoch_passed(epoch, next));
    hps_epoch_leave(epoch, late);
    assert_true(hps_epoch_passed(epoch, next));
    assert_true(hps_epoch_passed(epoch, stamp));
    hps_epoch_free(epoch);
}

static void test_enter_when_more_readers_than_slots_then_all_counted(void **state)
{
    (void)state;
    enum { N = 300 };
    static struct hps_epoch_slot *slots[N];
    struct hps_epoch *epoch = hps_epoch_new();
    for (unsigned i = 0; i < N; i++) {
        slots[i] = hps_epoch_enter(epoch);
        for (unsigned j = 0; j < i; j++) {
            assert_ptr_not_equal(slots[i], slots[j]);
        }
    }
    uint64_t stamp = hps_epoch_retire(epoch);
    for (unsigned i = 0; i < N; i++) {
        assert_false(hps_epoch_passed(epoch, stamp));
        hps_epoch_leave(epoch, slots[i]);
    }
    assert_true(hps_epoch_passed(epoch, stamp));
    hps_epoch_free(epoch);
}

static void test_free_when_reader_inside_then_assert(void **state)
{
    (void)state;
    struct hps_epoch *epoch = hps_epoch_new();
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
    hps_assert_hook(hook);
    expect_assert_failure(hps_epoch_free(epoch));
    hps_assert_hook(NULL);
    hps_epoch_leave(epoch, slot);
    hps_epoch_free(epoch);
}

static void epoch_scenario(void *ctx)
{
    (void)ctx;
    struct hps_epoch *epoch = hps_epoch_new();
    if (epoch != NULL) {
        hps_epoch_leave(epoch, hps_epoch_enter(epoch));
        hps_epoch_free(epoch);
    }
}

static void test_epoch_when_allocation_fails_then_null(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(epoch_scenario, NULL), 1);
}

/* Stress test: two writers publish rows filled with one number in a shared place, retire the old
 * row, and overwrite it once it has passed. Readers copy the published row with plain memcpy.
 * They must never see two numbers in it, nor ThreadSanitizer a race. */
enum { ROW_WORDS = 64, N_ROWS = 8, N_READERS = 3, N_WRITERS = 2, N_SWAPS = 4000 };

struct row {
    uint64_t words[ROW_WORDS];
    uint64_t stamp;
};

struct torture {
    struct hps_epoch *epoch;
    _Atomic(struct row *) published;
    atomic_uint n_writers_done;
    atomic_uint n_torn;
};

static void *torture_read(void *arg)
{
    struct torture *torture = arg;
    while (atomic_load(&torture->n_writers_done) < N_WRITERS) {
        uint64_t copy[ROW_WORDS];
        struct hps_epoch_slot *slot = hps_epoch_enter(torture->epoch);
        const struct row *row = atomic_load_explicit(&torture->published, memory_order_acquire);
        memcpy(copy, row->words, sizeof(copy));
        hps_epoch_leave(torture->epoch, slot);
        for (unsigned i = 1; i < ROW_WORDS; i++) {
            if (copy[i] != copy[0]) {
                atomic_fetch_add(&torture->n_torn, 1);
            }
        }
    }
    return NULL;
}

static void *torture_write(void *arg)
{
    struct torture *torture = arg;
    static _Thread_local struct row first_rows[N_ROWS];
    struct row *ring[N_ROWS]; /* retired rows, oldest first */
    unsigned oldest = 0;
    for (unsigned i = 0; i < N_ROWS; i++) {
        ring[i] = &first_rows[i]; /* stamp 0 has always passed */
    }
    for (unsigned n = 1; n <= N_SWAPS; n++) {
        struct row *row = ring[oldest];
        while (!hps_epoch_passed(torture->epoch, row->stamp)) {
            sched_yield();
        }
        for (unsigned i = 0; i < ROW_WORDS; i++) {
            row->words[i] = n;
        }
        struct row *old = atomic_exchange(&torture->published, row);
        old->stamp = hps_epoch_retire(torture->epoch);
        ring[oldest] = old;
        oldest = (oldest + 1) % N_ROWS;
    }
    atomic_fetch_add(&torture->n_writers_done, 1);
    /* The rows are in this thread's memory: stay until no reader can use them. */
    while (atomic_load(&torture->n_writers_done) <= N_WRITERS) {
        sched_yield();
    }
    return NULL;
}

static void test_epoch_when_readers_and_writers_race_then_no_torn_row(void **state)
{
    (void)state;
    static struct row initial;
    struct torture torture = {.epoch = hps_epoch_new()};
    atomic_init(&torture.published, &initial);
    pthread_t readers[N_READERS];
    pthread_t writers[N_WRITERS];
    for (unsigned i = 0; i < N_READERS; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, torture_read, &torture), 0);
    }
    for (unsigned i = 0; i < N_WRITERS; i++) {
        assert_int_equal(pthread_create(&writers[i], NULL, torture_write, &torture), 0);
    }
    for (unsigned i = 0; i < N_READERS; i++) {
        pthread_join(readers[i], NULL);
    }
    atomic_fetch_add(&torture.n_writers_done, 1); /* lets the writers end */
    for (unsigned i = 0; i < N_WRITERS; i++) {
        pthread_join(writers[i], NULL);
    }
    assert_int_equal(atomic_load(&torture.n_torn), 0);
    hps_epoch_free(torture.epoch);
}

static void *enter_and_leave(void *arg)
{
    for (unsigned i = 0; i < 200; i++) {
        struct hps_epoch_slot *slot = hps_epoch_enter(arg);
        sched_yield();
        hps_epoch_leave(arg, slot);
    }
    return NULL;
}

static void test_epoch_when_more_threads_than_slots_then_none_lost(void **state)
{
    (void)state;
    enum { N = 80 };
    pthread_t threads[N];
    struct hps_epoch *epoch = hps_epoch_new();
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, enter_and_leave, epoch), 0);
    }
    for (unsigned i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_true(hps_epoch_passed(epoch, hps_epoch_retire(epoch)));
    hps_epoch_free(epoch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passed_when_no_reader_then_at_once),
        cmocka_unit_test(test_passed_when_reader_inside_then_after_it_left),
        cmocka_unit_test(test_enter_when_more_readers_than_slots_then_all_counted),
        cmocka_unit_test(test_free_when_reader_inside_then_assert),
        cmocka_unit_test(test_epoch_when_allocation_fails_then_null),
        cmocka_unit_test(test_epoch_when_readers_and_writers_race_then_no_torn_row),
        cmocka_unit_test(test_epoch_when_more_threads_than_slots_then_none_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
