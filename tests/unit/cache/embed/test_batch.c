/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups of the embedding cache: limits, tickets and regions while the device works, and
 * counting.
 */
#include "tests/lib/embed_fixture.h"

#include "base/heap.h"

enum { N_KEYS = 40 };

struct batch_fixture {
    struct embed_fixture f;
    struct embed_table table;
    hps_key keys[4096];
};

static int setup(void **state)
{
    static struct batch_fixture fixture;
    uint32_t indices[N_KEYS];

    fixture_open(&fixture.f, 0, NULL);
    embed_table_open(&fixture.f.rig, &fixture.table, 256, 200, N_KEYS, 0);
    for (uint32_t i = 0; i < N_KEYS; i++) {
        indices[i] = i;
    }
    embed_change(&fixture.f.rig, &fixture.table, HPS_EMBED_INSERT, indices, N_KEYS);
    for (uint32_t i = 0; i < 4096; i++) {
        fixture.keys[i] = fixture.table.keys[i % N_KEYS];
    }
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    struct batch_fixture *fixture = *state;
    embed_table_close(&fixture->table);
    fixture_close(&fixture->f);
    return 0;
}

static struct hps_embed_part part_of(struct batch_fixture *fixture, unsigned query, uint32_t n)
{
    return (struct hps_embed_part){.range = fixture->table.range,
                                   .keys = (const uint8_t *)fixture->keys,
                                   .n = n,
                                   .region = fixture->f.rig.queries[query].region};
}

static hps_status submit(struct batch_fixture *fixture, unsigned query, uint32_t n,
                         struct hps_embed_ticket **out_ticket)
{
    struct hps_embed_part part = part_of(fixture, query, n);
    return hps_embed_submit(fixture->f.rig.cache, &part, 1, out_ticket);
}

static hps_status wait(struct hps_embed_ticket *ticket)
{
    hps_status status;
    while ((status = hps_embed_poll(ticket)) == HPS_AGAIN) {
    }
    return status;
}

static void test_submit_when_larger_than_a_batch_then_invalid(void **state)
{
    struct batch_fixture *fixture = *state;
    struct hps_embed_part parts[EMBED_QUERY_PARTS + 1];
    struct hps_embed_ticket *ticket;

    for (uint32_t i = 0; i <= EMBED_QUERY_PARTS; i++) {
        parts[i] = part_of(fixture, 0, 1);
    }
    assert_int_equal(hps_embed_submit(fixture->f.rig.cache, parts, EMBED_QUERY_PARTS + 1, &ticket),
                     HPS_INVALID);
    parts[0].n = 4096; /* 4096 rows of 256 bytes fill the gather buffer */
    assert_int_equal(hps_embed_submit(fixture->f.rig.cache, parts, 1, &ticket), HPS_OK);
    assert_int_equal(wait(ticket), HPS_OK);
    hps_embed_release(ticket);
    assert_int_equal(hps_embed_submit(fixture->f.rig.cache, parts, 2, &ticket), HPS_INVALID);
}

static void test_submit_when_it_has_no_keys_then_done_at_once(void **state)
{
    struct batch_fixture *fixture = *state;
    struct hps_embed_ticket *none, *empty;
    struct hps_embed_part parts[2] = {part_of(fixture, 0, 0), part_of(fixture, 1, 0)};

    parts[1].keys = NULL;
    hps_device_sim_hold(fixture->f.device, true);
    assert_int_equal(hps_embed_submit(fixture->f.rig.cache, NULL, 0, &none), HPS_OK);
    assert_int_equal(hps_embed_submit(fixture->f.rig.cache, parts, 2, &empty), HPS_OK);
    assert_int_equal(hps_embed_poll(none), HPS_OK);
    assert_int_equal(hps_embed_poll(empty), HPS_OK);
    assert_non_null(hps_embed_hits(empty, 1));
    hps_device_sim_hold(fixture->f.device, false);
    hps_embed_release(none);
    hps_embed_release(empty);
}

