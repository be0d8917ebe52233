/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena, its ranges and their sizes; addresses beyond 4 GiB and 2^31 slots; the ring.
 */
#include "tests/lib/embed_fixture.h"
#include "tests/lib/pause.h"

static int setup(void **state)
{
    static struct embed_fixture fixture;
    fixture_open(&fixture, 0, NULL);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    fixture_close(*state);
    return 0;
}

static hps_status new_range(struct embed_fixture *f, uint32_t row_bytes, uint64_t n_rows,
                            uint64_t bytes_max, struct hps_embed_range **out_range)
{
    const struct hps_embed_range_config config = {row_bytes, n_rows, bytes_max};
    return hps_embed_range_new(f->rig.cache, &config, out_range, &f->err);
}

static uint64_t free_bytes(struct embed_fixture *f)
{
    struct hps_embed_cache_usage usage;
    hps_embed_cache_usage(f->rig.cache, &usage);
    return usage.free_bytes;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static void test_bytes_when_less_than_half_is_cached_then_slots_are_as_rows(void **state)
{
    (void)state;
    uint64_t bytes = hps_embed_range_bytes(512, 1000000, 100000);
    struct hps_embed_layout layout;
    hps_embed_layout(512, bytes, UINT32_MAX, &layout);
    assert_in_range(layout.n_slots, 100000, 100032);
    assert_true(bytes < UINT64_C(100000) * (512 + 16) + 1024 + 32 * 528);
}

static void test_bytes_when_half_or_more_is_cached_then_most_rows_have_a_place(void **state)
{
    (void)state;
    struct hps_embed_layout layout;
    hps_embed_layout(64, hps_embed_range_bytes(64, 60000, 30000), UINT32_MAX, &layout);
    assert_in_range(layout.n_sets, 50000 / 8, 50000 / 8 + 1);
    hps_embed_layout(64, hps_embed_range_bytes(64, 60000, UINT64_MAX), UINT32_MAX, &layout);
    assert_in_range(layout.n_sets, 100000 / 8, 100000 / 8 + 1);
}

static void test_range_when_given_more_than_its_table_needs_then_takes_what_it_needs(void **state)
{
    struct hps_embed_range *range;
    struct hps_embed_range_usage usage;
    assert_int_equal(new_range(*state, 64, 600, 1 << 20, &range), HPS_OK);
    hps_embed_range_usage(range, &usage);
    assert_in_range(usage.n_slots, 1000 + 125 / 16 * 16, 1016 + 128 / 16 * 16);
    assert_int_equal(usage.bytes, hps_embed_range_bytes(64, 600, 600));
    hps_embed_range_free(range);
}

static void test_range_when_sizes_are_impossible_then_says_what_is_needed(void **state)
{
    struct embed_fixture *f = *state;
    struct hps_embed_range *range;
    assert_int_equal(new_range(f, 0, 600, 1 << 20, &range), HPS_INVALID);
    assert_int_equal(new_range(f, HPS_EMBED_ROW_BYTES_MAX + 1, 600, 1 << 20, &range), HPS_INVALID);
    assert_int_equal(new_range(f, 64, 600, 1000, &range), HPS_INVALID);
    assert_non_null(strstr(f->err.text, "at least"));
}

/* A row may have any number of bytes; where it lies it has whole quads, and no more than that. */
static void test_layout_when_rows_are_no_whole_quads_then_none_is_wasted(void **state)
{
    static const uint32_t strides[][2] = {{1, 16},    {7, 16},    {11, 16},   {16, 16},
                                          {17, 32},   {36, 48},   {68, 80},   {128, 128},
                                          {132, 144}, {136, 144}, {250, 256}, {65535, 65536}};

    (void)state;
    for (size_t i = 0; i < sizeof(strides) / sizeof(strides[0]); i++) {
        struct hps_embed_layout layout;
        hps_embed_layout(strides[i][0], UINT64_C(64) << 20, 100, &layout);
        assert_int_equal(layout.row_stride, strides[i][1]);
    }
}

/* ---- the arena ------------------------------------------------------------------------------- */

static void test_arena_when_full_then_says_needed_and_free_bytes(void **state)
{
    struct embed_fixture *f = *state;
    struct hps_embed_range *range, *other;
    assert_int_equal(new_range(f, 64, UINT64_C(1) << 40, 3 << 20, &range), HPS_OK);
    assert_int_equal(new_range(f, 64, UINT64_C(1) << 40, 3 << 20, &other), HPS_EXHAUSTED);
    assert_non_null(strstr(f->err.text, "4194304"));
    assert_int_equal(new_range(f, 64, UINT64_C(1) << 40, 1 << 20, &other), HPS_OK);
    hps_embed_range_free(range);
    hps_embed_range_free(other);
    assert_int_equal(free_bytes(f), 4 << 20);
}

static void test_arena_when_a_range_between_two_is_freed_then_its_room_is_used_again(void **state)
{
    struct embed_fixture *f = *state;
    struct hps_embed_range *ranges[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(new_range(f, 64, UINT64_C(1) << 40, 1 << 20, &ranges[i]), HPS_OK);
    }
    uint64_t offset = ranges[1]->offset;
    hps_embed_range_free(ranges[1]);
    assert_int_equal(new_range(f, 16, UINT64_C(1) << 40, 255 << 12, &ranges[1]), HPS_OK);
    assert_int_equal(ranges[1]->offset, offset);
    for (int i = 0; i < 4; i++) {
        hps_embed_range_free(ranges[i]);
    }
}

static void test_arena_when_a_retired_range_is_in_use_then_its_room_comes_later(void **state)
{
    struct embed_fixture *f = *state;
    struct embed_table table;
    struct hps_embed_range *next;
    embed_table_open(&f->rig, &table, 64, 15000, 30, 0);
    embed_change_random(&f->rig, &table, HPS_EMBED_INSERT, 20);
    hps_device_sim_hold(f->device, true);
    embed_query_all(&f->rig, &f->rig.queries[0], &table);
    embed_begin(&f->rig, &f->rig.queries[0]);
    hps_embed_range_retire(table.range);
    hps_embed_advance(f->rig.cache);
    assert_false(hps_embed_idle(f->rig.cache));
    assert_int_equal(new_range(f, 64, UINT64_C(1) << 40, 3 << 20, &next), HPS_AGAIN);
    hps_device_sim_hold(f->device, false);
    embed_finish(&f->rig, &f->rig.queries[0]); /* as it was when it was submitted */
    embed_drain(&f->rig);
    assert_int_equal(new_range(f, 64, UINT64_C(1) << 40, 3 << 20, &next), HPS_OK);
    hps_embed_range_free(next);
    embed_table_close(&table);
    fixture_expect_ok(f);
}

static void test_range_when_freed_with_changes_staged_then_is_freed_after_them(void **state)
{
    struct embed_fixture *f = *state;
    struct embed_table table;
    embed_table_open(&f->rig, &table, 64, 1000, 30, 0);
    embed_change_random(&f->rig, &table, HPS_EMBED_INSERT, 20);
    embed_table_close(&table);
    assert_true(free_bytes(f) < 4 << 20);
    embed_drain(&f->rig);
    assert_int_equal(free_bytes(f), 4 << 20);
}

/* Whatever lay there before. */
static void fill_arena(struct embed_fixture *f, uint8_t byte)
{
    struct embed_rig *rig = &f->rig;
    const struct hps_embed_cache *cache = rig->cache;

    assert_int_equal(hps_fill_on_device(rig->stream, cache->arena, byte, cache->config.arena_bytes),
                     HPS_OK);
    assert_int_equal(hps_event_record(rig->event, rig->stream), HPS_OK);
    assert_int_equal(hps_event_wait(rig->event), HPS_OK);
}

/* A change of another table and the lookup behind it end while most of a range is yet to come. */
static void test_range_when_large_then_changes_go_between_the_pieces_of_its_clearing(void **state)
{
    enum { BYTE = 0x5a };
    struct hps_embed_cache_config config = fixture_config();
    struct embed_fixture *f = *state;
    struct embed_table small, large;
    uint32_t n_taken, n_rounds = 0;
    const uint8_t row[16] = {0};

    fixture_close(f);
    config.arena_bytes = 64 << 20;
    fixture_open(f, 0, &config);
    fill_arena(f, BYTE);
    embed_table_open(&f->rig, &small, 64, 100, 30, 0);
    embed_table_open(&f->rig, &large, 16, 1500000, 100, 0);
    const struct hps_embed_desc *desc = &large.range->desc;
    const uint8_t *last = hps_device_sim_host(
        f->device, desc->sketch + (uint64_t)desc->n_sets * HPS_EMBED_SKETCH_BYTES_PER_SET - 1);
    for (; !hps_embed_range_ready(large.range); n_rounds++) {
        uint64_t n_cleared = large.range->n_cleared;
        assert_int_equal(hps_embed_stage(f->rig.cache, large.range, HPS_EMBED_INSERT, large.keys,
                                         row, 1, NULL, &n_taken),
                         HPS_AGAIN);
        embed_change_random(&f->rig, &small, HPS_EMBED_INSERT, 5);
        embed_query_all(&f->rig, &f->rig.queries[0], &small);
        embed_query_all(&f->rig, &f->rig.queries[0], &large);
        embed_begin(&f->rig, &f->rig.queries[0]);
        while (hps_embed_poll(f->rig.queries[0].ticket) == HPS_AGAIN) {
            brief_pause();
        }
        assert_int_equal(*last, BYTE);
        embed_finish(&f->rig, &f->rig.queries[0]);
        while (large.range->n_cleared == n_cleared) {
            hps_embed_advance(f->rig.cache);
            brief_pause();
        }
    }
    assert_int_equal(n_rounds, 2); /* of 24.6 MB in three pieces */
    embed_change_random(&f->rig, &large, HPS_EMBED_INSERT, 80);
    embed_lookup_all(&f->rig, &large);
    embed_expect_counts(&f->rig, &large);
    embed_table_close(&large);
    embed_table_open(&f->rig, &large, 16, 1500000, 100, 0); /* and given up before it is ready */
    embed_table_close(&large);
    embed_table_close(&small);
    embed_drain(&f->rig);
    assert_int_equal(free_bytes(f), 64 << 20);
}

static void test_usage_when_rows_are_resident_then_says_their_share(void **state)
{
    struct embed_fixture *f = *state;
    struct embed_table table;
    struct hps_embed_range_usage usage;
    uint32_t indices[30];
    embed_table_open(&f->rig, &table, 64, 100, 30, 0); /* of a table of 400 rows */
    for (uint32_t i = 0; i < 30; i++) {
        indices[i] = i;
    }
    embed_change(&f->rig, &table, HPS_EMBED_INSERT, indices, 30);
    embed_drain(&f->rig);
    hps_embed_range_usage(table.range, &usage);
    assert_int_equal(usage.n_rows, 30);
    assert_int_equal(usage.n_inserted, 30);
    assert_true(usage.resident_share > 0.0749 && usage.resident_share < 0.0751);
    embed_table_close(&table);
}

static void test_slots_when_any_number_is_wanted_then_no_fewer_and_few_more(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 20000; n += 1 + n / 50) {
        struct hps_embed_layout layout;
        hps_embed_layout(16, hps_embed_range_bytes(16, 4 * n, n), UINT32_MAX, &layout);
        assert_in_range(layout.n_slots, n,
                        n + 32 + (n < 2000 ? n / 2 : 0)); /* of small ones more */
    }
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* Nothing is stored there: where things would lie is what counts. */
static void test_addresses_when_arena_exceeds_4_gib_then_nothing_wraps(void **state)
{
    (void)state;
    struct hps_embed_layout layout;
    uint64_t bytes = UINT64_C(3) << 40; /* more than 2^31 slots, rows of 1 KiB */
    hps_embed_layout(1024, bytes, UINT32_MAX, &layout);
    assert_true((uint64_t)layout.n_sets * 8 > UINT64_C(1) << 31);
    uint64_t n_slots = layout.n_slots;
    uint32_t n_blocks = hps_embed_blocks(layout.n_sets);
    assert_true(layout.bytes <= bytes && layout.bytes > bytes - 2048 * 8 * (1 + 3));
    uint64_t last_set = hps_embed_set_at(0, layout.n_sets - 1);
    assert_int_equal(last_set, ((uint64_t)layout.n_sets - 1) * 64);
    uint32_t last_line = hps_embed_spill(layout.n_sets, n_blocks - 1) + 2;
    assert_true(last_line > layout.n_sets && n_slots == ((uint64_t)last_line + 1) * 8);
    assert_int_equal(hps_embed_set_at(0, last_line), (uint64_t)last_line * 64);
    uint64_t last_marks = hps_embed_marks_at(0, layout.n_sets, n_blocks - 1);
    assert_true(last_marks >= hps_embed_set_at(0, last_line) + 64);
    assert_true(last_marks + 4 <= layout.rows);
    uint64_t last_slot = hps_embed_slot(last_line, 7);
    assert_int_equal(last_slot, n_slots - 1);
    uint64_t last_row = hps_embed_row_at(layout.rows, last_slot, layout.row_stride);
    assert_int_equal(last_row, layout.rows + (n_slots - 1) * 1024);
    assert_true(last_row + 1024 <= layout.sketch);
    uint32_t n_cells = hps_embed_sketch_cells(layout.n_sets);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t cell = hps_embed_cell_at(layout.sketch, n_cells, i % 4, hps_mix64(i));
        assert_in_range(cell, layout.sketch, layout.bytes - 1);
    }
}

