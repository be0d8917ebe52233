/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission: the cap, the queue in order, cancelling, and many threads at once.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "server/lookup/admission.h"

static struct hps_admission *admission;
static struct hps_error err;
static unsigned n_granted;
static struct hps_admission_ticket *granted[16];

/* Tickets of the tests, which are given back after each. */
enum { GREEDY = 11, MODEST = 22, OTHER = 33, TICKETS = 5, SMALL_ONES = 8 };
static struct hps_admission_ticket tickets[TICKETS], small[SMALL_ONES];
static struct hps_admission_ticket *const a = &tickets[0], *const b = &tickets[1];
static struct hps_admission_ticket *const c = &tickets[2], *const d = &tickets[3];
static struct hps_admission_ticket *const e = &tickets[4];

static void on_granted(struct hps_admission_ticket *ticket)
{
    granted[n_granted++] = ticket;
}

static void reset_tickets(struct hps_admission_ticket *items, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        items[i] = (struct hps_admission_ticket){.on_granted = on_granted};
    }
}

static void give_back(struct hps_admission_ticket *items, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (!hps_admission_cancel(admission, &items[i])) {
            hps_admission_release(admission, &items[i]);
        }
    }
}

/* From now on requests are let in by these options. */
static void open_with(struct hps_admission_options options)
{
    hps_admission_free(admission);
    admission = hps_admission_new(&options);
    assert_non_null(admission);
}

static int setup(void **state)
{
    (void)state;
    n_granted = 0;
    reset_tickets(tickets, TICKETS);
    reset_tickets(small, SMALL_ONES);
    open_with((struct hps_admission_options){
        .bytes_max = 100, .reply_bytes_max = 1000, .waiting_max = 3});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    n_granted = 0;
    give_back(small, SMALL_ONES);
    give_back(tickets, TICKETS);
    assert_int_equal(hps_admission_bytes(admission), 0);
    hps_admission_free(admission);
    admission = NULL;
    return 0;
}

/* Ask; returns whether it is held at once. */
static bool ask(struct hps_admission_ticket *ticket, uint64_t bytes)
{
    bool held = false;

    assert_int_equal(hps_admission_ask(admission, ticket, bytes, 0, &held, &err), HPS_OK);
    return held;
}

static void test_admission_when_there_is_room_then_held(void **state)
{
    (void)state;
    assert_true(ask(a, 60));
    assert_true(ask(b, 40));
    assert_int_equal(hps_admission_bytes(admission), 100);
    hps_admission_release(admission, a);
    hps_admission_release(admission, a); /* idle: nothing */
    assert_int_equal(hps_admission_bytes(admission), 40);
}

static void test_admission_when_full_then_granted_in_order_of_arrival(void **state)
{
    (void)state;
    assert_true(ask(a, 90));
    assert_false(ask(b, 20));
    assert_false(ask(c, 5)); /* would fit, but b is before it */
    assert_int_equal(hps_admission_waiting(admission), 2);
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 2);
    assert_ptr_equal(granted[0], b);
    assert_ptr_equal(granted[1], c);
    assert_int_equal(hps_admission_bytes(admission), 25);
}

static void test_admission_when_the_first_gives_up_then_the_next_goes(void **state)
{
    (void)state;
    assert_true(ask(a, 90));
    assert_false(ask(b, 20));
    assert_false(ask(c, 5));
    assert_true(hps_admission_cancel(admission, b));
    assert_int_equal(n_granted, 1);
    assert_ptr_equal(granted[0], c);
    assert_false(hps_admission_cancel(admission, b)); /* idle */
    assert_false(hps_admission_cancel(admission, c)); /* held */
}

static void test_admission_when_alone_then_let_in_beyond_the_cap(void **state)
{
    (void)state;
    assert_true(ask(a, 1000));
    assert_false(ask(b, 0));
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 1);
}

static void test_admission_when_too_large_then_size_and_limit_are_named(void **state)
{
    (void)state;
    bool held = false;

    assert_int_equal(hps_admission_ask(admission, a, 1001, 0, &held, &err), HPS_RANGE);
    assert_non_null(strstr(err.text, "1001"));
    assert_non_null(strstr(err.text, "1000"));
    assert_int_equal(hps_admission_bytes(admission), 0);
}

/* Making a reply of narrow rows takes more memory than the reply. */
static void test_admission_when_the_work_needs_more_than_the_reply_then_it_counts(void **state)
{
    (void)state;
    bool held = false;

    assert_int_equal(hps_admission_ask(admission, a, 1, 999999, &held, &err), HPS_OK);
    assert_true(held);
    assert_int_equal(hps_admission_bytes(admission), 1000000);
    assert_false(ask(b, 1));
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 1);
}

