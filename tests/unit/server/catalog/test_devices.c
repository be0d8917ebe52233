/* SPDX-License-Identifier: Apache-2.0
 *
 * Which devices are opened, and the errors for devices that cannot be opened.
 */
#include "server/catalog/devices.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "cache/device/sim/sim.h"

enum { N_MODELS = 4, REPLY_BYTES = 16 << 20 };

static uint32_t lists[N_MODELS][2] = {{1, 0}, {0, 1}, {1, 1}, {7, 0}};
static struct hps_config_model models[N_MODELS];
static struct hps_config config;
static struct hps_block_pool *blocks;
static struct hps_sim_driver sim;

static int setup(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        models[i] = (struct hps_config_model){.gpucache = i != 3,
                                              .gpucacheper = 0.25,
                                              .deployed_device_list = lists[i],
                                              .n_deployed_devices = 2};
    }
    config = (struct hps_config){
        .models = models,
        .n_models = N_MODELS,
        .server = {.reply_bytes_in_flight = REPLY_BYTES, .gpu_memory_bytes = 1 << 20}};
    blocks = hps_block_pool_new(0);
    hps_log_level_set(HPS_LOG_ERROR);
    sim = hps_sim_driver((struct hps_device_sim_config){.memory_bytes = 268435456});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hps_block_pool_free(blocks);
    return 0;
}

static void test_open_when_models_name_devices_then_one_tier_for_each(void **state)
{
    (void)state;
    struct hps_devices *devices = NULL;
    struct hps_error err;
    size_t slab;
    assert_int_equal(hps_devices_open(&config, &sim.driver, blocks, &devices, &err), HPS_OK);
    assert_int_equal(hps_devices_count(devices), 2);
    for (unsigned i = 0; i < 2; i++) {
        struct hps_device_view view;
        hps_devices_view(devices, i, &view);
        assert_string_equal(view.node, i == 0 ? "1" : "0");
        assert_true(view.up);
        assert_int_equal(view.used_bytes, 0);
        assert_int_equal(view.capacity_bytes, 1 << 20);
    }
    assert_int_equal(hps_devices_of_count(&models[0]), 2);
    assert_non_null(hps_devices_of(devices, &models[0], 0));
    assert_ptr_equal(hps_devices_of(devices, &models[0], 0),
                     hps_devices_of(devices, &models[2], 0));
    assert_ptr_not_equal(hps_devices_of(devices, &models[0], 0),
                         hps_devices_of(devices, &models[0], 1));
    assert_ptr_equal(hps_devices_of(devices, &models[0], 0),
                     hps_devices_of(devices, &models[1], 1));
    assert_null(hps_devices_of(devices, &models[2], 1)); /* it names one device twice */
    assert_null(hps_devices_of(devices, &models[0], 2));
    assert_int_equal(hps_devices_of_count(&models[3]), 0); /* no gpucache */
    assert_null(hps_devices_of(devices, &models[3], 0));
    assert_null(hps_devices_of(devices, NULL, 0));
    assert_null(hps_devices_of(NULL, &models[0], 0));
    assert_true(hps_devices_any_of(devices, &models[0]));
    assert_false(hps_devices_any_of(devices, &models[3]));
    assert_non_null(hps_block_pool_slab(blocks, &slab));
    assert_int_equal(slab, REPLY_BYTES / 4);
    assert_int_equal(hps_devices_take_lost(devices), 0);
    hps_devices_close(devices);
}

static void test_open_when_no_model_names_a_device_then_none(void **state)
{
    (void)state;
    struct hps_devices *devices = NULL;
    struct hps_error err;
    size_t slab;
    for (unsigned i = 0; i < N_MODELS; i++) {
        models[i].gpucache = false;
    }
    assert_int_equal(hps_devices_open(&config, &sim.driver, blocks, &devices, &err), HPS_OK);
    assert_null(devices);
    assert_null(hps_block_pool_slab(blocks, &slab));
    assert_int_equal(hps_devices_count(devices), 0);
    assert_int_equal(hps_devices_take_lost(devices), 0);
    hps_devices_close(devices);
}

