/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies that wait for memory. A test is a script of steps, each with the order of the calls that
 * are granted by it.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "net/limits.h"

enum { MAX = 6400, SMALL = MAX / 64, N_CALLS = 14 };

static struct hps_limits *limits;
static struct hps_charge calls[N_CALLS];
static char granted[64];

static void on_granted(void *ctx)
{
    size_t size = strlen(granted);

    (void)snprintf(granted + size, sizeof granted - size, "%c",
                   'a' + (int)((struct hps_charge *)ctx - calls));
}

static struct hps_limits_options options(double share, uint64_t max)
{
    return (struct hps_limits_options){
        .max = {UINT64_MAX, max}, .connection_max = {UINT64_MAX, UINT64_MAX}, .share = share};
}

/* A script: "a=5000" call a wants 5000 bytes, "a-" gives all back, "a/" stops waiting, "max=7000"
 * changes the maximum. After ":" the calls that this grants; "a=5000:" the call waits. */
static const struct script {
    const char *name;
    const char *addresses; /* of calls a, b, ...; a digit each; empty: all the same */
    double share;
    const char *steps;
} scripts[] = {
    {"there is room: at once", "", 0, "a=6000:a b=400:b"},
    {"full: in order of arrival", "", 0, "a=6000:a b=500: c=200: a-:bc"},
    {"the first stops: the next goes", "", 0, "a=6000:a b=500: c=200: b/:c"},
    {"alone: more than the maximum", "", 0, "a=9000:a b=1: a-:b"},
    {"the maximum grows", "", 0, "a=6000:a b=500: max=7000:b"},
    {"the maximum shrinks: what is held stays", "", 0, "a=6000:a max=5000: b=10: a-:b"},

    {"a client over its share waits, others do not", "0012", 0.25,
     "a=2500:a b=2600:b d=500:d c=500:c"},
    {"a client over its share waits until it gives back", "000", 0.25, "a=5000:a b=1000: a-:b"},
    {"accounts take turns", "000112", 0,
     "a=6400:a b=1000: c=1000: d=1000: e=1000: f=1000: a-:bdfce"},
    {"a newcomer comes before the second of a greedy one", "0001", 0,
     "a=6400:a b=3000: c=3000: d=3000: a-:bd"},

    {"a large one that is next is passed by no other account", "012", 0,
     "a=5000:a b=5000: c=200: a-:bc"},

    {"small ones pass a large one, within an eighth", "", 0,
     "a=5000:a b=5000: c=101: d=100:d e=100:e f=100:f g=100:g h=100:h i=100:i j=100:j k=100:k "
     "l=1: d-:l a-:bc"},
    {"small ones that alone keep a large one out wait", "", 0,
     "a=5000:a b=6300: c=100:c d=100:d a-: e=1: c-:b d-:e"},
    {"small ones do not starve one that fits only alone", "", 0,
     "a=5000:a b=6401: c=100:c a-: d=1: c-:b b-:d"},
    {"small ones stay in order", "", 0, "a=6390:a b=5000: c=100: d=1: c/:d"},
    {"a large one over its share holds no small one up", "001", 0.25,
     "a=5000:a b=5000: c=100:c d=100:d e=100:e"},
};

static void open_script(const struct script *script)
{
    const struct hps_limits_options with = options(script->share, MAX);
    struct hps_error err;

    limits = hps_limits_new(&with, NULL);
    assert_non_null(limits);
    memset(calls, 0, sizeof calls);
    for (unsigned i = 0; i < N_CALLS; i++) {
        char name[] = "address:10.0.0.0";
        name[sizeof name - 2] = i < strlen(script->addresses) ? script->addresses[i] : '9';
        struct hps_account *connection =
            hps_account_connection(hps_account_get(limits, name), false);
        calls[i].on_granted = on_granted;
        calls[i].ctx = &calls[i];
        assert_int_equal(hps_charge_open(&calls[i], connection, &err), HPS_OK);
        hps_account_unref(connection);
    }
}