static void test_submit_when_all_tickets_are_taken_then_again(void **state)
{
    struct batch_fixture *fixture = *state;
    struct hps_embed_ticket *tickets[EMBED_QUERIES], *one_more;

    for (uint32_t i = 0; i < EMBED_QUERIES; i++) {
        assert_int_equal(submit(fixture, i, 10, &tickets[i]), HPS_OK);
    }
    assert_int_equal(submit(fixture, 0, 10, &one_more), HPS_AGAIN);
    assert_int_equal(wait(tickets[2]), HPS_OK);
    assert_int_equal(submit(fixture, 0, 10, &one_more), HPS_AGAIN); /* its hits are in use */
    hps_embed_release(tickets[2]);
    hps_status status;
    while ((status = submit(fixture, 2, 10, &one_more)) == HPS_AGAIN) {
    }
    assert_int_equal(status, HPS_OK);
    tickets[2] = one_more;
    for (uint32_t i = 0; i < EMBED_QUERIES; i++) {
        hps_embed_release(tickets[i]);
    }
}

static void test_submit_when_gather_buffer_is_full_then_again(void **state)
{
    struct batch_fixture *fixture = *state;
    struct hps_embed_ticket *first, *second;

    hps_device_sim_hold(fixture->f.device, true);
    assert_int_equal(submit(fixture, 0, 2500, &first), HPS_OK);
    assert_int_equal(submit(fixture, 1, 2500, &second), HPS_AGAIN);
    hps_device_sim_hold(fixture->f.device, false);
    assert_int_equal(wait(first), HPS_OK);
    hps_status status;
    while ((status = submit(fixture, 1, 2500, &second)) == HPS_AGAIN) {
        hps_embed_advance(fixture->f.rig.cache);
    }
    assert_int_equal(status, HPS_OK);
    hps_embed_release(first);
    assert_int_equal(wait(second), HPS_OK);
    hps_embed_release(second);
}

/* Free a region during a lookup of n rows. The kernel stores few rows itself; many rows are
 * copied out. */
static void free_region_under_way(struct batch_fixture *fixture, uint32_t n)
{
    struct embed_fixture *f = &fixture->f;
    struct hps_embed_region *region;
    struct hps_embed_ticket *ticket;
    uint8_t *memory = hps_alloc_aligned(4096, 1 << 20);
    hps_status status;

    assert_int_equal(hps_embed_region_host(f->rig.cache, memory, 1 << 20, &region, &f->err),
                     HPS_OK);
    struct hps_embed_part part = part_of(fixture, 0, n);
    part.region = region;
    hps_device_sim_hold(f->device, true);
    assert_int_equal(hps_embed_submit(f->rig.cache, &part, 1, &ticket), HPS_OK);
    assert_int_equal(hps_embed_region_free(region), HPS_AGAIN);
    hps_embed_release(ticket);
    hps_embed_advance(f->rig.cache);
    assert_int_equal(hps_embed_region_free(region), HPS_AGAIN); /* the device still writes to it */
    hps_device_sim_hold(f->device, false);
    while ((status = hps_embed_region_free(region)) == HPS_AGAIN) {
        hps_embed_advance(f->rig.cache);
    }
    assert_int_equal(status, HPS_OK);
    hps_free_aligned(memory); /* a later write would be a use after free */
    embed_drain(&f->rig);
}

static void test_region_when_freed_in_flight_then_again_until_the_last_event(void **state)
{
    free_region_under_way(*state, 100);
    free_region_under_way(*state, 3000);
}

static void test_ticket_when_released_in_flight_then_its_slot_is_not_reused(void **state)
{
    struct batch_fixture *fixture = *state;
    struct hps_embed_ticket *ticket;

    hps_device_sim_hold(fixture->f.device, true);
    for (uint32_t i = 0; i < EMBED_QUERIES; i++) {
        assert_int_equal(submit(fixture, i, 10, &ticket), HPS_OK);
        hps_embed_release(ticket);
    }
    assert_int_equal(submit(fixture, 0, 10, &ticket), HPS_AGAIN);
    hps_device_sim_hold(fixture->f.device, false);
    embed_drain(&fixture->f.rig);
    assert_int_equal(submit(fixture, 0, 10, &ticket), HPS_OK);
    hps_embed_release(ticket);
}

