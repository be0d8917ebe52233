/* SPDX-License-Identifier: Apache-2.0
 *
 * Valid states of a request between two iterations of its loop: a valid request in every phase,
 * and each possible error. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/heap.h"
#include "server/lookup/internal.h"

enum { FAR_US = 1000 * 1000 * 1000 };

struct request_test {
    struct hps_loop *loop;
    struct hps_lookup_service service;
    struct hps_version version;
    struct hps_block_pool *blocks;
    struct hps_block *block;
    struct request request;
};

static void on_timer(void *ctx)
{
    (void)ctx;
}

/* Pointers for the worker pool and the I/O pool: compared, never dereferenced. */
static struct hps_pool *pool(const struct request_test *t, unsigned i)
{
    return (struct hps_pool *)((uintptr_t)t + 8 * (i + 1));
}

static int setup(void **state)
{
    struct request_test *t = hps_calloc(1, sizeof(*t));
    struct hps_error err;

    assert_non_null(t);
    assert_int_equal(hps_loop_new(&t->loop, &err), HPS_OK);
    t->blocks = hps_block_pool_new(0);
    t->block = hps_block_new(t->blocks, 64);
    assert_non_null(t->block);
    t->service.parts.workers = pool(t, 0);
    t->service.parts.io = pool(t, 1);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct request_test *t = *state;

    hps_timer_stop(&t->request.timer);
    hps_block_unref(t->block);
    hps_block_pool_free(t->blocks);
    hps_loop_free(t->loop);
    hps_free(t);
    return 0;
}

static void arm(struct request_test *t)
{
    hps_timer_set_after(t->loop, &t->request.timer, FAR_US);
}

static bool must_have_timer(enum request_phase phase)
{
    return phase == PHASE_AWAIT;
}

static bool is_on_worker(enum request_phase phase)
{
    return phase == PHASE_UNPACK || phase == PHASE_WORKER || phase == PHASE_ENCODE;
}

/* Make a valid request in this phase, with a timer only if the phase needs one. */
static void make(struct request_test *t, enum request_phase phase)
{
    static const enum hps_step steps[] = {
        [PHASE_WORKER] = HPS_STEP_MEMORY, [PHASE_IO] = HPS_STEP_STORES,
        [PHASE_GPU] = HPS_STEP_GPU_FIRST, [PHASE_AWAIT] = HPS_STEP_AWAIT_REREAD,
        [PHASE_ENCODE] = HPS_STEP_DONE,   [PHASE_REPLY] = HPS_STEP_DONE,
        [PHASE_ENDED] = HPS_STEP_FAILED,
    };
    bool away = phase > PHASE_ROOM && phase < PHASE_REPLY;
    struct request *request = &t->request;

    hps_timer_stop(&request->timer);
    *request = (struct request){.service = &t->service,
                                .loop = t->loop,
                                .phase = phase,
                                .call = {.code = -1, .closed = phase == PHASE_ENDED},
                                .lookup_state = {.step = steps[phase]}};
    hps_timer_init(&request->timer, on_timer, request);
    request->room.held = away;
    request->packed.data = phase == PHASE_UNPACK ? (const uint8_t *)"" : NULL;
    request->lookup.version = phase < PHASE_REPLY ? &t->version : NULL;
    request->lookup.block = away ? t->block : NULL;
    request->pool = is_on_worker(phase) ? pool(t, 0) : NULL;
    request->pool = phase == PHASE_IO ? pool(t, 1) : request->pool;
    if (must_have_timer(phase)) {
        arm(t);
    }
}

static jmp_buf refused;

static void on_assert(const char *expr, const char *file, int line)
{
    (void)expr;
    (void)file;
    (void)line;
    longjmp(refused, 1);
}

static bool is_sane(const struct request_test *t)
{
    volatile bool asserted = true;

    hps_assert_hook(on_assert);
    if (setjmp(refused) == 0) {
        request_sane(&t->request);
        asserted = false;
    }
    hps_assert_hook(NULL);
    return !asserted;
}

static void test_sane_when_a_request_is_valid_then_in_every_phase_but_loop(void **state)
{
    struct request_test *t = *state;

    for (enum request_phase phase = PHASE_LOOP; phase <= PHASE_ENDED; phase++) {
        make(t, phase);
        assert_int_equal(is_sane(t), phase != PHASE_LOOP);
    }
}

static void test_sane_when_a_timer_runs_then_only_in_phases_with_a_timer(void **state)
{
    struct request_test *t = *state;

    for (enum request_phase phase = PHASE_UNPACK; phase <= PHASE_ENDED; phase++) {
        bool may = must_have_timer(phase) || phase == PHASE_ROOM || phase == PHASE_IO ||
                   phase == PHASE_GPU;
        make(t, phase);
        arm(t);
        assert_int_equal(is_sane(t), may);
        t->request.call.closed = true;
        assert_false(is_sane(t));
        make(t, phase);
        hps_timer_stop(&t->request.timer);
        assert_int_equal(is_sane(t), !must_have_timer(phase));
    }
}