static void run_step(const struct script *script, const char *step)
{
    struct hps_charge *charge = &calls[step[0] - 'a'];
    struct hps_error err;
    unsigned bytes;

    granted[0] = '\0';
    if (sscanf(step, "max=%u", &bytes) == 1) {
        const struct hps_limits_options with = options(script->share, bytes);
        hps_limits_set(limits, &with);
    } else if (sscanf(step + 1, "=%u", &bytes) == 1) {
        hps_status status = hps_charge_wait(charge, bytes, &err);
        assert_true(status == HPS_OK || status == HPS_AGAIN);
        if (status == HPS_OK) {
            on_granted(charge);
        }
    } else if (step[1] == '/') {
        assert_true(hps_charge_cancel(charge, 0, NULL, NULL));
        assert_false(hps_charge_cancel(charge, 0, NULL, NULL));
    } else {
        assert_int_equal(step[1], '-');
        hps_charge_shrink(charge, HPS_LIMIT_REPLIES, charge->held[HPS_LIMIT_REPLIES]);
    }
    const char *expected = strchr(step, ':') != NULL ? strchr(step, ':') + 1 : "";
    if (strcmp(granted, expected) != 0) {
        fail_msg("%s: step %s granted \"%s\"", script->name, step, granted);
    }
}

static void close_script(void)
{
    for (unsigned i = 0; i < N_CALLS; i++) {
        (void)hps_charge_cancel(&calls[i], 0, NULL, NULL);
    }
    for (unsigned i = 0; i < N_CALLS; i++) {
        hps_charge_close(&calls[i]);
    }
    assert_int_equal(hps_limits_used(limits, HPS_LIMIT_REPLIES), 0);
    hps_limits_free(limits);
}

static void test_replies_when_memory_is_short_then_granted_in_turns(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        char steps[256];
        char *rest = steps;

        open_script(&scripts[i]);
        (void)snprintf(steps, sizeof steps, "%s", scripts[i].steps);
        for (char *step = strtok_r(steps, " ", &rest); step != NULL;
             step = strtok_r(NULL, " ", &rest)) {
            run_step(&scripts[i], step);
        }
        close_script();
    }
}

/* ---- connections, quotas, texts -------------------------------------------------------------- */

static void test_reply_when_its_connection_is_full_then_delays_no_other(void **state)
{
    struct hps_limits_options with = options(0, MAX);
    struct hps_account *connections[2];
    enum hps_limit_scope scope;
    struct hps_error err;

    (void)state;
    with.connection_max[HPS_LIMIT_REPLIES] = 1000;
    limits = hps_limits_new(&with, NULL);
    memset(calls, 0, sizeof calls);
    granted[0] = '\0';
    for (unsigned i = 0; i < 2; i++) {
        connections[i] = hps_account_connection(hps_account_get(limits, "address:10.0.0.1"), false);
    }
    for (unsigned i = 0; i < 6; i++) {
        calls[i].on_granted = on_granted;
        calls[i].ctx = &calls[i];
        assert_int_equal(hps_charge_open(&calls[i], connections[i == 3], &err), HPS_OK);
    }
    assert_int_equal(hps_charge_wait(&calls[0], 2000, &err), HPS_OK); /* alone: any size */
    assert_int_equal(hps_charge_wait(&calls[1], 700, &err), HPS_AGAIN);
    assert_int_equal(hps_charge_wait(&calls[2], 200, &err), HPS_AGAIN); /* in order */
    assert_int_equal(hps_charge_wait(&calls[3], 900, &err), HPS_OK);    /* another connection */
    assert_int_equal(hps_charge_wait(&calls[4], 200, &err), HPS_AGAIN);
    assert_true(hps_charge_cancel(&calls[4], 10 * 1000 * 1000, &scope, &err));
    assert_int_equal(scope, HPS_SCOPE_CONNECTION);
    assert_non_null(strstr(err.text, "within 10000 ms"));
    assert_non_null(strstr(err.text, "the limit is 1000 (connection_reply_bytes)"));
    assert_int_equal(hps_charge_wait(&calls[5], 5000, &err), HPS_AGAIN);
    hps_charge_shrink(&calls[0], HPS_LIMIT_REPLIES, 2000);
    assert_string_equal(granted, "bc");
    hps_charge_shrink(&calls[1], HPS_LIMIT_REPLIES, 700);
    hps_charge_shrink(&calls[2], HPS_LIMIT_REPLIES, 200);
    assert_string_equal(granted, "bcf");
    for (unsigned i = 0; i < 6; i++) {
        hps_charge_close(&calls[i]);
    }
    hps_account_unref(connections[0]);
    hps_account_unref(connections[1]);
    hps_limits_free(limits);
}