static void test_limits_when_raised_then_those_who_wait_are_let_in(void **state)
{
    (void)state;
    bool held = false;

    assert_true(ask(a, 90));
    assert_false(ask(b, 20));
    hps_admission_limits_set(admission, 110, 50, 0);
    assert_int_equal(n_granted, 1);
    assert_ptr_equal(granted[0], b);
    assert_int_equal(hps_admission_ask(admission, c, 51, 0, &held, &err), HPS_RANGE);
    assert_non_null(strstr(err.text, "limit is 50"));
    hps_admission_limits_set(admission, 50, 50, 0); /* what is held stays */
    assert_int_equal(hps_admission_bytes(admission), 110);
    hps_admission_release(admission, a);
    assert_false(ask(c, 40));
    hps_admission_release(admission, b);
    assert_int_equal(n_granted, 2);
}

static void test_admission_when_too_many_wait_then_refused(void **state)
{
    (void)state;
    bool held = false;

    assert_true(ask(&tickets[0], 100));
    for (unsigned i = 1; i < 4; i++) {
        assert_false(ask(&tickets[i], 1));
    }
    assert_int_equal(hps_admission_ask(admission, &tickets[4], 1, 0, &held, &err), HPS_EXHAUSTED);
}

/* ---- shares of clients ----------------------------------------------------------------------- */

static void set_clients(uint64_t of_a, uint64_t of_b, uint64_t of_c, uint64_t of_d, uint64_t of_e)
{
    const uint64_t clients[TICKETS] = {of_a, of_b, of_c, of_d, of_e};

    for (unsigned i = 0; i < TICKETS; i++) {
        tickets[i].client = clients[i];
    }
}

/* From now on a client has a quarter of 100 bytes, and of a line of so many, while others wait. */
static void share_out(uint32_t waiting_max)
{
    open_with((struct hps_admission_options){
        .bytes_max = 100, .reply_bytes_max = 100, .waiting_max = waiting_max, .share = 0.25});
}

static void test_share_when_nobody_else_waits_then_one_client_may_hold_all(void **state)
{
    (void)state;
    set_clients(GREEDY, GREEDY, GREEDY, 0, 0);
    share_out(100);
    assert_true(ask(a, 60));
    assert_true(ask(b, 40));
    assert_false(ask(c, 50));
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 1); /* nor is it alone in line held up by its share */
}

static void test_share_when_others_wait_then_whoever_holds_one_comes_after_them(void **state)
{
    (void)state;
    set_clients(GREEDY, GREEDY, GREEDY, MODEST, OTHER);
    share_out(100);
    assert_true(ask(a, 50));
    assert_true(ask(b, 50));
    assert_false(ask(c, 50)); /* came first */
    assert_false(ask(d, 40));
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 1);
    assert_ptr_equal(granted[0], d);
    assert_true(ask(e, 10)); /* only whoever has a share waits: no need to stand behind it */
    hps_admission_release(admission, b);
    assert_int_equal(n_granted, 2); /* it holds nothing now */
    assert_ptr_equal(granted[1], c);
}

static void test_share_when_reached_while_waiting_then_others_come_first(void **state)
{
    (void)state;
    set_clients(OTHER, OTHER, GREEDY, GREEDY, MODEST);
    share_out(100);
    assert_true(ask(a, 50));
    assert_true(ask(b, 50));
    assert_false(ask(c, 50)); /* when they came, it held nothing */
    assert_false(ask(d, 50));
    assert_false(ask(e, 50));
    hps_admission_release(admission, a);
    hps_admission_release(admission, b);
    assert_int_equal(n_granted, 2);
    assert_ptr_equal(granted[0], c);
    assert_ptr_equal(granted[1], e);
    hps_admission_release(admission, e);
    assert_int_equal(n_granted, 3);
}

static void test_share_when_one_client_fills_half_of_the_line_then_the_rest_is_for_others(
    void **state)
{
    bool held;

    (void)state;
    set_clients(OTHER, GREEDY, MODEST, 0, 0);
    share_out(8);
    assert_true(ask(a, 100));
    for (unsigned i = 0; i < 4; i++) {
        small[i].client = GREEDY;
        assert_false(ask(&small[i], 1));
    }
    assert_int_equal(hps_admission_ask(admission, b, 1, 0, &held, &err), HPS_EXHAUSTED);
    assert_non_null(strstr(err.text, "4 of them of this client"));
    assert_false(ask(c, 1));
}

/* ---- small ones go past large ones ----------------------------------------------------------- */

enum { CAP = 6400, SMALL = CAP / 64, N_PASS_MAX = CAP / 8 / SMALL };
_Static_assert((int)N_PASS_MAX <= (int)SMALL_ONES, "a ticket for each");

