/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches and look-ups that hold them back: each waits for the other, and neither for ever nor for
 * a thread; and no client has more than its share.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/heap.h"
#include "cache/update/internal.h"
#include "tests/lib/nap.h"

enum { READS_MAX = 8, SHARE_US = HPS_UPDATE_HOLD_US_PER_S };

/* One that is read when it has its hold, until its gate is open. */
struct read {
    struct hps_update_hold hold;
    struct hold_test *test;
    uint64_t takes_us; /* of the fake clock */
    atomic_bool began, open, held, done;
};

struct hold_test {
    struct hps_version *version;
    struct hps_pool *pool; /* one thread, one task may wait */
    struct read reads[READS_MAX];
    atomic_uint n_read;
    struct read *order[READS_MAX]; /* as they were read */
    uint64_t sequences[READS_MAX]; /* batches that had been applied then */
    struct hps_task blocker;       /* of the thread */
    atomic_bool blocks, blocked;
    pthread_t batch;
    struct hps_metrics *metrics;
};

static void wait_for(const atomic_bool *flag)
{
    while (!atomic_load(flag)) {
        nap();
    }
}

static void run_read(struct hps_update_hold *hold, bool held)
{
    struct read *read = HPS_CONTAINER_OF(hold, struct read, hold);
    struct hold_test *t = read->test;
    unsigned i = atomic_fetch_add(&t->n_read, 1);
    t->order[i] = read;
    t->sequences[i] = hps_update_sequence(t->version);
    atomic_store(&read->held, held);
    atomic_store(&read->began, true);
    wait_for(&read->open);
    hps_clock_advance(read->takes_us);
    atomic_store(&read->done, true);
}

static int setup(void **state)
{
    static const struct hps_metric_family_def family = {
        .name = "hold", .labels = "", .type = HPS_METRIC_HISTOGRAM};
    struct hold_test *t = hps_calloc(1, sizeof(*t));
    hps_clock_fake(1000);
    t->version = hps_version_new("m", 1, 1);
    assert_non_null(t->version);
    t->version->updates = hps_calloc(1, sizeof(*t->version->updates));
    assert_non_null(t->version->updates);
    update_holds_init(t->version->updates);
    t->version->updates_free = hps_updates_free;
    assert_int_equal(hps_pool_new("io", 1, 1, &t->pool), HPS_OK);
    t->metrics = hps_metrics_new(&family, 1, 8);
    t->version->update_holds = hps_metric_get(t->metrics, 0, NULL);
    for (unsigned i = 0; i < READS_MAX; i++) {
        t->reads[i].test = t;
        t->reads[i].hold.run = run_read;
        atomic_store(&t->reads[i].open, true);
    }
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct hold_test *t = *state;
    hps_pool_free(t->pool);
    assert_true(hps_version_idle(t->version));
    hps_version_free(t->version);
    hps_metrics_free(t->metrics);
    hps_free(t);
    hps_clock_real();
    return 0;
}

static hps_status ask(struct hold_test *t, unsigned i)
{
    return hps_update_hold(t->version, t->pool, &t->reads[i].hold);
}

static bool is_held(struct hold_test *t)
{
    hps_lock_acquire(&t->version->updates->lock);
    bool held = update_is_held(t->version->updates);
    hps_lock_release(&t->version->updates->lock);
    return held;
}

static void wait_for_turn(struct hold_test *t, enum update_turn turn)
{
    bool waits = false;
    while (!waits) {
        hps_lock_acquire(&t->version->updates->lock);
        waits = t->version->updates->turn == turn;
        hps_lock_release(&t->version->updates->lock);
        nap();
    }
}

static void *batch_main(void *arg)
{
    struct hps_updates *updates = arg;
    update_turn_begin(updates);
    atomic_fetch_add(&updates->sequence, 1);
    update_turn_end(updates);
    return NULL;
}

/* A batch waits for its turn. */
static void start_batch(struct hold_test *t)
{
    assert_int_equal(pthread_create(&t->batch, NULL, batch_main, t->version->updates), 0);
    wait_for_turn(t, UPDATE_TURN_HELD_THEN_BATCH);
}

static void block(struct hps_task *task)
{
    struct hold_test *t = HPS_CONTAINER_OF(task, struct hold_test, blocker);
    atomic_store(&t->blocked, true);
    while (atomic_load(&t->blocks)) {
        nap();
    }
}

/* The pool's thread has something else to do. */
static void block_thread(struct hold_test *t)
{
    atomic_store(&t->blocks, true);
    t->blocker.run = block;
    assert_int_equal(hps_pool_post(t->pool, &t->blocker), HPS_OK);
    wait_for(&t->blocked);
}

