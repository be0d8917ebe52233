/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers: who may come while there is room, who gives way when there is none, and who is slowed.
 * Time is what the test says.
 */
#include "net/peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/lib/fault_heap.h"

enum { SLOTS_MAX = 1200, SECOND_US = 1000 * 1000 };

/* Clients, by what they are in the story. */
enum { GREEDY = 11, MODEST = 22, OTHER = 33 };

struct place {
    struct hps_peer_slot *slot;
    unsigned n_reported; /* to leave */
};

struct rig {
    struct hps_peers *peers;
    struct place places[SLOTS_MAX];
    unsigned n;
    uint64_t now_us;
    enum hps_peers_refusal why; /* of the last refusal */
};

static void on_leave(void *ctx)
{
    ((struct place *)ctx)->n_reported++;
}

static void rig_open(struct rig *rig, struct hps_peers_limits limits)
{
    *rig = (struct rig){.now_us = 100 * (uint64_t)SECOND_US};
    hps_clock_fake(rig->now_us);
    rig->peers = hps_peers_new(&limits, NULL);
    assert_non_null(rig->peers);
}

static void advance(struct rig *rig, uint64_t us)
{
    rig->now_us += us;
    hps_clock_advance(us);
}

/* One of `client` comes; NULL: it is refused. */
static struct place *come(struct rig *rig, uint64_t client)
{
    struct place *place = &rig->places[rig->n];

    assert_true(rig->n < SLOTS_MAX);
    place->slot = hps_peers_admit(rig->peers, client, false, rig->now_us, &rig->why);
    if (place->slot == NULL) {
        return NULL;
    }
    hps_peer_slot_on_leave(place->slot, on_leave, place);
    rig->n++;
    return place;
}

/* The same; it has had a request and is idle from now on. */
static struct place *come_idle(struct rig *rig, uint64_t client)
{
    struct place *place = come(rig, client);

    assert_non_null(place);
    hps_peer_slot_busy(place->slot);
    hps_peer_slot_idle(place->slot, rig->now_us);
    return place;
}

static struct place *come_busy(struct rig *rig, uint64_t client)
{
    struct place *place = come(rig, client);

    assert_non_null(place);
    hps_peer_slot_busy(place->slot);
    return place;
}

static void go(struct place *place)
{
    hps_peer_slot_free(place->slot);
    place->slot = NULL;
}

static unsigned n_reported(const struct rig *rig)
{
    unsigned n = 0;

    for (unsigned i = 0; i < rig->n; i++) {
        assert_true(rig->places[i].n_reported <= 1);
        n += rig->places[i].n_reported;
    }
    return n;
}

static void rig_close(struct rig *rig)
{
    hps_peers_free(rig->peers);
    for (unsigned i = 0; i < rig->n; i++) { /* slots outlive the table's owner */
        hps_peer_slot_free(rig->places[i].slot);
    }
    hps_clock_real();
}

/* ---- who gives way --------------------------------------------------------------------------- */

static void test_admit_when_there_is_room_then_one_peer_may_have_all(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 8, .share = 0.25});
    for (unsigned i = 0; i < 8; i++) {
        come_busy(&rig, GREEDY);
    }
    assert_int_equal(n_reported(&rig), 0);
    assert_int_equal(hps_peers_connections(rig.peers), 8);
    rig_close(&rig);
}

static void test_admit_when_full_then_longest_idle_of_whoever_has_most_goes(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 8, .share = 0.25});
    struct place *first = come_idle(&rig, MODEST);
    for (unsigned i = 0; i < 3; i++) {
        come_busy(&rig, GREEDY);
    }
    struct place *old = come_idle(&rig, GREEDY);
    advance(&rig, 1);
    struct place *young = come_idle(&rig, GREEDY);
    come_busy(&rig, GREEDY);
    struct place *mute = come(&rig, GREEDY);
    come_busy(&rig, OTHER);
    assert_int_equal(mute->n_reported, 1); /* without a request: before those that are idle */
    come_busy(&rig, OTHER);
    assert_int_equal(old->n_reported, 1);
    assert_int_equal(young->n_reported, 0);
    assert_int_equal(first->n_reported,
                     0); /* idle for longer, but its peer has no more than a share */
    assert_true(hps_peer_slot_is_leaving(old->slot));
    rig_close(&rig);
}