/* Batch numbers have 32 bits. After a wrap, the old number of a ticket must not end its next
 * batch early. */
static void test_ticket_when_batch_numbers_wrap_then_is_not_done_early(void **state)
{
    struct batch_fixture *fixture = *state;
    struct hps_embed_cache *cache = fixture->f.rig.cache;
    struct hps_embed_ticket *again, *first;

    assert_int_equal(submit(fixture, 0, 10, &again), HPS_OK);
    assert_int_equal(wait(again), HPS_OK);
    hps_embed_release(again);
    embed_drain(&fixture->f.rig);
    hps_device_sim_hold(fixture->f.device, true);
    cache->sequence--;
    assert_int_equal(submit(fixture, 0, 10, &again), HPS_OK);
    hps_status of_again = hps_embed_poll(again);
    cache->sequence = UINT32_MAX;
    assert_int_equal(submit(fixture, 1, 10, &first), HPS_OK);
    hps_status of_first = hps_embed_poll(first);
    hps_device_sim_hold(fixture->f.device, false);
    assert_int_equal(of_again, HPS_AGAIN);
    assert_int_equal(of_first, HPS_AGAIN);
    assert_int_equal(wait(again), HPS_OK);
    assert_int_equal(wait(first), HPS_OK);
    hps_embed_release(again);
    hps_embed_release(first);
}

/* Missing rows are copied out as zeros. */
static void test_rows_when_missing_then_zeros(void **state)
{
    struct batch_fixture *fixture = *state;
    const uint8_t *rows = fixture->f.rig.queries[0].host;
    struct hps_embed_ticket *ticket;

    for (uint32_t i = 0; i < 3000; i++) {
        fixture->keys[i] = fixture->table.keys[0] + 1; /* random keys lack this one */
    }
    assert_int_equal(submit(fixture, 0, 3000, &ticket), HPS_OK);
    assert_int_equal(wait(ticket), HPS_OK);
    assert_int_equal(*hps_embed_hits(ticket, 0), 0);
    for (uint32_t i = 0; i < 3000 * 256; i++) {
        assert_int_equal(rows[i], 0);
    }
    hps_embed_release(ticket);
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Counts of all keys in one row of the sketch. */
static uint64_t counted(const struct batch_fixture *fixture)
{
    const struct hps_embed_desc *desc = &fixture->table.range->desc;
    const uint8_t *cells = hps_device_sim_host(fixture->f.device, desc->sketch);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < hps_embed_sketch_cells(desc->n_sets); i++) {
        sum += cells[i];
    }
    return sum;
}

static void do_lookup(struct batch_fixture *fixture, uint32_t n)
{
    struct hps_embed_ticket *ticket;

    assert_int_equal(submit(fixture, 0, n, &ticket), HPS_OK);
    assert_int_equal(wait(ticket), HPS_OK);
    hps_embed_release(ticket);
    embed_drain(&fixture->f.rig);
}

static void test_sketch_when_every_key_is_counted_then_counts_are_right(void **state)
{
    struct batch_fixture *fixture = *state;

    for (uint32_t i = 0; i < 5; i++) {
        do_lookup(fixture, N_KEYS);
    }
    assert_in_range(counted(fixture), 5 * N_KEYS * 9 / 10, 5 * N_KEYS); /* collisions count once */
}

static void test_sketch_when_it_has_counted_enough_then_is_halved(void **state)
{
    struct batch_fixture *fixture = *state;
    uint64_t n_slots = fixture->table.range->usage.n_slots, n = 0;

    for (; n + 4000 < HPS_EMBED_WINDOW_KEYS * n_slots; n += 4000) {
        do_lookup(fixture, 4000);
    }
    for (; n + N_KEYS < HPS_EMBED_WINDOW_KEYS * n_slots; n += N_KEYS) {
        do_lookup(fixture, N_KEYS);
    }
    uint64_t before = counted(fixture);
    do_lookup(fixture, N_KEYS);
    assert_in_range(counted(fixture), before * 4 / 10, before * 6 / 10);
}

