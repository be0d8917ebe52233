/* SPDX-License-Identifier: Apache-2.0
 *
 * Places: which connection is displaced when none is free, when a new one is refused, and which
 * clients are slowed. The test sets the time.
 */
#include "net/places.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/fault_heap.h"

enum { PLACES_MAX = 1200, SECOND_US = 1000 * 1000, REFUSED = -1 };
enum { GREEDY = 'A', MODEST = 'B' };

struct seat {
    struct hps_place *place;
    uint64_t client;
    unsigned n_reported; /* displaced */
};

struct rig {
    struct hps_place_table *table;
    struct seat seats[PLACES_MAX];
    unsigned n;
    uint64_t now_us;
    enum hps_place_refusal why; /* of the last refusal */
};

static void on_leave(void *ctx)
{
    ((struct seat *)ctx)->n_reported++;
}

static void rig_open(struct rig *rig, struct hps_place_limits limits)
{
    *rig = (struct rig){.now_us = 100 * (uint64_t)SECOND_US};
    rig->table = hps_places_new(&limits, NULL);
    assert_non_null(rig->table);
}

/* A connection takes seat i. False: it is refused. */
static bool come_at(struct rig *rig, unsigned i, uint64_t client)
{
    struct seat *seat = &rig->seats[i];

    assert_true(i < PLACES_MAX && seat->place == NULL);
    *seat = (struct seat){.client = client};
    seat->place = hps_places_admit(rig->table, client, false, rig->now_us, &rig->why);
    if (seat->place != NULL) {
        hps_place_on_leave(seat->place, on_leave, seat);
    }
    return seat->place != NULL;
}

static void go(struct seat *seat)
{
    hps_place_free(seat->place);
    *seat = (struct seat){0};
}

/* The next seat. NULL: the connection is refused. */
static struct seat *come(struct rig *rig, uint64_t client)
{
    return come_at(rig, rig->n, client) ? &rig->seats[rig->n++] : NULL;
}

static void come_busy(struct rig *rig, uint64_t client, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct seat *seat = come(rig, client);
        assert_non_null(seat);
        hps_place_busy(seat->place, rig->now_us);
    }
}

/* The first that is displaced. */
static int displaced(const struct rig *rig)
{
    for (unsigned i = 0; i < rig->n; i++) {
        if (rig->seats[i].n_reported > 0) {
            assert_int_equal(rig->seats[i].n_reported, 1);
            assert_true(hps_place_is_leaving(rig->seats[i].place));
            return (int)i;
        }
    }
    return REFUSED;
}

static void rig_close(struct rig *rig)
{
    hps_places_free(rig->table);
    for (unsigned i = 0; i < rig->n; i++) { /* places outlive the table's owner */
        hps_place_free(rig->seats[i].place);
    }
}

/* ---- displacement ---------------------------------------------------------------------------- */