static void test_admit_when_all_have_calls_then_only_whoever_has_more_than_a_share_gives_way(
    void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 4, .share = 0.25});
    for (unsigned i = 0; i < 4; i++) {
        come_busy(&rig, GREEDY);
    }
    assert_null(come(&rig, GREEDY)); /* who has more than a share pushes nobody out */
    assert_int_equal(rig.why, HPS_PEERS_FULL);
    for (unsigned i = 0; i < 3; i++) {
        come_busy(&rig, MODEST + i);
        assert_int_equal(n_reported(&rig), i + 1);
    }
    assert_null(come(&rig, OTHER + 5)); /* everybody has one: that is a share */
    assert_int_equal(n_reported(&rig), 3);
    rig_close(&rig);
}

static void test_admit_when_full_and_over_the_share_then_its_own_longest_idle_goes(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 4, .share = 0.5});
    struct place *other = come_idle(&rig, OTHER);
    struct place *mine = come_idle(&rig, GREEDY);
    come_busy(&rig, GREEDY);
    come_busy(&rig, GREEDY);
    assert_null(come(&rig, GREEDY)); /* it may be about to be used */
    advance(&rig, SECOND_US);
    come_busy(&rig, GREEDY);
    assert_int_equal(mine->n_reported, 1);
    assert_int_equal(other->n_reported, 0);
    rig_close(&rig);
}

static void test_admit_when_full_of_small_peers_then_longest_idle_of_all_goes(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 4, .share = 0.25});
    come_busy(&rig, 1);
    struct place *young = NULL;
    struct place *old = come_idle(&rig, 2);
    advance(&rig, SECOND_US);
    young = come_idle(&rig, 3);
    come_busy(&rig, 4);
    come_busy(&rig, 5);
    assert_int_equal(old->n_reported, 1);
    assert_null(come(&rig, 6));
    advance(&rig, SECOND_US);
    come_busy(&rig, 6);
    assert_int_equal(young->n_reported, 1);
    rig_close(&rig);
}

static void test_admit_when_those_told_do_not_go_then_few_come_beyond_the_limit(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 400, .share = 0.25});
    for (unsigned i = 0; i < 400; i++) {
        come_busy(&rig, GREEDY);
    }
    for (unsigned i = 0; i < 64; i++) {
        come_busy(&rig, 1000 + i);
    }
    assert_null(come(&rig, OTHER));
    assert_int_equal(hps_peers_connections(rig.peers), 464);
    for (unsigned i = 0; i < 400; i++) {
        if (rig.places[i].n_reported > 0) {
            go(&rig.places[i]);
            break;
        }
    }
    assert_non_null(come(&rig, OTHER));
    rig_close(&rig);
}

static void test_admit_when_a_seat_cannot_be_asked_then_refused(void **state)
{
    (void)state;
    struct rig rig;
    enum hps_peers_refusal why;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 1, .share = 0.25});
    struct hps_peer_slot *slot = hps_peers_admit(rig.peers, GREEDY, false, rig.now_us, &why);
    assert_non_null(slot);
    advance(&rig, 5 * SECOND_US);
    assert_null(come(&rig, MODEST));
    assert_int_equal(hps_peers_refused(rig.peers), 1);
    hps_peer_slot_free(slot);
    assert_non_null(come(&rig, MODEST));
    rig_close(&rig);
}

static void test_admit_when_no_shares_then_only_idle_ones_give_way(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 2});
    come_busy(&rig, GREEDY);
    come_busy(&rig, GREEDY);
    assert_null(come(&rig, MODEST));
    hps_peer_slot_idle(rig.places[1].slot, rig.now_us);
    advance(&rig, SECOND_US);
    assert_non_null(come(&rig, MODEST));
    assert_int_equal(rig.places[1].n_reported, 1);
    rig_close(&rig);
}

static void test_admit_when_idle_ones_give_way_at_once_then_the_newcomer_is_let_in(void **state)
{
    (void)state;
    for (unsigned at_once = 0; at_once < 2; at_once++) {
        struct rig rig;
        rig_open(&rig, (struct hps_peers_limits){.connections_max = 2, .idle_at_once = at_once});
        assert_non_null(come(&rig, GREEDY));
        assert_non_null(come(&rig, GREEDY));
        assert_int_equal(come(&rig, GREEDY) != NULL, at_once);
        assert_int_equal(rig.places[0].n_reported, at_once);
        for (unsigned i = 0; i < 200; i++) { /* none of those that were told has gone */
            assert_int_equal(come(&rig, GREEDY) != NULL, at_once);
        }
        rig_close(&rig);
    }
}

static void test_admit_when_a_large_table_is_full_then_all_are_looked_at_in_turn(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 1100, .share = 0.25});
    for (unsigned i = 0; i < 1100; i++) {
        come_busy(&rig, 1000 + i);
    }
    hps_peer_slot_idle(rig.places[900].slot, rig.now_us);
    advance(&rig, SECOND_US);
    unsigned n_tries = 1;
    while (come(&rig, OTHER) == NULL) {
        assert_true(++n_tries <= 3); /* of 512 each */
    }
    assert_int_equal(rig.places[900].n_reported, 1);
    rig_close(&rig);
}

