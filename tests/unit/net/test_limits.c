/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounts and charges that do not wait.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/limits.h"
#include "tests/lib/fault_heap.h"

enum { KIB = 1024, MIB = 1024 * KIB, MAX = 16 * MIB, CALL = HPS_CALL_BYTES };

/* The calls of the tests: their address, their identity, whether an operator makes them. Calls with
 * one letter are on one connection. */
enum { A, A_TOO, A_ELSEWHERE, B, T_FROM_C, T_FROM_D, OPERATOR, N_CALLS };
static const struct {
    const char *connection, *address, *identity;
    bool is_operator;
} who[N_CALLS] = {
    [A] = {"1", "address:10.0.0.1", NULL, false},
    [A_TOO] = {"1", "address:10.0.0.1", NULL, false},
    [A_ELSEWHERE] = {"2", "address:10.0.0.1", NULL, false},
    [B] = {"3", "address:10.0.0.2", NULL, false},
    [T_FROM_C] = {"4", "address:10.0.0.3", "token:t", false},
    [T_FROM_D] = {"5", "address:10.0.0.4", "token:t", false},
    [OPERATOR] = {"6", "user:0", NULL, true},
};

struct fixture {
    struct hps_limits *limits;
    struct hps_account *connections[N_CALLS]; /* NULL: that of the call before */
    struct hps_account *identities[N_CALLS];
    struct hps_charge calls[N_CALLS];
};

static struct hps_limits_options options(double share)
{
    return (struct hps_limits_options){
        .max = {MAX, MAX}, .connection_max = {8 * MIB, 4 * MIB}, .share = share};
}

static bool open_all(struct fixture *f, double share, uint64_t quota)
{
    const struct hps_limits_options with = options(share);
    struct hps_account *connection = NULL;
    struct hps_error err;
    bool ok = true;

    memset(f, 0, sizeof *f);
    f->limits = hps_limits_new(&with, NULL);
    for (unsigned i = 0; f->limits != NULL && ok && i < N_CALLS; i++) {
        if (i == 0 || strcmp(who[i].connection, who[i - 1].connection) != 0) {
            struct hps_account *address = hps_account_get(f->limits, who[i].address);
            connection =
                address != NULL ? hps_account_connection(address, who[i].is_operator) : NULL;
            f->connections[i] = connection;
        }
        ok = connection != NULL && hps_charge_open(&f->calls[i], connection, &err) == HPS_OK;
        if (ok && who[i].identity != NULL) {
            f->identities[i] = hps_account_get(f->limits, who[i].identity);
            ok = f->identities[i] != NULL &&
                 hps_charge_identify(&f->calls[i], f->identities[i], quota, &err) == HPS_OK;
        }
    }
    return f->limits != NULL && ok;
}

static void close_all(struct fixture *f)
{
    for (unsigned i = 0; i < N_CALLS; i++) {
        hps_account_unref(f->connections[i]); /* a charge keeps it */
        hps_charge_close(&f->calls[i]);
        hps_account_unref(f->identities[i]);
    }
    for (enum hps_limit limit = 0; f->limits != NULL && limit < HPS_LIMIT_COUNT; limit++) {
        assert_int_equal(hps_limits_used(f->limits, limit), 0);
    }
    hps_limits_free(f->limits);
}

/* Calls grow one after another; the last one is refused by `scope`, with these words in the text.
 * COUNT: it is not refused. */