static void test_admit_when_full_then_the_client_with_most_loses_its_slowest(void **state)
{
    /* All places, as client, state (? no request so far, . idle, ! calls), and tenths of a second
     * in this state; then the client of a new connection, and which place it takes. */
    static const struct {
        const char *places;
        char comes;
        int with_calls, short_calls; /* the same with short_calls */
    } cases[] = {
        /* another client has more: it loses any, the slowest one */
        {"A!30 A!50 A!40 B!99", 'B', 1, 1},
        {"A!50 A.5 A!60 B.99", 'B', 1, 2},
        {"A!50 A.4 A?3 A.5 B.99", 'B', 3, 0},
        {"A!50 A.30 A?20 A.40 B?99", 'B', 2, 2},
        {"A!50 A.30 A.40 A?9 B?99", 'B', 2, 0},
        {"A!1 A!2 B?99 C?99", 'D', 1, 1},
        /* no other client has more than it would have: only idle ones are lost */
        {"A!30 A!50 B!99 B!99", 'B', REFUSED, 2},
        {"A.30 A!50 B.99 B.98", 'B', 2, 2},
        {"A.99 A!50 B.9 B?9", 'B', REFUSED, 2},
        {"A!99 B.30 B.40 B?11", 'B', 3, 3},
        {"A.99 A.99 B!1 B!2 B!3", 'B', REFUSED, 4},
        {"A!30 A.40 B!20", 'B', 1, 1},
        {"A!30 A!40 B!20", 'B', REFUSED, 1},
        {"A!99 B.30 C?20 D.99", 'E', 2, 2},
        {"A!99 B.30 C?9 D.40", 'E', 3, 0},
        {"A!9 B.8 C?7 D.6", 'E', REFUSED, 0},
    };

    (void)state;
    for (unsigned i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        bool short_calls = i % 2 > 0;
        const char *at = cases[i / 2].places;
        struct rig rig;
        rig_open(&rig, (struct hps_place_limits){.short_calls = short_calls});
        while (at != NULL) {
            uint64_t ago_us = strtoull(at + 2, NULL, 10) * SECOND_US / 10;
            rig.now_us -= ago_us;
            struct seat *seat = come(&rig, (uint64_t)at[0]);
            assert_non_null(seat);
            if (at[1] == '.') {
                hps_place_idle(seat->place, rig.now_us);
            } else if (at[1] == '!') {
                hps_place_busy(seat->place, rig.now_us);
            }
            rig.now_us += ago_us;
            at = strchr(at, ' ');
            at = at != NULL ? at + 1 : NULL;
        }
        unsigned n = rig.n;
        hps_places_limits_set(rig.table,
                              &(struct hps_place_limits){.max = n, .short_calls = short_calls});
        int expected = short_calls ? cases[i / 2].short_calls : cases[i / 2].with_calls;
        bool comes = come(&rig, (uint64_t)cases[i / 2].comes) != NULL;
        if (comes != (expected != REFUSED) || displaced(&rig) != expected) {
            fail_msg("%s: %d of %s is displaced for %c, expected %d",
                     short_calls ? "short" : "long", displaced(&rig), cases[i / 2].places,
                     cases[i / 2].comes, expected);
        }
        assert_true(comes || rig.why == HPS_PLACES_FULL);
        assert_int_equal(hps_places_taken(rig.table), n + comes);
        rig_close(&rig);
    }
}

/* Connections come, work, rest and go at random; the seats are a model. */
static void test_admit_when_clients_come_and_go_then_those_with_most_lose(void **state)
{
    enum { SEATS = 40, CLIENTS = 9, STEPS = 20000 };
    struct rig rig;
    uint64_t x = 88172645463325252;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.max = SEATS - 1});
    rig.n = SEATS;
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned n_of[CLIENTS] = {0};
        unsigned n = 0;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        rig.now_us += x % SECOND_US;
        struct seat *seat = &rig.seats[x >> 8 & 63];
        if (seat >= rig.seats + SEATS) {
            continue;
        }
        if (seat->place != NULL) {
            if (x % 16 == 0) {
                go(seat);
            } else if (x % 2 == 0) {
                hps_place_idle(seat->place, rig.now_us);
            } else {
                hps_place_busy(seat->place, rig.now_us);
            }
            continue;
        }
        for (unsigned i = 0; i < SEATS; i++) {
            n += rig.seats[i].place != NULL;
            n_of[rig.seats[i].client] += rig.seats[i].place != NULL;
        }
        uint64_t client = (x >> 20) % (1 + (x >> 30) % CLIENTS); /* some come more often */
        bool comes = come_at(&rig, (unsigned)(seat - rig.seats), client);
        int lost = displaced(&rig);
        assert_true(n < SEATS - 1 ? comes && lost == REFUSED : comes == (lost != REFUSED));
        uint64_t loser = lost != REFUSED ? rig.seats[lost].client : client;
        for (unsigned i = 0; n == SEATS - 1 && i < CLIENTS; i++) {
            assert_true(n_of[i] <= n_of[loser] + (loser == client));
        }
        if (lost != REFUSED) {
            go(&rig.seats[lost]);
        }
    }
    rig_close(&rig);
}

