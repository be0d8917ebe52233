/* SPDX-License-Identifier: Apache-2.0
 *
 * Places of rows in a reply and the memory of a lookup, both planned before the first tier is
 * queried. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/forms_fixture.h"

static int setup(void **state)
{
    static const enum forms_tier tiers[] = {FORMS_HOST_MAP, FORMS_DISK};
    struct forms_fixture *fx = hps_calloc(1, sizeof(*fx));

    assert_non_null(fx);
    forms_open(fx, tiers, 2);
    *state = fx;
    return 0;
}

static int teardown(void **state)
{
    forms_close(*state);
    hps_free(*state);
    return 0;
}

/* Part i has n_rows rows of table i. */
static struct hps_lookup lookup_of(struct forms_fixture *fx, uint32_t n_parts, uint32_t n_rows,
                                   enum hps_pooling pooling)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        forms_draw_part(fx, i, n_rows, pooling);
        fx->parts[i].table = &fx->tables[i];
    }
    return (struct hps_lookup){.version = &fx->version,
                               .arena = fx->arena,
                               .scratch = fx->scratch,
                               .parts = fx->parts,
                               .n_parts = n_parts};
}

static void plan(struct hps_lookup *lookup)
{
    struct hps_error err;

    assert_int_equal(hps_lookup_plan(lookup, &err), HPS_OK);
}

static void test_plan_when_per_table_then_parts_begin_on_cache_lines(void **state)
{
    struct forms_fixture *fx = *state;
    struct hps_lookup lookup = lookup_of(fx, 3, 5, HPS_POOLING_NONE);
    plan(&lookup);
    assert_int_equal(fx->parts[0].form, HPS_PART_STORED); /* stored as fp32, the requested type */
    assert_int_equal(fx->parts[1].form, HPS_PART_SHAPED);
    assert_int_equal(fx->parts[1].out_dtype, HPS_DTYPE_FP32);
    assert_int_equal(fx->parts[1].row_bytes, 7 * 4);
    assert_int_equal(fx->parts[1].stride, 7 * 4);
    assert_int_equal(fx->parts[1].rows_bytes, 5 * 7 * 4);
    assert_int_equal(fx->parts[0].rows_offset, 0);
    assert_int_equal(fx->parts[1].rows_offset, 5 * 16 * 4);       /* a multiple of 64 */
    assert_int_equal(fx->parts[2].rows_offset, 5 * 16 * 4 + 192); /* 140, rounded up */
    assert_int_equal(fx->parts[2].column, 0);
    assert_int_equal(lookup.matrix_bytes, 0);
    assert_int_equal(lookup.rows_bytes, 5 * 16 * 4 + 192 + 832);
}

static void test_plan_when_raw_then_rows_are_as_stored(void **state)
{
    struct forms_fixture *fx = *state;
    struct hps_lookup lookup = lookup_of(fx, FORMS_TABLES, 5, HPS_POOLING_NONE);
    lookup.output = HPS_DTYPE_RAW;
    plan(&lookup);
    for (uint32_t i = 0; i < FORMS_TABLES; i++) {
        assert_int_equal(fx->parts[i].form, HPS_PART_STORED);
        assert_int_equal(fx->parts[i].out_dtype, fx->tables[i].dtype);
        assert_int_equal(fx->parts[i].row_bytes, fx->tables[i].row_bytes);
    }
    assert_int_equal(fx->parts[3].row_bytes, 5 + 8);
    assert_int_equal(hps_lookup_scratch_bytes(&lookup), 0);
}

static void test_plan_when_concat_then_columns_follow_each_other(void **state)
{
    struct forms_fixture *fx = *state;
    struct hps_lookup lookup = lookup_of(fx, 3, 5, HPS_POOLING_NONE);
    lookup.layout = HPS_LAYOUT_CONCAT;
    lookup.output = HPS_DTYPE_FP16;
    plan(&lookup);
    assert_int_equal(lookup.n_rows, 5);
    assert_int_equal(lookup.matrix_dim, 16 + 7 + 40);
    assert_int_equal(lookup.matrix_bytes, 5 * 63 * 2);
    assert_int_equal(lookup.rows_bytes, 640);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(fx->parts[i].stride, 63 * 2);
        assert_int_equal(fx->parts[i].form, HPS_PART_SHAPED); /* the fp16 part, too */
    }
    assert_int_equal(fx->parts[2].column, 23);
    assert_int_equal(fx->parts[2].rows_offset, 46);
}