static void test_limits_when_set_then_shares_follow(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.connections_max = 4});
    for (unsigned i = 0; i < 4; i++) {
        come_busy(&rig, GREEDY);
    }
    assert_null(come(&rig, MODEST));
    hps_peers_limits_set(rig.peers, &(struct hps_peers_limits){.connections_max = 4, .share = 0.5});
    come_busy(&rig, MODEST);
    come_busy(&rig, MODEST);
    assert_int_equal(n_reported(&rig), 2);
    assert_null(come(&rig, OTHER)); /* both have a share */
    rig_close(&rig);
}

static void test_admit_when_the_hard_limit_of_a_peer_is_met_then_refused(void **state)
{
    (void)state;
    struct rig rig;
    enum hps_peers_refusal why;
    rig_open(&rig, (struct hps_peers_limits){.connections_per_peer_max = 1});
    come_idle(&rig, GREEDY);
    advance(&rig, SECOND_US);
    assert_null(come(&rig, GREEDY));
    assert_int_equal(rig.why, HPS_PEERS_PEER_MAX);
    assert_int_equal(n_reported(&rig), 0);
    assert_non_null(come(&rig, MODEST));
    for (unsigned i = 0; i < 2; i++) { /* Unix users have none */
        struct place *place = &rig.places[rig.n++];
        place->slot = hps_peers_admit(rig.peers, OTHER, true, rig.now_us, &why);
        assert_non_null(place->slot);
    }
    rig_close(&rig);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* A connection of `client` comes, and fails; false: it was refused. */
static bool fail_as(struct rig *rig, uint64_t client)
{
    struct hps_peer_slot *slot = hps_peers_admit(rig->peers, client, false, rig->now_us, &rig->why);

    if (slot == NULL) {
        return false;
    }
    (void)hps_peer_slot_failed(slot, rig->now_us);
    hps_peer_slot_free(slot);
    return true;
}

static void test_failures_when_too_many_then_some_a_second_are_let_in(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.failures_max = 20});
    for (unsigned i = 0; i < 20; i++) {
        assert_true(fail_as(&rig, GREEDY)); /* none is open meanwhile: they are remembered */
    }
    for (unsigned i = 0; i < HPS_PEERS_LET_IN_PER_S; i++) {
        assert_true(fail_as(&rig, GREEDY));
    }
    assert_false(fail_as(&rig, GREEDY));
    assert_int_equal(rig.why, HPS_PEERS_SLOWED);
    assert_true(fail_as(&rig, MODEST)); /* another one is not */
    advance(&rig, SECOND_US / HPS_PEERS_LET_IN_PER_S);
    assert_true(fail_as(&rig, GREEDY));
    assert_false(fail_as(&rig, GREEDY));
    rig_close(&rig);
}

static void test_failures_when_they_end_then_it_is_slowed_no_longer(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.failures_max = 6});
    for (unsigned i = 0; i < 100; i++) {
        (void)fail_as(&rig, GREEDY);
    }
    assert_null(come(&rig, GREEDY));
    advance(&rig, 21 * (uint64_t)SECOND_US); /* ten, and what one failure of six a minute lasts */
    for (unsigned i = 0; i < 100; i++) {
        assert_non_null(come(&rig, GREEDY));
    }
    rig_close(&rig);
}

static void test_failures_when_few_or_unlimited_then_nobody_is_slowed(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.failures_max = 60});
    for (unsigned i = 0; i < 500; i++) { /* one a second, as a probe may */
        assert_true(fail_as(&rig, GREEDY));
        advance(&rig, SECOND_US);
    }
    hps_peers_limits_set(rig.peers, &(struct hps_peers_limits){.failures_max = 0});
    for (unsigned i = 0; i < 500; i++) {
        assert_true(fail_as(&rig, GREEDY));
    }
    rig_close(&rig);
}

static void test_failures_when_told_then_again_after_a_while_with_their_number(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.failures_max = 60});
    struct place *place = come(&rig, GREEDY);
    assert_int_equal(hps_peer_slot_failed(place->slot, rig.now_us), 1);
    assert_int_equal(hps_peer_slot_failed(place->slot, rig.now_us + 1), 0);
    assert_int_equal(hps_peer_slot_failed(place->slot, rig.now_us + 2), 0);
    assert_int_equal(hps_peer_slot_failed(place->slot, rig.now_us + 10 * SECOND_US), 3);
    rig_close(&rig);
}

