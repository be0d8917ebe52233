/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tiers of a version can, by their stores and by their places.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/version/tier.h"
#include "tests/lib/lookup_fixture.h"

static int setup(void **state)
{
    struct fixture *fx = hps_calloc(1, sizeof(*fx));

    assert_non_null(fx);
    fixture_open(fx, 0);
    *state = fx;
    return 0;
}

static int teardown(void **state)
{
    fixture_close(*state);
    hps_free(*state);
    return 0;
}

static void test_tiers_when_a_version_has_all_then_from_the_device_down(void **state)
{
    struct fixture *fx = *state;
    struct hps_store *redis = fixture_open_middle(fx, true);
    struct hps_tier tiers[HPS_TIERS_MAX];

    fx->version.gpu = (struct hps_gpu_space *)(void *)fx; /* never followed */
    assert_int_equal(hps_version_tiers(&fx->version, tiers), HPS_TIER_COUNT);
    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        assert_int_equal(tiers[kind].kind, kind);
    }
    assert_int_equal(tiers[HPS_TIER_GPU].caps, HPS_CAP_ON_DEVICE | HPS_CAP_INSERTS);
    assert_null(tiers[HPS_TIER_GPU].space);
    assert_int_equal(tiers[HPS_TIER_HOST].caps, HPS_CAP_COMPLETE | HPS_CAP_INSERTS);
    assert_int_equal(tiers[HPS_TIER_REDIS].caps,
                     HPS_CAP_BLOCKS | HPS_CAP_SHARED | HPS_CAP_BACKFILLED);
    assert_int_equal(tiers[HPS_TIER_ROCKSDB].caps, HPS_CAP_BLOCKS | HPS_CAP_LOWEST);
    assert_ptr_equal(tiers[HPS_TIER_ROCKSDB].space, fx->version.tiers[2]);
    fx->version.gpu = NULL;
    assert_int_equal(hps_version_tiers(&fx->version, tiers), 3);
    assert_int_equal(tiers[0].kind, HPS_TIER_HOST);
    fixture_close_middle(fx, redis);
}

static void test_tiers_when_the_map_has_the_only_copy_then_it_is_the_lowest(void **state)
{
    struct fixture *fx = *state;
    struct hps_tier tiers[HPS_TIERS_MAX];

    fx->version.n_tiers = 1;
    assert_int_equal(hps_version_tiers(&fx->version, tiers), 1);
    assert_int_equal(tiers[0].caps, HPS_CAP_COMPLETE | HPS_CAP_LOWEST);
    fx->version.n_tiers = 2;
}

static void test_tier_name_when_asked_then_that_of_the_wire(void **state)
{
    (void)state;
    assert_string_equal(hps_tier_name(HPS_TIER_GPU), "gpu");
    assert_string_equal(hps_tier_name(HPS_TIER_ROCKSDB), "rocksdb");
    assert_true(hps_tier_on_device(HPS_TIER_GPU));
    assert_false(hps_tier_on_device(HPS_TIER_HOST));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tiers_when_a_version_has_all_then_from_the_device_down,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_tiers_when_the_map_has_the_only_copy_then_it_is_the_lowest, setup, teardown),
        cmocka_unit_test(test_tier_name_when_asked_then_that_of_the_wire),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