static void test_plan_when_pooled_then_rows_are_bags(void **state)
{
    struct forms_fixture *fx = *state;
    struct hps_lookup lookup = lookup_of(fx, 1, 9, HPS_POOLING_SUM);
    plan(&lookup);
    assert_int_equal(fx->parts[0].form, HPS_PART_POOLED);
    assert_int_equal(fx->parts[0].n_rows, 9);
    assert_int_equal(fx->parts[0].rows_bytes, 9 * 64);
    assert_int_equal(lookup.n_keys, fx->parts[0].n_keys);
    assert_int_equal(hps_lookup_scratch_bytes(&lookup), fx->parts[0].n_keys * 64);
}

/* Rows are gathered for a tier that cannot convert them. */
static void test_scratch_when_a_store_is_below_then_converted_rows_are_charged(void **state)
{
    struct forms_fixture *fx = *state;
    struct hps_lookup lookup = lookup_of(fx, 2, 64, HPS_POOLING_NONE);
    plan(&lookup);
    assert_int_equal(hps_lookup_scratch_bytes(&lookup), 64 * 7 * 2); /* without the fp32 rows */
    fx->version.n_tiers = 1;
    assert_int_equal(hps_lookup_scratch_bytes(&lookup), 0);
    fx->version.n_tiers = 2;
}

static void test_plan_when_there_are_no_rows_then_no_memory(void **state)
{
    struct forms_fixture *fx = *state;
    struct hps_lookup lookup = lookup_of(fx, 2, 0, HPS_POOLING_MEAN);
    lookup.layout = HPS_LAYOUT_CONCAT;
    plan(&lookup);
    assert_int_equal(lookup.rows_bytes, 0);
    assert_int_equal(lookup.matrix_dim, 23);
    lookup.n_parts = 0;
    plan(&lookup);
    assert_int_equal(lookup.rows_bytes, 0);
    assert_int_equal(lookup.matrix_dim, 0);
}

/* Sizes that exceed the integer range must not wrap around to a small reply. */
static void test_plan_when_sizes_do_not_fit_then_range(void **state)
{
    struct forms_fixture *fx = *state;
    struct hps_lookup lookup = lookup_of(fx, 2, 1, HPS_POOLING_NONE);
    struct hps_table wide = {.name = "wide",
                             .dim = UINT32_MAX / 4,
                             .row_bytes = UINT32_MAX - 3,
                             .dtype = HPS_DTYPE_FP32};
    struct hps_error err;
    fx->parts[0].table = &wide;
    fx->parts[0].n_keys = UINT32_MAX;
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_RANGE);
    assert_string_equal(err.text, "table 'wide': 4294967295 rows of 4294967292 bytes");
    wide.dim = UINT32_MAX / 2;
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_RANGE);
    fx->parts[0].n_keys = fx->parts[1].n_keys = UINT32_MAX / 8;
    wide.dim = UINT32_MAX / 4;
    fx->parts[1].table = &wide;
    lookup.layout = HPS_LAYOUT_CONCAT;
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_OK);
    assert_int_equal(lookup.matrix_bytes, 2 * (uint64_t)(UINT32_MAX - 3) * (UINT32_MAX / 8));
    struct hps_lookup_part many[9];
    for (uint32_t i = 0; i < 9; i++) {
        many[i] = fx->parts[0];
    }
    lookup.parts = many;
    lookup.n_parts = 9;
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_RANGE);
    assert_non_null(strstr(err.text, "a matrix of 536870911 rows"));
    lookup.layout = HPS_LAYOUT_PER_TABLE;
    assert_int_equal(hps_lookup_plan(&lookup, &err), HPS_RANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plan_when_per_table_then_parts_begin_on_cache_lines,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_when_raw_then_rows_are_as_stored, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_plan_when_concat_then_columns_follow_each_other, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_plan_when_pooled_then_rows_are_bags, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_scratch_when_a_store_is_below_then_converted_rows_are_charged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan_when_there_are_no_rows_then_no_memory, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_plan_when_sizes_do_not_fit_then_range, setup,
                                        teardown),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
