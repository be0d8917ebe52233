/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in every form of answer with each allocation failing in turn, and with each call of a
 * store failing in turn: they end with an error or with the right rows, and keep nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/fault_heap.h"
#include "tests/lib/forms_fixture.h"

enum { N_DRAWS = 12 };

struct scenario {
    struct forms_fixture fx;
    struct hps_block_pool *blocks;
    uint64_t draw;
    bool unit; /* with an update between its rows */
    unsigned n_calls;
    unsigned n_ok;
    unsigned n_failed;
};

static struct scenario *scenario_new(const enum forms_tier *tiers, uint32_t n)
{
    struct scenario *s = hps_calloc(1, sizeof(*s));

    assert_non_null(s);
    forms_open(&s->fx, tiers, n);
    s->fx.version.stamps = hps_stamps_new();
    return s;
}

static void scenario_free(struct scenario *s)
{
    hps_stamps_free(s->fx.version.stamps);
    forms_close(&s->fx);
    hps_free(s);
}

/* A batch of some keys, when their rows have been read; the rows stay as they are. */
static bool on_call(const void *ctx)
{
    struct scenario *s = (struct scenario *)ctx;
    struct hps_stamps *stamps = s->fx.version.stamps;

    if (++s->n_calls == 2) {
        hps_stamps_begin(stamps);
        for (uint32_t table = 0; table < FORMS_TABLES; table++) {
            for (hps_key key = 0; key < FORMS_KEYS; key += 5) {
                hps_stamps_mark(stamps, table, &key, 1);
            }
        }
        hps_stamps_end(stamps);
    }
    return false;
}

static hps_status run(struct hps_lookup *lookup, struct hps_error *err)
{
    bool done = false;
    hps_status status = hps_lookup_run_memory(lookup, &done, err);

    if (status == HPS_OK && !done) {
        status = hps_lookup_run_rest(lookup, err);
    }
    if (status == HPS_ABORTED && lookup->torn) {
        status = hps_lookup_reread(lookup, err);
    }
    return status;
}

static void check(const struct scenario *s, const struct hps_lookup *lookup)
{
    uint8_t row[FORMS_ROW_MAX];

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct hps_lookup_part *part = &lookup->parts[i];
        for (uint32_t r = 0; r < part->n_rows; r++) {
            forms_expected(&s->fx, lookup, part, r, row);
            assert_memory_equal(part->rows + r * part->stride, row, part->row_bytes);
        }
    }
}

static hps_status do_lookup(struct scenario *s, struct hps_arena *arena)
{
    struct hps_lookup lookup;
    struct hps_error err = {0};

    forms_draw_lookup(&s->fx, s->draw, &lookup);
    s->n_calls = 0;
    lookup.arena = arena;
    lookup.blocks = s->blocks;
    lookup.unit = s->unit;
    lookup.cancelled = s->unit ? on_call : NULL;
    lookup.cancelled_ctx = s;
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_OK);
    hps_status status = hps_lookup_take_block(&lookup);
    if (status == HPS_OK) {
        status = run(&lookup, &err);
        assert_true(status == HPS_OK || status == err.status);
    }
    if (status == HPS_OK) {
        check(s, &lookup);
    }
    hps_lookup_release(&lookup);
    hps_block_unref(lookup.block);
    return status;
}

static void run_scenario(void *ctx)
{
    struct scenario *s = ctx;
    struct hps_arena *arena = hps_arena_new(1024, 16 << 20);

    s->blocks = hps_block_pool_new(0);
    if (arena != NULL && s->blocks != NULL) {
        hps_status status = do_lookup(s, arena);
        s->n_ok += status == HPS_OK ? 1 : 0;
        s->n_failed += status == HPS_OK ? 0 : 1;
        assert_true(status == HPS_OK || status == HPS_NO_MEMORY || status == HPS_EXHAUSTED);
    }
    if (s->blocks != NULL) {
        assert_int_equal(hps_block_pool_bytes(s->blocks), 0);
        hps_block_pool_free(s->blocks);
    }
    hps_arena_free(arena);
    hps_arena_reset(s->fx.scratch);
}

static void fail_memory(const enum forms_tier *tiers, uint32_t n, bool unit)
{
    struct scenario *s = scenario_new(tiers, n);

    s->unit = unit;
    for (uint64_t draw = 1; draw <= N_DRAWS; draw++) {
        s->draw = draw * 77;
        run_scenario(s); /* so that rows that are inserted are */
        hps_fault_heap_run(run_scenario, s);
    }
    assert_true(s->n_ok >= N_DRAWS);
    assert_true(s->n_failed > N_DRAWS);
    scenario_free(s);
}

static void test_forms_when_memory_fails_beside_a_host_map_then_error_or_right(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP};
    (void)state;
    fail_memory(tiers, 1, false);
    fail_memory(tiers, 1, true);
}

static void test_forms_when_memory_fails_beside_a_store_then_error_or_right(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_DISK};
    (void)state;
    fail_memory(tiers, 1, false);
    fail_memory(tiers, 1, true);
}

/* ---- stores ---------------------------------------------------------------------------------- */

static void test_forms_when_a_store_fails_then_error_or_right(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_FAKE_HOST, FORMS_REDIS, FORMS_DISK};
    struct scenario *s = scenario_new(tiers, 3);
    (void)state;

    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t skip = 0; skip < 3; skip++) {
            for (uint64_t draw = 1; draw <= N_DRAWS; draw++) {
                struct hps_lookup lookup;
                struct hps_error err = {0};
                forms_draw_lookup(&s->fx, draw * 101, &lookup);
                hps_arena_reset(s->fx.arena);
                assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_OK);
                lookup.rows = hps_alloc_aligned(HPS_ROWS_ALIGN, lookup.rows_bytes + 1);
                assert_non_null(lookup.rows);
                hps_fake_fail(s->fx.stores[i], HPS_FAKE_GET, HPS_UNAVAILABLE, skip, 1, 7);
                hps_fake_fail(s->fx.stores[i], HPS_FAKE_GET_MANY, HPS_UNAVAILABLE, skip, 1, 7);
                hps_status status = run(&lookup, &err);
                assert_true(status == HPS_OK || (i == 2 && status == HPS_UNAVAILABLE));
                if (status == HPS_OK) {
                    check(s, &lookup);
                }
                s->n_failed += status == HPS_OK ? 0 : 1;
                hps_free_aligned(lookup.rows);
            }
        }
    }
    assert_true(s->n_failed > 0);
    scenario_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms_when_memory_fails_beside_a_host_map_then_error_or_right),
        cmocka_unit_test(test_forms_when_memory_fails_beside_a_store_then_error_or_right),
        cmocka_unit_test(test_forms_when_a_store_fails_then_error_or_right),
    };
    return cmocka_run_group_tests_name("fault_forms", tests, NULL, NULL);
}