static void test_reply_when_over_a_quota_or_late_then_the_text_says_so(void **state)
{
    const struct hps_limits_options with = options(0.25, MAX);
    enum hps_limit_scope scope;
    struct hps_error err;

    (void)state;
    limits = hps_limits_new(&with, NULL);
    struct hps_account *connection =
        hps_account_connection(hps_account_get(limits, "address:10.0.0.1"), false);
    struct hps_account *identity = hps_account_get(limits, "token:ci");
    memset(calls, 0, sizeof calls);
    for (unsigned i = 0; i < 3; i++) {
        calls[i].on_granted = on_granted;
        calls[i].ctx = &calls[i];
        assert_int_equal(hps_charge_open(&calls[i], connection, &err), HPS_OK);
        if (i < 2) {
            assert_int_equal(hps_charge_identify(&calls[i], identity, 100, &err), HPS_OK);
        }
    }
    assert_int_equal(hps_charge_wait(&calls[0], 90, &err), HPS_OK);
    assert_int_equal(hps_charge_wait(&calls[1], 11, &err), HPS_EXHAUSTED); /* it does not wait */
    assert_non_null(
        strstr(err.text, "token:ci holds 90, the limit is 100 (reply_bytes of its rule)"));
    assert_int_equal(hps_charge_wait(&calls[2], 6000, &err), HPS_AGAIN);
    assert_true(hps_charge_cancel(&calls[2], 250 * 1000, &scope, &err));
    assert_int_equal(scope, HPS_SCOPE_ADDRESS);
    assert_non_null(strstr(err.text, "no memory for 6000 bytes of replies within 250 ms; "
                                     "address:10.0.0.1 holds 90"));
    for (unsigned i = 0; i < 3; i++) {
        hps_charge_close(&calls[i]);
    }
    hps_account_unref(connection);
    hps_account_unref(identity);
    hps_limits_free(limits);
}

static void test_reply_when_over_the_quota_of_an_address_then_the_text_names_it(void **state)
{
    const struct hps_limits_options with = options(0.25, MAX);
    struct hps_error err;

    (void)state;
    limits = hps_limits_new(&with, NULL);
    struct hps_account *connection =
        hps_account_connection(hps_account_get(limits, "address:10.0.0.1"), false);
    struct hps_account *identity = hps_account_get(limits, "address:10.0.0.1");
    memset(calls, 0, sizeof calls);
    for (unsigned i = 0; i < 2; i++) {
        calls[i].on_granted = on_granted;
        assert_int_equal(hps_charge_open(&calls[i], connection, &err), HPS_OK);
        assert_int_equal(hps_charge_identify(&calls[i], identity, 100, &err), HPS_OK);
    }
    assert_int_equal(hps_charge_wait(&calls[0], 90, &err), HPS_OK);
    assert_int_equal(hps_charge_wait(&calls[1], 11, &err), HPS_EXHAUSTED);
    assert_non_null(strstr(err.text, "address:10.0.0.1 holds 90, the limit is 100 (reply_bytes"));
    hps_charge_close(&calls[0]);
    hps_charge_close(&calls[1]);
    hps_account_unref(connection);
    hps_account_unref(identity);
    hps_limits_free(limits);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 2000, ALL = 4 * 64 };