static void test_sane_when_the_call_is_closed_then_only_while_a_thread_has_the_request(void **state)
{
    struct request_test *t = *state;

    for (enum request_phase phase = PHASE_UNPACK; phase <= PHASE_ENDED; phase++) {
        make(t, phase);
        t->request.call.closed = true;
        assert_int_equal(is_sane(t), !must_have_timer(phase) && phase != PHASE_REPLY);
        t->request.call.closed = false;
        assert_int_equal(is_sane(t), phase != PHASE_ENDED);
    }
}

static void test_sane_when_a_pool_is_not_that_of_the_phase_then_refused(void **state)
{
    struct request_test *t = *state;

    for (enum request_phase phase = PHASE_UNPACK; phase <= PHASE_ENDED; phase++) {
        for (unsigned i = 0; i < 2; i++) {
            make(t, phase);
            t->request.pool = pool(t, i);
            assert_int_equal(is_sane(t), i == 0 ? is_on_worker(phase) : phase == PHASE_IO);
        }
        make(t, phase);
        t->request.pool = NULL;
        assert_int_equal(is_sane(t), !is_on_worker(phase) && phase != PHASE_IO);
    }
}

static void test_sane_when_a_step_is_not_for_the_phase_then_refused(void **state)
{
    struct request_test *t = *state;

    for (enum request_phase phase = PHASE_UNPACK; phase <= PHASE_ENDED; phase++) {
        make(t, phase);
        t->request.lookup_state.step = HPS_STEP_BEGIN;
        assert_int_equal(is_sane(t), phase == PHASE_IO); /* its thread may have moved on */
    }
}

static void test_sane_when_pin_ticket_or_rows_are_missing_then_refused(void **state)
{
    struct request_test *t = *state;

    for (enum request_phase phase = PHASE_ROOM; phase < PHASE_REPLY; phase++) {
        make(t, phase);
        t->request.lookup.version = NULL;
        assert_false(is_sane(t));
    }
    for (enum request_phase phase = PHASE_WORKER; phase < PHASE_REPLY; phase++) {
        make(t, phase);
        t->request.room.held = 0;
        assert_false(is_sane(t));
    }
    make(t, PHASE_UNPACK);
    t->request.packed.data = NULL;
    assert_false(is_sane(t));
    make(t, PHASE_AWAIT);
    t->request.lookup.block = NULL;
    assert_false(is_sane(t));
    make(t, PHASE_ROOM);
    t->request.lookup.block = t->block; /* before it has memory for the block */
    assert_false(is_sane(t));
    make(t, PHASE_ENDED);
    t->request.room.key_bytes = 1; /* it no longer waits */
    assert_false(is_sane(t));
}

static void test_sane_when_it_has_replied_then_no_thread_and_no_version_have_it(void **state)
{
    struct request_test *t = *state;

    for (enum request_phase phase = PHASE_UNPACK; phase <= PHASE_ENDED; phase++) {
        make(t, phase);
        t->request.reply.encoded = true;
        assert_int_equal(is_sane(t), phase >= PHASE_REPLY);
        make(t, phase);
        t->request.call.code = 0;
        assert_int_equal(is_sane(t), phase >= PHASE_REPLY);
    }
    make(t, PHASE_REPLY);
    t->request.reply.encoded = true;
    t->request.lookup.version = &t->version;
    assert_false(is_sane(t));
    make(t, PHASE_REPLY);
    t->request.reply.pumping = true;
    assert_false(is_sane(t));
    make(t, PHASE_GPU); /* two lookups on one device */
    t->request.gpu.left_version = &t->version;
    assert_false(is_sane(t));
}

int main(void)
{
#define REQUEST_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        REQUEST_TEST(test_sane_when_a_request_is_valid_then_in_every_phase_but_loop),
        REQUEST_TEST(test_sane_when_a_timer_runs_then_only_in_phases_with_a_timer),
        REQUEST_TEST(test_sane_when_the_call_is_closed_then_only_while_a_thread_has_the_request),
        REQUEST_TEST(test_sane_when_a_pool_is_not_that_of_the_phase_then_refused),
        REQUEST_TEST(test_sane_when_a_step_is_not_for_the_phase_then_refused),
        REQUEST_TEST(test_sane_when_pin_ticket_or_rows_are_missing_then_refused),
        REQUEST_TEST(test_sane_when_it_has_replied_then_no_thread_and_no_version_have_it),
    };
    return cmocka_run_group_tests_name("lookup_request", tests, NULL, NULL);
}