static void test_admit_when_one_client_has_very_many_then_it_loses_them(void **state)
{
    static const unsigned n_of[] = {260, 270, 256, 255, 1};
    static struct rig rig;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.max = 1042});
    for (unsigned i = 0; i < sizeof n_of / sizeof *n_of; i++) {
        come_busy(&rig, i, n_of[i]);
    }
    come_busy(&rig, 9, 10);
    for (unsigned i = 0; i < rig.n; i++) {
        assert_int_equal(rig.seats[i].n_reported, i >= 260 && i < 270);
    }
    rig_close(&rig);
}

static void test_admit_when_many_clients_have_one_each_then_all_are_compared_in_turn(void **state)
{
    static struct rig rig;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.max = 1100});
    for (unsigned i = 0; i < 1100; i++) {
        come_busy(&rig, 1000 + i, 1);
    }
    hps_place_idle(rig.seats[900].place, rig.now_us);
    rig.now_us += SECOND_US;
    unsigned n_tries = 1;
    while (come(&rig, MODEST) == NULL) {
        assert_true(++n_tries <= 3); /* of 512 each */
    }
    assert_int_equal(displaced(&rig), 900);
    rig_close(&rig);
}

static void test_admit_when_those_displaced_do_not_close_then_few_come_beyond_the_limit(
    void **state)
{
    static struct rig rig;

    (void)state;
    for (unsigned short_calls = 0; short_calls < 2; short_calls++) {
        rig_open(&rig, (struct hps_place_limits){.max = 400, .short_calls = short_calls});
        come_busy(&rig, GREEDY, 400);
        for (unsigned i = 0; i < 64; i++) {
            come_busy(&rig, 1000 + i, 1);
        }
        assert_int_equal(come(&rig, MODEST) != NULL, short_calls);
        assert_int_equal(hps_places_taken(rig.table), 464 + short_calls);
        go(&rig.seats[displaced(&rig)]);
        assert_non_null(come(&rig, MODEST));
        rig_close(&rig);
    }
}

static void test_admit_when_a_place_cannot_be_displaced_then_refused(void **state)
{
    struct rig rig;
    enum hps_place_refusal why;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.max = 1});
    struct hps_place *place = hps_places_admit(rig.table, GREEDY, false, rig.now_us, &why);
    assert_non_null(place);
    rig.now_us += 5 * (uint64_t)SECOND_US;
    assert_null(come(&rig, MODEST));
    hps_place_free(place);
    assert_non_null(come(&rig, MODEST));
    rig_close(&rig);
}

static void test_admit_when_the_limit_of_a_client_is_reached_then_refused(void **state)
{
    struct rig rig;
    enum hps_place_refusal why;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.client_max = 1});
    assert_non_null(come(&rig, GREEDY));
    rig.now_us += SECOND_US;
    assert_null(come(&rig, GREEDY));
    assert_int_equal(rig.why, HPS_PLACES_CLIENT_MAX);
    assert_int_equal(displaced(&rig), REFUSED);
    assert_non_null(come(&rig, MODEST));
    for (unsigned i = 0; i < 2; i++) { /* Unix users have no limit of their own */
        rig.seats[rig.n].place = hps_places_admit(rig.table, 7, true, rig.now_us, &why);
        assert_non_null(rig.seats[rig.n++].place);
    }
    rig_close(&rig);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* A connection comes and fails. False: it was refused. */
static bool fail_as(struct rig *rig, uint64_t client)
{
    struct seat *seat = come(rig, client);

    if (seat == NULL) {
        assert_int_equal(rig->why, HPS_PLACES_SLOWED);
        return false;
    }
    (void)hps_place_failed(seat->place, rig->now_us);
    go(seat);
    rig->n--;
    return true;
}

static unsigned fail_times(struct rig *rig, uint64_t client, unsigned n)
{
    unsigned n_failed = 0;

    for (unsigned i = 0; i < n; i++) {
        n_failed += fail_as(rig, client);
    }
    return n_failed;
}

static void test_failures_when_too_many_then_some_a_second_are_let_in(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.failures_max = 20});
    assert_int_equal(fail_times(&rig, GREEDY, 100), 20 + HPS_PLACES_LET_IN_PER_S);
    assert_true(fail_as(&rig, MODEST)); /* another client is not slowed */
    rig.now_us += SECOND_US / HPS_PLACES_LET_IN_PER_S;
    assert_int_equal(fail_times(&rig, GREEDY, 100), 1);
    hps_places_limits_set(rig.table, &(struct hps_place_limits){.failures_max = 0});
    assert_int_equal(fail_times(&rig, GREEDY, 500), 500);
    rig_close(&rig);
}