static const struct row {
    const char *name;
    double share;
    uint64_t quota;
    enum hps_limit limit;
    struct {
        unsigned call;
        uint64_t bytes;
    } grows[4];
    enum hps_limit_scope scope;
    const char *words[3];
} rows[] = {
    {"one client may hold 80 %",
     0.25,
     0,
     HPS_LIMIT_REPLIES,
     {{A, 12 * MIB}, {A_ELSEWHERE, MAX / 10 * 8 - 12 * MIB}},
     HPS_SCOPE_COUNT,
     {0}},
    {"and not a byte more",
     0.25,
     0,
     HPS_LIMIT_REPLIES,
     {{A, 12 * MIB}, {A_ELSEWHERE, MAX / 10 * 8 - 12 * MIB + 8}},
     HPS_SCOPE_ADDRESS,
     {"address:10.0.0.1 holds 12582912", "the limit is 13421760", "(peer_share)"}},
    {"then another client may hold 16 %",
     0.25,
     0,
     HPS_LIMIT_REPLIES,
     {{A, MAX / 10 * 8}, {B, 1}, {T_FROM_C, 1}, {B, MAX / 100 * 15}},
     HPS_SCOPE_COUNT,
     {0}},
    {"without shares one client may hold all",
     0,
     0,
     HPS_LIMIT_REPLIES,
     {{A, 12 * MIB}, {A_ELSEWHERE, 4 * MIB}},
     HPS_SCOPE_COUNT,
     {0}},
    {"all clients together may hold the maximum",
     0,
     0,
     HPS_LIMIT_REPLIES,
     {{A, 12 * MIB}, {B, 4 * MIB + 1}},
     HPS_SCOPE_ALL,
     {"the server holds 12582912", "the limit is 16777216", "(reply_bytes_in_flight)"}},
    {"one call alone may hold more than that",
     0.25,
     0,
     HPS_LIMIT_REPLIES,
     {{A, 2 * MAX}},
     HPS_SCOPE_COUNT,
     {0}},
    {"an identity is one client from all its addresses",
     0.25,
     0,
     HPS_LIMIT_REPLIES,
     {{T_FROM_C, 8 * MIB}, {T_FROM_D, 5 * MIB}},
     HPS_SCOPE_IDENTITY,
     {"token:t", "peer_share", ""}},
    {"an identity has the quota of its rules",
     0.25,
     5 * MIB,
     HPS_LIMIT_REPLIES,
     {{T_FROM_C, 4 * MIB}, {T_FROM_D, 2 * MIB}},
     HPS_SCOPE_IDENTITY,
     {"token:t holds 4194304", "the limit is 5242880", "(reply_bytes of its rule)"}},
    {"one reply alone may exceed the quota",
     0.25,
     5 * MIB,
     HPS_LIMIT_REPLIES,
     {{T_FROM_C, 6 * MIB}},
     HPS_SCOPE_COUNT,
     {0}},
    {"an operator may use what no client may",
     0.25,
     0,
     HPS_LIMIT_REPLIES,
     {{A, 12 * MIB}, {B, 3 * MIB}, {OPERATOR, 2 * MIB}},
     HPS_SCOPE_COUNT,
     {0}},
    {"but not without limit",
     0.25,
     0,
     HPS_LIMIT_REPLIES,
     {{A, 12 * MIB}, {B, 3 * MIB}, {OPERATOR, 2 * MIB + 1}},
     HPS_SCOPE_ALL,
     {"", "", ""}},
    {"a connection has a limit for requests",
     0,
     0,
     HPS_LIMIT_REQUESTS,
     {{A, 4 * MIB}, {A_TOO, 4 * MIB}},
     HPS_SCOPE_CONNECTION,
     {"this connection holds", "8 x request_bytes_max", "requests"}},
    {"large requests leave an eighth of the memory",
     0,
     0,
     HPS_LIMIT_REQUESTS,
     {{A, 7 * MIB}, {B, 7 * MIB}},
     HPS_SCOPE_ALL,
     {"the limit is 14680064", "", ""}},
    {"to small ones",
     0,
     0,
     HPS_LIMIT_REQUESTS,
     {{A, 7 * MIB}, {B, 6 * MIB}, {A_ELSEWHERE, 60 * KIB}},
     HPS_SCOPE_COUNT,
     {0}},
    {"also of the same client",
     0.25,
     0,
     HPS_LIMIT_REQUESTS,
     {{A, 7 * MIB}, {A_ELSEWHERE, 4 * MIB - 64 * KIB}, {A_TOO, 60 * KIB}},
     HPS_SCOPE_COUNT,
     {0}},
};

static void test_charge_when_it_grows_then_each_account_has_its_limit(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        struct fixture f;
        struct hps_error err = {.text = ""};
        hps_status status = HPS_OK;
        unsigned n = 0;

        assert_true(open_all(&f, row->share, row->quota));
        for (; n < 4 && row->grows[n].bytes > 0; n++) {
            if (status != HPS_OK) {
                fail_msg("%s: refused before the last step: %s", row->name, err.text);
            }
            status = hps_charge_grow(&f.calls[row->grows[n].call], row->limit, row->grows[n].bytes,
                                     &err);
        }
        if ((status == HPS_OK) != (row->scope == HPS_SCOPE_COUNT)) {
            fail_msg("%s: %s", row->name, status == HPS_OK ? "not refused" : err.text);
        }
        if (status != HPS_OK) {
            assert_int_equal(hps_charge_short_of(&f.calls[row->grows[n - 1].call], row->limit,
                                                 row->grows[n - 1].bytes),
                             row->scope);
        }
        for (unsigned w = 0; status != HPS_OK && w < 3; w++) {
            if (strstr(err.text, row->words[w]) == NULL) {
                fail_msg("%s: \"%s\" is not in \"%s\"", row->name, row->words[w], err.text);
            }
        }
        close_all(&f);
    }
}

static void test_calls_when_many_are_open_then_their_number_is_limited(void **state)
{
    enum { N = MAX / CALL };
    static struct hps_charge calls[N];
    const struct hps_limits_options with = options(0.25);
    struct hps_limits *limits = hps_limits_new(&with, NULL);
    struct hps_error err;
    unsigned n_open = 0;

    (void)state;
    for (unsigned i = 0; i < N; i++) { /* a connection each */
        struct hps_account *connection =
            hps_account_connection(hps_account_get(limits, "address:10.0.0.1"), false);
        n_open += hps_charge_open(&calls[i], connection, &err) == HPS_OK;
        hps_account_unref(connection);
    }
    assert_in_range(n_open, N * 79 / 100, N * 80 / 100);
    assert_non_null(strstr(err.text, "address:10.0.0.1"));
    for (unsigned i = 0; i < N; i++) {
        hps_charge_close(&calls[i]);
    }
    hps_limits_free(limits);
}