static void test_failures_when_of_many_peers_then_only_some_are_remembered(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, (struct hps_peers_limits){.failures_max = 1});
    assert_true(fail_as(&rig, GREEDY));
    for (unsigned i = 0; i < HPS_PEERS_LET_IN_PER_S; i++) {
        assert_true(fail_as(&rig, GREEDY));
    }
    assert_false(fail_as(&rig, GREEDY));
    for (unsigned i = 0; i < 2000; i++) {
        assert_true(fail_as(&rig, 1000 + i));
    }
    assert_true(fail_as(&rig, GREEDY)); /* forgotten: the table does not grow for ever */
    rig_close(&rig);
}

static void admit_two(void *ctx)
{
    struct hps_peers_limits limits = {.connections_max = 2, .share = 0.25};
    struct hps_peers *peers = hps_peers_new(&limits, NULL);
    enum hps_peers_refusal why = HPS_PEERS_FULL;

    (void)ctx;
    if (peers == NULL) {
        return;
    }
    for (uint64_t client = 0; client < 2; client++) {
        struct hps_peer_slot *slot = hps_peers_admit(peers, client, false, 1, &why);
        assert_true(slot != NULL || why == HPS_PEERS_FAILED);
        hps_peer_slot_free(slot);
        assert_int_equal(hps_peers_connections(peers), 0);
    }
    hps_peers_free(peers);
}

/* ---- what they hold -------------------------------------------------------------------------- */

static void test_bytes_when_held_by_some_of_a_peer_then_counted_together(void **state)
{
    static struct rig rig;

    (void)state;
    rig_open(&rig, (struct hps_peers_limits){0});
    struct place *first = come(&rig, GREEDY);
    struct place *second = come(&rig, GREEDY);
    struct place *other = come(&rig, MODEST);
    hps_peer_slot_hold(first->slot, 100);
    hps_peer_slot_hold(second->slot, 20);
    hps_peer_slot_hold(other->slot, 3);
    assert_int_equal(hps_peer_slot_peer_bytes(first->slot), 120);
    assert_int_equal(hps_peer_slot_peer_bytes(other->slot), 3);
    hps_peer_slot_hold(first->slot, (size_t)-100);
    hps_peer_slot_free(first->slot);
    first->slot = NULL;
    assert_int_equal(hps_peer_slot_peer_bytes(second->slot), 20);
    hps_peer_slot_hold(second->slot, (size_t)-20);
    hps_peer_slot_hold(other->slot, (size_t)-3);
    hps_peer_slot_hold(NULL, 7); /* of a connection that has no slot */
    assert_int_equal(hps_peer_slot_peer_bytes(NULL), 0);
    rig_close(&rig);
}

static void test_admit_when_no_memory_then_refused_and_nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(admit_two, NULL), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admit_when_there_is_room_then_one_peer_may_have_all),
        cmocka_unit_test(test_admit_when_full_then_longest_idle_of_whoever_has_most_goes),
        cmocka_unit_test(
            test_admit_when_all_have_calls_then_only_whoever_has_more_than_a_share_gives_way),
        cmocka_unit_test(test_admit_when_full_and_over_the_share_then_its_own_longest_idle_goes),
        cmocka_unit_test(test_admit_when_full_of_small_peers_then_longest_idle_of_all_goes),
        cmocka_unit_test(test_admit_when_those_told_do_not_go_then_few_come_beyond_the_limit),
        cmocka_unit_test(test_admit_when_a_seat_cannot_be_asked_then_refused),
        cmocka_unit_test(test_admit_when_no_shares_then_only_idle_ones_give_way),
        cmocka_unit_test(test_admit_when_idle_ones_give_way_at_once_then_the_newcomer_is_let_in),
        cmocka_unit_test(test_admit_when_a_large_table_is_full_then_all_are_looked_at_in_turn),
        cmocka_unit_test(test_limits_when_set_then_shares_follow),
        cmocka_unit_test(test_admit_when_the_hard_limit_of_a_peer_is_met_then_refused),
        cmocka_unit_test(test_failures_when_too_many_then_some_a_second_are_let_in),
        cmocka_unit_test(test_failures_when_they_end_then_it_is_slowed_no_longer),
        cmocka_unit_test(test_failures_when_few_or_unlimited_then_nobody_is_slowed),
        cmocka_unit_test(test_failures_when_told_then_again_after_a_while_with_their_number),
        cmocka_unit_test(test_failures_when_of_many_peers_then_only_some_are_remembered),
        cmocka_unit_test(test_bytes_when_held_by_some_of_a_peer_then_counted_together),
        cmocka_unit_test(test_admit_when_no_memory_then_refused_and_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