static void test_small_when_a_large_one_does_not_fit_then_goes_past_within_a_share(void **state)
{
    (void)state;
    hps_admission_limits_set(admission, CAP, CAP, 0);
    assert_true(ask(a, 5000));
    assert_false(ask(b, 5000));
    assert_false(ask(c, SMALL + 1)); /* fits, but is not small */
    for (unsigned i = 0; i < N_PASS_MAX; i++) {
        assert_true(ask(&small[i], SMALL));
    }
    assert_false(ask(d, 1)); /* fits, but so many went past */
    hps_admission_release(admission, &small[0]);
    assert_int_equal(n_granted, 1);
    assert_ptr_equal(granted[0], d);
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 3); /* the large one has not waited for them */
    assert_ptr_equal(granted[1], b);
    assert_ptr_equal(granted[2], c);
}

static void test_small_when_only_such_keep_a_large_one_out_then_waits(void **state)
{
    (void)state;
    hps_admission_limits_set(admission, CAP, CAP, 0);
    assert_true(ask(a, 5000));
    assert_false(ask(b, CAP - SMALL));
    assert_true(ask(&small[0], SMALL));
    assert_true(ask(&small[1], SMALL));
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 0); /* two small ones more than fit beside it */
    assert_false(ask(c, 1));
    hps_admission_release(admission, &small[0]);
    assert_int_equal(n_granted, 1);
    assert_ptr_equal(granted[0], b);
    hps_admission_release(admission, &small[1]);
    assert_int_equal(n_granted, 2);
    assert_ptr_equal(granted[1], c);
}

static void test_small_when_one_waits_alone_for_all_memory_then_is_not_starved(void **state)
{
    (void)state;
    hps_admission_limits_set(admission, CAP, 2 * CAP, 0);
    assert_true(ask(a, 5000));
    assert_false(ask(b, CAP + 1)); /* fits beside nobody */
    assert_true(ask(c, SMALL));
    hps_admission_release(admission, a);
    assert_false(ask(d, 1));
    hps_admission_release(admission, c);
    assert_int_equal(n_granted, 1);
    assert_ptr_equal(granted[0], b);
    hps_admission_release(admission, b);
    assert_int_equal(n_granted, 2);
}

static void test_small_when_a_small_one_waits_then_stands_behind_it(void **state)
{
    (void)state;
    hps_admission_limits_set(admission, CAP, CAP, 0);
    assert_true(ask(a, CAP - 10));
    assert_false(ask(b, 5000));
    assert_false(ask(c, SMALL)); /* there is no room */
    assert_false(ask(d, 1));     /* there is */
    assert_true(hps_admission_cancel(admission, c));
    assert_int_equal(n_granted, 1);
    assert_ptr_equal(granted[0], d);
    hps_admission_release(admission, d);
    assert_true(hps_admission_cancel(admission, b));
}

/* All behind one proxy: whoever is small there goes past those who are large. */
static void test_small_when_its_client_holds_a_share_then_goes_past_its_large_ones(void **state)
{
    (void)state;
    open_with((struct hps_admission_options){
        .bytes_max = CAP, .reply_bytes_max = CAP, .waiting_max = 10, .share = 0.25});
    assert_true(ask(a, 5000));
    assert_false(ask(b, 5000));
    assert_true(ask(c, SMALL));
    hps_admission_release(admission, c);
    d->client = 1; /* another one, whose large reply waits: then this one's have to */
    assert_false(ask(d, 5000));
    assert_false(ask(c, SMALL));
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 2); /* who is within a share now, in order; then there is room */
    assert_ptr_equal(granted[0], d);
    assert_ptr_equal(granted[1], c);
    hps_admission_release(admission, d);
    assert_int_equal(n_granted, 3);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 2000 };

struct waiter {
    struct hps_admission_ticket ticket;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool is_granted;
    unsigned seed;
};

static atomic_uint_fast64_t held_bytes;

static void on_waiter_granted(struct hps_admission_ticket *ticket)
{
    struct waiter *waiter = (struct waiter *)ticket;

    pthread_mutex_lock(&waiter->lock);
    waiter->is_granted = true;
    pthread_cond_signal(&waiter->woken);
    pthread_mutex_unlock(&waiter->lock);
}

/* Wait, or give up; returns whether the ticket is held. */
static bool wait_or_cancel(struct waiter *waiter, bool give_up)
{
    if (give_up && hps_admission_cancel(admission, &waiter->ticket)) {
        return false;
    }
    pthread_mutex_lock(&waiter->lock);
    while (!waiter->is_granted) {
        pthread_cond_wait(&waiter->woken, &waiter->lock);
    }
    waiter->is_granted = false;
    pthread_mutex_unlock(&waiter->lock);
    return true;
}