static uint64_t next_random(void)
{
    static uint64_t n;

    return hps_mix64(++n);
}

/* What accounts hold adds up, whatever happens; and nothing is left. */
static void test_accounts_when_charges_change_at_random_then_they_add_up(void **state)
{
    struct fixture f;
    struct hps_error err;
    unsigned n_refused = 0;

    (void)state;
    assert_true(open_all(&f, 0.25, 3 * MIB));
    for (unsigned i = 0; i < 20000; i++) {
        struct hps_charge *charge = &f.calls[next_random() % N_CALLS];
        enum hps_limit limit = (enum hps_limit)(next_random() % HPS_LIMIT_COUNT);
        uint64_t held = charge->held[limit] - (limit == HPS_LIMIT_REQUESTS ? CALL : 0);
        if (next_random() % 2 == 0 && held > 0) {
            hps_charge_shrink(charge, limit, next_random() % held + 1);
        } else {
            n_refused += hps_charge_grow(charge, limit, next_random() % (2 * MIB), &err) != HPS_OK;
        }
        for (limit = 0; limit < HPS_LIMIT_COUNT; limit++) {
            uint64_t sum = 0;
            uint64_t of_connections = 0;
            for (unsigned k = 0; k < N_CALLS; k++) {
                const struct hps_account *connection = f.connections[k];
                sum += f.calls[k].held[limit];
                of_connections += connection != NULL ? hps_account_used(connection, limit) : 0;
            }
            assert_int_equal(sum, hps_limits_used(f.limits, limit));
            assert_int_equal(sum, of_connections);
            assert_int_equal(f.calls[T_FROM_C].held[limit] + f.calls[T_FROM_D].held[limit],
                             hps_account_used(f.identities[T_FROM_C], limit));
        }
    }
    assert_in_range(n_refused, 100, 15000);
    close_all(&f);
}

static void scenario(void *ctx)
{
    struct fixture f;

    (void)ctx;
    (void)open_all(&f, 0.25, 0);
    close_all(&f);
}

static void test_limits_when_memory_fails_then_nothing_is_lost(void **state)
{
    (void)state;
    assert_in_range(hps_fault_heap_run(scenario, NULL), 10, 100);
}

/* ---- accounts -------------------------------------------------------------------------------- */

static void test_account_when_names_are_of_one_client_then_one_account(void **state)
{
    static const struct {
        const char *one, *other;
        bool same;
    } pairs[] = {
        {"token:a", "token:a", true},
        {"token:a", "token:b", false},
        {"address:10.0.0.1", "address:10.0.0.2", false},
        {"address:2001:db8::1", "address:2001:db8::2", true},
        {"address:2001:db8::1", "address:2001:db8:0:1::1", false},
        {"address:::ffff:10.0.0.1", "address:::ffff:10.0.0.2", false},
    };
    const struct hps_limits_options with = options(0.25);

    (void)state;
    for (unsigned i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        struct hps_limits *limits = hps_limits_new(&with, NULL);
        struct hps_account *one = hps_account_get(limits, pairs[i].one);
        struct hps_account *other = hps_account_get(limits, pairs[i].other);
        assert_int_equal(one == other, pairs[i].same);
        hps_account_unref(one);
        hps_account_unref(other);
        hps_limits_free(limits);
    }
}

static void test_take_when_the_burst_is_used_then_one_at_a_time(void **state)
{
    const struct hps_limits_options with = options(0.25);
    struct hps_limits *limits = hps_limits_new(&with, NULL);
    uint64_t now_us = hps_clock_us();
    uint64_t retry_us = 0;

    (void)state;
    for (unsigned i = 0; i < 101; i++) { /* with a new connection each time */
        struct hps_account *account = hps_account_get(limits, "user:1");
        assert_int_equal(hps_account_take(account, 100, now_us, &retry_us), i < 100);
        hps_account_unref(account);
    }
    assert_in_range(retry_us, 9000, 11000);
    struct hps_account *account = hps_account_get(limits, "user:1");
    assert_true(hps_account_take(account, 100, now_us + retry_us, &retry_us));
    assert_false(hps_account_take(account, 100, now_us + 10001, &retry_us));
    now_us += 10 * 1000 * 1000; /* no more than a second is saved up */
    for (unsigned i = 0; i < 101; i++) {
        assert_int_equal(hps_account_take(account, 100, now_us, &retry_us), i < 100);
    }
    hps_account_unref(account);
    hps_limits_free(limits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_charge_when_it_grows_then_each_account_has_its_limit),
        cmocka_unit_test(test_calls_when_many_are_open_then_their_number_is_limited),
        cmocka_unit_test(test_accounts_when_charges_change_at_random_then_they_add_up),
        cmocka_unit_test(test_limits_when_memory_fails_then_nothing_is_lost),
        cmocka_unit_test(test_account_when_names_are_of_one_client_then_one_account),
        cmocka_unit_test(test_take_when_the_burst_is_used_then_one_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