static void test_open_when_a_device_cannot_be_opened_then_without_it_unless_exit(void **state)
{
    (void)state;
    struct hps_devices *devices = NULL;
    struct hps_device_view view;
    struct hps_error err;
    models[3].gpucache = true;
    lists[3][0] = 1000; /* there are fewer simulated devices */
    assert_int_equal(hps_devices_open(&config, &sim.driver, blocks, &devices, &err), HPS_OK);
    assert_int_equal(hps_devices_count(devices), 3);
    hps_devices_view(devices, 2, &view);
    assert_true(view.there && !view.up);
    assert_null(view.tier);
    assert_null(hps_devices_of(devices, &models[3], 0));
    assert_non_null(hps_devices_of(devices, &models[0], 0));
    hps_devices_close(devices);
    hps_block_pool_free(blocks);
    blocks = hps_block_pool_new(0);
    config.server.on_device_loss = HPS_CONFIG_DEVICE_LOSS_EXIT;
    assert_int_equal(hps_devices_open(&config, &sim.driver, blocks, &devices, &err),
                     HPS_UNAVAILABLE);
    assert_null(devices);
    assert_non_null(strstr(err.text, "on_device_loss is exit"));
    assert_non_null(strstr(err.text, "device 1000"));
}

static void test_open_when_a_device_has_too_little_memory_then_both_sizes_are_named(void **state)
{
    (void)state;
    struct hps_devices *devices = NULL;
    struct hps_error err;
    sim = hps_sim_driver((struct hps_device_sim_config){.memory_bytes = 1000000});
    config.server.on_device_loss = HPS_CONFIG_DEVICE_LOSS_EXIT;
    assert_int_equal(hps_devices_open(&config, &sim.driver, blocks, &devices, &err),
                     HPS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "1000000"));
}

static void test_open_when_results_have_no_memory_then_without_any_unless_exit(void **state)
{
    (void)state;
    struct hps_devices *devices = NULL;
    struct hps_device_view view;
    struct hps_error err;
    config.server.gpu_result_bytes = UINT64_MAX;
    assert_int_equal(hps_devices_open(&config, &sim.driver, blocks, &devices, &err), HPS_OK);
    hps_devices_view(devices, 0, &view);
    assert_true(view.there && !view.up);
    assert_null(hps_devices_of(devices, &models[0], 0));
    hps_devices_close(devices);
    config.server.on_device_loss = HPS_CONFIG_DEVICE_LOSS_EXIT;
    assert_int_equal(hps_devices_open(&config, &sim.driver, blocks, &devices, &err),
                     HPS_UNAVAILABLE);
    assert_non_null(
        strstr(err.text, "server.gpu_result_bytes: no memory for 18446744073709551615"));
}

static void test_shares_when_the_model_configures_them_then_for_each_table(void **state)
{
    (void)state;
    const struct hps_table tables[2] = {{.n_rows = 1000}, {.n_rows = 3}};
    const struct {
        double share;
        bool is_static;
        uint64_t expected[2];
    } cases[] = {{0.25, false, {250, 3}}, {0.9, false, {900, 3}}, {0, false, {0, 0}},
                 {1, false, {1000, 3}},   {7, false, {1000, 3}},  {0.1, true, {1000, 3}},
                 {1e-9, false, {64, 3}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_gpu_share shares[2];
        const struct hps_config_model model = {.gpucacheper = cases[i].share,
                                               .embedding_cache_type =
                                                   cases[i].is_static ? HPS_CONFIG_CACHE_STATIC
                                                                      : HPS_CONFIG_CACHE_DYNAMIC};
        hps_devices_shares(&model, tables, 2, shares);
        for (unsigned t = 0; t < 2; t++) {
            assert_int_equal(shares[t].n_rows, tables[t].n_rows);
            assert_int_equal(shares[t].n_rows_cached, cases[i].expected[t]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_open_when_models_name_devices_then_one_tier_for_each,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_when_no_model_names_a_device_then_none, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_a_device_cannot_be_opened_then_without_it_unless_exit, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_a_device_has_too_little_memory_then_both_sizes_are_named, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_open_when_results_have_no_memory_then_without_any_unless_exit, setup, teardown),
        cmocka_unit_test(test_shares_when_the_model_configures_them_then_for_each_table),
    };
    return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