struct waiter {
    struct hps_charge charge;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool is_granted;
    unsigned seed;
};

static atomic_uint_fast64_t held_bytes;

static void on_waiter_granted(void *ctx)
{
    struct waiter *waiter = ctx;

    pthread_mutex_lock(&waiter->lock);
    waiter->is_granted = true;
    pthread_cond_signal(&waiter->woken);
    pthread_mutex_unlock(&waiter->lock);
}

/* Wait, or give up; returns whether the bytes are held. */
static bool wait_or_cancel(struct waiter *waiter, bool give_up)
{
    if (give_up && hps_charge_cancel(&waiter->charge, 0, NULL, NULL)) {
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

/* Small ones (up to 4 bytes) may exceed the limit by one step of each other thread. */
static void *compete(void *arg)
{
    struct waiter *waiter = arg;
    struct hps_error err;
    uintptr_t n_over = 0;

    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t bytes = 1 + (i * 7 + waiter->seed * 13) % 120;
        hps_status status = hps_charge_wait(&waiter->charge, bytes, &err);
        if (status == HPS_OK || wait_or_cancel(waiter, i % 3 == 0)) {
            n_over += atomic_fetch_add(&held_bytes, bytes) + bytes > ALL + 4 * THREADS ? 1 : 0;
            atomic_fetch_sub(&held_bytes, bytes);
            hps_charge_shrink(&waiter->charge, HPS_LIMIT_REPLIES, bytes);
        }
        hps_ignore(hps_charge_grow(&waiter->charge, HPS_LIMIT_REQUESTS, bytes, &err));
    }
    return (void *)n_over;
}

static void test_replies_when_threads_compete_then_the_limit_holds(void **state)
{
    static struct waiter waiters[THREADS];
    const struct hps_limits_options with = options(0.25, ALL);
    pthread_t threads[THREADS];
    struct hps_error err;

    (void)state;
    limits = hps_limits_new(&with, NULL);
    for (unsigned i = 0; i < THREADS; i++) { /* two addresses */
        struct hps_account *connection = hps_account_connection(
            hps_account_get(limits, i % 2 == 0 ? "address:10.0.0.1" : "address:10.0.0.2"), false);
        assert_int_equal(hps_charge_open(&waiters[i].charge, connection, &err), HPS_OK);
        hps_account_unref(connection);
        waiters[i].charge.on_granted = on_waiter_granted;
        waiters[i].charge.ctx = &waiters[i];
        waiters[i].seed = i;
        assert_int_equal(pthread_mutex_init(&waiters[i].lock, NULL), 0);
        assert_int_equal(pthread_cond_init(&waiters[i].woken, NULL), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, compete, &waiters[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *n_over = NULL;
        assert_int_equal(pthread_join(threads[i], &n_over), 0);
        assert_null(n_over);
    }
    assert_int_equal(hps_limits_used(limits, HPS_LIMIT_REPLIES), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        hps_charge_close(&waiters[i].charge);
        pthread_mutex_destroy(&waiters[i].lock);
        pthread_cond_destroy(&waiters[i].woken);
    }
    assert_int_equal(hps_limits_used(limits, HPS_LIMIT_REQUESTS), 0);
    hps_limits_free(limits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies_when_memory_is_short_then_granted_in_turns),
        cmocka_unit_test(test_reply_when_its_connection_is_full_then_delays_no_other),
        cmocka_unit_test(test_reply_when_over_a_quota_or_late_then_the_text_says_so),
        cmocka_unit_test(test_reply_when_over_the_quota_of_an_address_then_the_text_names_it),
        cmocka_unit_test(test_replies_when_threads_compete_then_the_limit_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