/* Read i is read, and goes on for as long as its gate is shut. */
static void start_read(struct hold_test *t, unsigned i)
{
    atomic_store(&t->reads[i].open, false);
    assert_int_equal(ask(t, i), HPS_OK);
    wait_for(&t->reads[i].began);
}

static void open_gate(struct hold_test *t, unsigned i)
{
    atomic_store(&t->reads[i].open, true);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void test_hold_when_no_thread_is_free_then_batches_begin(void **state)
{
    struct hold_test *t = *state;
    block_thread(t);
    assert_int_equal(ask(t, 0), HPS_OK);
    assert_false(is_held(t));
    batch_main(t->version->updates); /* waits for nobody */
    assert_int_equal(hps_update_sequence(t->version), 1);
    assert_false(atomic_load(&t->reads[0].began));
    atomic_store(&t->blocks, false);
    wait_for(&t->reads[0].done);
    assert_true(t->reads[0].held);
    assert_int_equal(t->sequences[0], 1);
}

static void test_hold_when_a_batch_comes_then_it_waits_until_all_is_read(void **state)
{
    struct hold_test *t = *state;
    start_read(t, 0);
    assert_true(is_held(t));
    start_batch(t);
    assert_int_equal(hps_update_sequence(t->version), 0);
    open_gate(t, 0);
    pthread_join(t->batch, NULL);
    assert_int_equal(hps_update_sequence(t->version), 1);
    assert_int_equal(t->sequences[0], 0);
}

static void test_hold_when_a_batch_is_under_way_then_it_is_next(void **state)
{
    struct hold_test *t = *state;
    struct hps_updates *updates = t->version->updates;
    update_turn_begin(updates);
    atomic_store(&t->reads[0].open, false);
    assert_int_equal(ask(t, 0), HPS_OK);
    wait_for_turn(t, UPDATE_TURN_BATCH_THEN_HELD);
    atomic_fetch_add(&updates->sequence, 1);
    update_turn_end(updates);
    assert_true(is_held(t)); /* before the next batch can ask */
    start_batch(t);
    wait_for(&t->reads[0].began);
    open_gate(t, 0);
    pthread_join(t->batch, NULL);
    assert_int_equal(t->sequences[0], 1);
    assert_int_equal(hps_update_sequence(t->version), 2);
}

static void test_hold_when_a_batch_waits_for_too_long_then_it_goes_between(void **state)
{
    struct hold_test *t = *state;
    for (unsigned i = 0; i < 4; i++) { /* two of them are as long as a hold may be */
        t->reads[i].takes_us = HPS_UPDATE_HOLD_US / 2;
    }
    start_read(t, 0);
    for (unsigned i = 1; i < 4; i++) {
        assert_int_equal(ask(t, i), HPS_OK);
    }
    start_batch(t);
    open_gate(t, 0);
    pthread_join(t->batch, NULL);
    wait_for(&t->reads[3].done);
    assert_int_equal(t->sequences[0], 0);
    assert_int_equal(t->sequences[1], 0);
    assert_int_equal(t->sequences[2], 1);
    assert_int_equal(t->sequences[3], 1);
}

static void test_hold_when_no_batch_waits_then_all_are_read(void **state)
{
    struct hold_test *t = *state;
    for (unsigned i = 0; i < 4; i++) {
        t->reads[i].takes_us = HPS_UPDATE_HOLD_US;
        t->reads[i].hold.client = i;
    }
    start_read(t, 0);
    for (unsigned i = 1; i < 4; i++) {
        assert_int_equal(ask(t, i), HPS_OK);
    }
    open_gate(t, 0);
    wait_for(&t->reads[3].done);
    hps_pool_free(t->pool);
    t->pool = NULL;
    assert_true(hps_metric_value(t->version->update_holds) == 1);
    assert_false(is_held(t));
}

/* ---- who goes -------------------------------------------------------------------------------- */

static void test_cancel_when_it_waits_then_it_is_not_read(void **state)
{
    struct hold_test *t = *state;
    start_read(t, 0);
    for (unsigned i = 1; i < 4; i++) {
        assert_int_equal(ask(t, i), HPS_OK);
    }
    assert_true(hps_update_hold_cancel(t->version, &t->reads[2].hold));
    assert_false(hps_update_hold_cancel(t->version, &t->reads[2].hold));
    open_gate(t, 0);
    wait_for(&t->reads[3].done);
    assert_int_equal(atomic_load(&t->n_read), 3);
    assert_ptr_equal(t->order[1], &t->reads[1]);
    assert_ptr_equal(t->order[2], &t->reads[3]);
}

static void test_cancel_when_it_waits_for_a_thread_then_nobody_holds(void **state)
{
    struct hold_test *t = *state;
    block_thread(t);
    assert_int_equal(ask(t, 0), HPS_OK);
    assert_true(hps_update_hold_cancel(t->version, &t->reads[0].hold));
    atomic_store(&t->blocks, false);
    hps_pool_free(t->pool);
    t->pool = NULL;
    assert_false(atomic_load(&t->reads[0].began));
    assert_true(hps_metric_value(t->version->update_holds) == 0);
}

/* The store that it reads from may hang: nobody is interested any more. */
static void test_cancel_when_it_is_read_then_batches_begin(void **state)
{
    struct hold_test *t = *state;
    start_read(t, 0);
    assert_int_equal(ask(t, 1), HPS_OK);
    start_batch(t);
    assert_false(hps_update_hold_cancel(t->version, &t->reads[0].hold));
    pthread_join(t->batch, NULL);
    assert_int_equal(hps_update_sequence(t->version), 1);
    assert_false(is_held(t));
    open_gate(t, 0);
    wait_for(&t->reads[1].done);
    assert_true(t->reads[1].held);
    assert_int_equal(t->sequences[1], 1);
}

static void test_hold_when_too_much_waits_for_the_thread_then_exhausted(void **state)
{
    struct hold_test *t = *state;
    struct hps_task waits = {.run = block};
    block_thread(t);
    assert_int_equal(hps_pool_post(t->pool, &waits), HPS_OK);
    assert_int_equal(ask(t, 0), HPS_EXHAUSTED);
    assert_false(hps_update_hold_cancel(t->version, &t->reads[0].hold));
    assert_true(hps_pool_withdraw(t->pool, &waits));
    assert_int_equal(ask(t, 0), HPS_OK);
    atomic_store(&t->blocks, false);
    wait_for(&t->reads[0].done);
}

/* ---- shares ---------------------------------------------------------------------------------- */

static void test_hold_when_several_clients_wait_then_who_had_least_is_first(void **state)
{
    struct hold_test *t = *state;
    static const uint64_t clients[5] = {1, 1, 1, 2, 3};
    static const unsigned order[5] = {0, 3, 4, 1, 2};
    for (unsigned i = 0; i < 5; i++) {
        t->reads[i].takes_us = i == 4 ? 100 : 200;
        t->reads[i].hold.client = clients[i];
    }
    start_read(t, 0);
    for (unsigned i = 1; i < 5; i++) {
        assert_int_equal(ask(t, i), HPS_OK);
    }
    open_gate(t, 0);
    wait_for(&t->reads[2].done);
    for (unsigned i = 0; i < 5; i++) {
        assert_ptr_equal(t->order[i], &t->reads[order[i]]);
    }
}

static void test_hold_when_a_client_has_had_its_share_then_it_waits_and_others_do_not(void **state)
{
    struct hold_test *t = *state;
    t->reads[0].takes_us = SHARE_US + SHARE_US / 2;
    t->reads[3].hold.client = 1;
    start_read(t, 0);
    assert_int_equal(ask(t, 1), HPS_OK); /* in line, but too late */
    open_gate(t, 0);
    wait_for(&t->reads[1].done);
    assert_false(t->reads[1].held);
    assert_int_equal(ask(t, 2), HPS_AGAIN);
    assert_int_equal(ask(t, 3), HPS_OK);
    wait_for(&t->reads[3].done);
    assert_true(t->reads[3].held);
    hps_clock_advance(499 * 1000); /* a tenth of it is forgotten */
    assert_int_equal(ask(t, 2), HPS_AGAIN);
    hps_clock_advance(2 * 1000);
    assert_int_equal(ask(t, 2), HPS_OK);
    wait_for(&t->reads[2].done);
    assert_true(t->reads[2].held);
}

int main(void)
{
#define HOLD_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        HOLD_TEST(test_hold_when_no_thread_is_free_then_batches_begin),
        HOLD_TEST(test_hold_when_a_batch_comes_then_it_waits_until_all_is_read),
        HOLD_TEST(test_hold_when_a_batch_is_under_way_then_it_is_next),
        HOLD_TEST(test_hold_when_a_batch_waits_for_too_long_then_it_goes_between),
        HOLD_TEST(test_hold_when_no_batch_waits_then_all_are_read),
        HOLD_TEST(test_cancel_when_it_waits_then_it_is_not_read),
        HOLD_TEST(test_cancel_when_it_waits_for_a_thread_then_nobody_holds),
        HOLD_TEST(test_cancel_when_it_is_read_then_batches_begin),
        HOLD_TEST(test_hold_when_too_much_waits_for_the_thread_then_exhausted),
        HOLD_TEST(test_hold_when_several_clients_wait_then_who_had_least_is_first),
        HOLD_TEST(test_hold_when_a_client_has_had_its_share_then_it_waits_and_others_do_not),
    };
    return cmocka_run_group_tests_name("update_hold", tests, NULL, NULL);
}