static void test_sketch_when_sampled_then_counts_that_share_of_keys(void **state)
{
    struct batch_fixture *fixture = *state;
    uint64_t n = 0;

    fixture->f.rig.cache->config.sample_rate = 4;
    for (uint32_t i = 0; i < 30; i++) {
        do_lookup(fixture, 32);
        n += 32;
    }
    assert_in_range(fixture->table.range->n_counted, n / 8, n / 2);
}

static void test_row_when_used_more_often_then_stays_and_evicts_other_rows(void **state)
{
    struct batch_fixture *fixture = *state;
    struct embed_rig *rig = &fixture->f.rig;
    struct embed_table table;
    struct hps_embed_range_usage usage;
    enum { N = HPS_EMBED_WAYS * (1 + HPS_EMBED_SPILL_LINES_MAX) };
    hps_key keys[N + 2];
    uint32_t ways[N];

    for (uint32_t i = 0; i < N; i++) {
        ways[i] = i;
    }
    embed_keys_of_one_set(rig, 2000, 64, 1, keys, N + 2);
    embed_table_open_keys(rig, &table, 64, 2000, keys, N + 2);
    embed_change(rig, &table, HPS_EMBED_INSERT, ways, N); /* the set and its spill are full */
    for (uint32_t round = 0; round < 6; round++) {        /* key 5 once, others at least 6 times */
        for (uint32_t i = 0; i < N + 2; i++) {
            fixture->keys[i] = keys[i == 5 && round > 0 ? 4 : i == N && round > 2 ? N + 1 : i];
        }
        struct hps_embed_part part = part_of(fixture, 0, N + 2);
        struct hps_embed_ticket *ticket;
        part.range = table.range;
        assert_int_equal(hps_embed_submit(rig->cache, &part, 1, &ticket), HPS_OK);
        assert_int_equal(wait(ticket), HPS_OK);
        hps_embed_release(ticket);
        embed_drain(rig);
    }
    embed_change(rig, &table, HPS_EMBED_INSERT, (uint32_t[]){N, N + 1}, 2); /* used 3 and 9 times */
    embed_drain(rig);
    hps_embed_range_usage(table.range, &usage);
    assert_int_equal(usage.n_evicted, 2); /* first for 5, second for the first */
    assert_int_equal(usage.n_refused, 0);
    table.versions[5] = table.versions[N] = 0;
    embed_lookup_all(rig, &table);
    embed_expect_counts(rig, &table);
    embed_change(rig, &table, HPS_EMBED_INSERT, (uint32_t[]){5, N}, 2);
    embed_drain(rig);
    hps_embed_range_usage(table.range, &usage);
    assert_int_equal(usage.n_refused, 2);
    embed_change(rig, &table, HPS_EMBED_INSERT_WANTED, (uint32_t[]){5}, 1); /* used once */
    embed_drain(rig);
    hps_embed_range_usage(table.range, &usage);
    assert_int_equal(usage.n_evicted, 3); /* a key that was used six times */
    assert_int_equal(usage.n_refused, 2);
    assert_int_equal(usage.n_rows, N);
    embed_table_close(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_submit_when_larger_than_a_batch_then_invalid),
        TEST(test_submit_when_it_has_no_keys_then_done_at_once),
        TEST(test_submit_when_all_tickets_are_taken_then_again),
        TEST(test_submit_when_gather_buffer_is_full_then_again),
        TEST(test_region_when_freed_in_flight_then_again_until_the_last_event),
        TEST(test_ticket_when_released_in_flight_then_its_slot_is_not_reused),
        TEST(test_ticket_when_batch_numbers_wrap_then_is_not_done_early),
        TEST(test_rows_when_missing_then_zeros),
        TEST(test_sketch_when_every_key_is_counted_then_counts_are_right),
        TEST(test_sketch_when_it_has_counted_enough_then_is_halved),
        TEST(test_sketch_when_sampled_then_counts_that_share_of_keys),
        TEST(test_row_when_used_more_often_then_stays_and_evicts_other_rows),
#undef TEST
    };
    return cmocka_run_group_tests_name("embed_batch", tests, NULL, NULL);
}