static void test_sets_when_there_are_2_to_the_32_then_all_of_them_are_used(void **state)
{
    (void)state;
    uint32_t least = UINT32_MAX, most = 0;
    for (uint64_t key = 0; key < 10000; key++) {
        uint32_t set = hps_embed_set(hps_embed_mix(key, 1), UINT32_MAX);
        assert_true(set < UINT32_MAX);
        least = set < least ? set : least;
        most = set > most ? set : most;
    }
    assert_true(least < UINT32_MAX / 1000 && most > UINT32_MAX - UINT32_MAX / 1000);
}

static void test_markers_when_any_number_of_sets_then_belong_elsewhere(void **state)
{
    (void)state;
    for (uint32_t n_sets = 2; n_sets < 300; n_sets++) {
        struct hps_embed_desc desc;
        hps_embed_desc_init(&desc, 0, n_sets, n_sets);
        uint32_t home = hps_embed_set(hps_embed_mix(desc.marker, desc.seed), n_sets);
        assert_int_equal(home, desc.home_set);
        uint32_t other = hps_embed_set(hps_embed_mix(desc.marker_home, desc.seed), n_sets);
        uint32_t shift = hps_embed_block_shift(n_sets);
        assert_int_not_equal(other >> shift, desc.home_set >> shift);
        assert_true(hps_embed_blocks(n_sets) >= 2);
        assert_int_equal(hps_embed_blocks(n_sets), ((n_sets - 1) >> shift) + 1);
    }
}