static void test_failures_when_they_end_then_it_is_slowed_no_longer(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.failures_max = 6});
    (void)fail_times(&rig, GREEDY, 100);
    assert_null(come(&rig, GREEDY));
    rig.now_us += 21 * (uint64_t)SECOND_US; /* 10, and a sixth of a minute for a failure */
    for (unsigned i = 0; i < 100; i++) {
        assert_non_null(come(&rig, GREEDY));
    }
    rig_close(&rig);
}

static void test_failures_when_one_a_second_then_it_is_not_slowed(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.failures_max = 60});
    for (unsigned i = 0; i < 500; i++) { /* as a probe may */
        assert_true(fail_as(&rig, GREEDY));
        rig.now_us += SECOND_US;
    }
    rig_close(&rig);
}

static void test_failures_when_reported_then_again_after_a_while_with_their_number(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.failures_max = 60});
    struct hps_place *place = come(&rig, GREEDY)->place;
    assert_int_equal(hps_place_failed(place, rig.now_us), 1);
    assert_int_equal(hps_place_failed(place, rig.now_us + 1), 0);
    assert_int_equal(hps_place_failed(place, rig.now_us + 2), 0);
    assert_int_equal(hps_place_failed(place, rig.now_us + 10 * (uint64_t)SECOND_US), 3);
    rig_close(&rig);
}

static void test_failures_when_of_many_clients_then_only_some_are_remembered(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, (struct hps_place_limits){.failures_max = 1});
    assert_int_equal(fail_times(&rig, GREEDY, 100), 1 + HPS_PLACES_LET_IN_PER_S);
    rig.now_us += 1;
    for (unsigned i = 0; i < 2000; i++) {
        assert_true(fail_as(&rig, 1000 + i));
    }
    assert_true(fail_as(&rig, GREEDY)); /* forgotten: the table does not grow */
    rig_close(&rig);
}

/* ---- memory -------------------------------------------------------------------------------- */

static void admit_two(void *ctx)
{
    const struct hps_place_limits limits = {.max = 2};
    struct hps_place_table *table = hps_places_new(&limits, NULL);
    enum hps_place_refusal why = HPS_PLACES_FULL;

    (void)ctx;
    for (uint64_t client = 0; table != NULL && client < 2; client++) {
        struct hps_place *place = hps_places_admit(table, client, false, 1, &why);
        assert_true(place != NULL || why == HPS_PLACES_FAILED);
        hps_place_free(place);
        assert_int_equal(hps_places_taken(table), 0);
    }
    hps_places_free(table);
}

static void test_admit_when_no_memory_then_refused_and_nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(admit_two, NULL), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admit_when_full_then_the_client_with_most_loses_its_slowest),
        cmocka_unit_test(test_admit_when_clients_come_and_go_then_those_with_most_lose),
        cmocka_unit_test(test_admit_when_one_client_has_very_many_then_it_loses_them),
        cmocka_unit_test(test_admit_when_many_clients_have_one_each_then_all_are_compared_in_turn),
        cmocka_unit_test(
            test_admit_when_those_displaced_do_not_close_then_few_come_beyond_the_limit),
        cmocka_unit_test(test_admit_when_a_place_cannot_be_displaced_then_refused),
        cmocka_unit_test(test_admit_when_the_limit_of_a_client_is_reached_then_refused),
        cmocka_unit_test(test_failures_when_too_many_then_some_a_second_are_let_in),
        cmocka_unit_test(test_failures_when_they_end_then_it_is_slowed_no_longer),
        cmocka_unit_test(test_failures_when_one_a_second_then_it_is_not_slowed),
        cmocka_unit_test(test_failures_when_reported_then_again_after_a_while_with_their_number),
        cmocka_unit_test(test_failures_when_of_many_clients_then_only_some_are_remembered),
        cmocka_unit_test(test_admit_when_no_memory_then_refused_and_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