static void *compete(void *arg)
{
    struct waiter *waiter = arg;
    uintptr_t n_over = 0;

    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t bytes = 20 + (i * 7 + waiter->seed * 13) % 60;
        bool held = false;
        if (hps_admission_ask(admission, &waiter->ticket, bytes, 0, &held, NULL) != HPS_OK) {
            continue;
        }
        if (held || wait_or_cancel(waiter, i % 3 == 0)) {
            n_over += atomic_fetch_add(&held_bytes, bytes) + bytes > 100 ? 1 : 0;
            atomic_fetch_sub(&held_bytes, bytes);
            hps_admission_release(admission, &waiter->ticket);
        }
    }
    return (void *)n_over;
}

static void test_admission_when_those_who_wait_hold_much_then_refused(void **state)
{
    (void)state;
    bool held = true;

    assert_true(ask(a, 100));
    assert_int_equal(hps_admission_ask(admission, b, 10, 60, &held, &err), HPS_OK);
    assert_false(held);
    assert_int_equal(hps_admission_ask(admission, c, 1, 41, &held, &err), HPS_EXHAUSTED);
    assert_non_null(strstr(err.text, "1 others that need 60 bytes wait"));
    assert_non_null(strstr(err.text, "limit is 100 (reply_bytes_in_flight)"));
    assert_int_equal(hps_admission_ask(admission, c, 1, 40, &held, &err), HPS_OK);
    assert_true(hps_admission_cancel(admission, b));
    assert_int_equal(hps_admission_ask(admission, b, 1, 60, &held, &err), HPS_OK);
    hps_admission_release(admission, a);
    assert_int_equal(n_granted, 1);
    hps_admission_release(admission, c);
    assert_int_equal(n_granted, 2);
}

static void test_admission_when_threads_compete_then_the_cap_holds(void **state)
{
    (void)state;
    static struct waiter waiters[THREADS];
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        waiters[i].ticket.on_granted = on_waiter_granted;
        waiters[i].seed = i;
        assert_int_equal(pthread_mutex_init(&waiters[i].lock, NULL), 0);
        assert_int_equal(pthread_cond_init(&waiters[i].woken, NULL), 0);
        assert_int_equal(pthread_create(&threads[i], NULL, compete, &waiters[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *n_over = NULL;
        assert_int_equal(pthread_join(threads[i], &n_over), 0);
        assert_null(n_over);
        pthread_mutex_destroy(&waiters[i].lock);
        pthread_cond_destroy(&waiters[i].woken);
    }
    assert_int_equal(hps_admission_bytes(admission), 0);
    assert_int_equal(hps_admission_waiting(admission), 0);
}

int main(void)
{
#define ADMISSION_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        ADMISSION_TEST(test_admission_when_there_is_room_then_held),
        ADMISSION_TEST(test_admission_when_full_then_granted_in_order_of_arrival),
        ADMISSION_TEST(test_admission_when_the_first_gives_up_then_the_next_goes),
        ADMISSION_TEST(test_admission_when_alone_then_let_in_beyond_the_cap),
        ADMISSION_TEST(test_admission_when_too_large_then_size_and_limit_are_named),
        ADMISSION_TEST(test_admission_when_the_work_needs_more_than_the_reply_then_it_counts),
        ADMISSION_TEST(test_limits_when_raised_then_those_who_wait_are_let_in),
        ADMISSION_TEST(test_admission_when_too_many_wait_then_refused),
        ADMISSION_TEST(test_admission_when_those_who_wait_hold_much_then_refused),
        ADMISSION_TEST(test_share_when_nobody_else_waits_then_one_client_may_hold_all),
        ADMISSION_TEST(test_share_when_others_wait_then_whoever_holds_one_comes_after_them),
        ADMISSION_TEST(test_share_when_reached_while_waiting_then_others_come_first),
        ADMISSION_TEST(
            test_share_when_one_client_fills_half_of_the_line_then_the_rest_is_for_others),
        ADMISSION_TEST(test_small_when_a_large_one_does_not_fit_then_goes_past_within_a_share),
        ADMISSION_TEST(test_small_when_only_such_keep_a_large_one_out_then_waits),
        ADMISSION_TEST(test_small_when_one_waits_alone_for_all_memory_then_is_not_starved),
        ADMISSION_TEST(test_small_when_a_small_one_waits_then_stands_behind_it),
        ADMISSION_TEST(test_small_when_its_client_holds_a_share_then_goes_past_its_large_ones),
        ADMISSION_TEST(test_admission_when_threads_compete_then_the_cap_holds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