/* ---- the ring -------------------------------------------------------------------------------- */

static void test_ring_when_pieces_come_and_go_then_they_never_overlap(void **state)
{
    struct {
        uint64_t offset, bytes, end;
    } pieces[64];
    struct hps_embed_ring ring = {.size = 1000};
    struct hps_random random = {1};
    uint32_t first = 0, last = 0;
    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        uint64_t bytes = 1 + hps_random_next(&random) % 300, offset;
        if (last - first < 64 && hps_embed_ring_take(&ring, bytes, &offset)) {
            assert_true(offset + bytes <= ring.size);
            for (uint32_t j = first; j < last; j++) {
                assert_true(offset + bytes <= pieces[j % 64].offset ||
                            offset >= pieces[j % 64].offset + pieces[j % 64].bytes);
            }
            pieces[last % 64].offset = offset;
            pieces[last % 64].bytes = bytes;
            pieces[last++ % 64].end = ring.head;
        } else {
            assert_true(first < last); /* an empty one has room for any of these */
            hps_embed_ring_give(&ring, pieces[first++ % 64].end);
        }
    }
}

static void test_ring_when_empty_then_takes_a_piece_of_its_whole_size(void **state)
{
    struct hps_embed_ring ring = {.size = 100};
    uint64_t offset;
    (void)state;
    assert_true(hps_embed_ring_take(&ring, 30, &offset));
    hps_embed_ring_give(&ring, ring.head);
    assert_true(hps_embed_ring_take(&ring, 100, &offset));
    assert_int_equal(offset, 0);
    assert_false(hps_embed_ring_take(&ring, 1, &offset));
    hps_embed_ring_give(&ring, ring.head);
    assert_false(hps_embed_ring_take(&ring, 101, &offset));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        cmocka_unit_test(test_bytes_when_less_than_half_is_cached_then_slots_are_as_rows),
        cmocka_unit_test(test_bytes_when_half_or_more_is_cached_then_most_rows_have_a_place),
        TEST(test_range_when_given_more_than_its_table_needs_then_takes_what_it_needs),
        TEST(test_range_when_sizes_are_impossible_then_says_what_is_needed),
        TEST(test_layout_when_rows_are_no_whole_quads_then_none_is_wasted),
        TEST(test_arena_when_full_then_says_needed_and_free_bytes),
        TEST(test_arena_when_a_range_between_two_is_freed_then_its_room_is_used_again),
        TEST(test_arena_when_a_retired_range_is_in_use_then_its_room_comes_later),
        TEST(test_range_when_freed_with_changes_staged_then_is_freed_after_them),
        TEST(test_range_when_large_then_changes_go_between_the_pieces_of_its_clearing),
        TEST(test_usage_when_rows_are_resident_then_says_their_share),
        cmocka_unit_test(test_slots_when_any_number_is_wanted_then_no_fewer_and_few_more),
        cmocka_unit_test(test_addresses_when_arena_exceeds_4_gib_then_nothing_wraps),
        cmocka_unit_test(test_sets_when_there_are_2_to_the_32_then_all_of_them_are_used),
        cmocka_unit_test(test_markers_when_any_number_of_sets_then_belong_elsewhere),
        cmocka_unit_test(test_ring_when_pieces_come_and_go_then_they_never_overlap),
        cmocka_unit_test(test_ring_when_empty_then_takes_a_piece_of_its_whole_size),
#undef TEST
    };
    return cmocka_run_group_tests_name("embed_range", tests, NULL, NULL);
}
