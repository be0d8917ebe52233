/* SPDX-License-Identifier: Apache-2.0
 *
 * The device is lost at each operation in turn, makes no progress for too long, or has too
 * little memory. From then on all calls return DATA_LOSS. No call hangs, no memory leaks, and
 * freed memory is never written.
 */
#include <string.h>

#include "base/clock.h"
#include "base/heap.h"
#include "cache/device/ops.h"
#include "cache/device/sim/sim.h"
#include "tests/lib/embed_fixture.h"
#include "tests/lib/fault_heap.h"

enum { N_KEYS = 50, ROW_BYTES = 128, REGION_BYTES = 128 << 10, N_LOOKUPS = 6 };

#if defined(HPS_TSAN)
enum { STEP = 4 }; /* TSan is slow, and most steps find the same */
#else
enum { STEP = 1 };
#endif

struct scene {
    struct hps_device *device;
    struct hps_embed_cache *cache;
    struct hps_embed_range *ranges[2];
    struct hps_embed_region *region;
    uint8_t *memory;
    struct hps_embed_ticket *tickets[2];
    uint64_t offset; /* in the region: lookups in flight must write to different rows */
    hps_key keys[N_KEYS];
    uint8_t rows[N_KEYS * ROW_BYTES];
    struct hps_error err;
    bool lost;
};

/* Record a loss, which is permanent. Returns false if this call failed because of it. */
static bool fine(struct scene *scene, hps_status status)
{
    assert_true(status == HPS_OK || status == HPS_AGAIN || status == HPS_DATA_LOSS);
    assert_true(!scene->lost || status == HPS_DATA_LOSS);
    scene->lost = scene->lost || status == HPS_DATA_LOSS;
    return status != HPS_DATA_LOSS;
}

static hps_status submit(struct scene *scene, unsigned slot, uint32_t n)
{
    struct hps_embed_part parts[2];

    for (unsigned i = 0; i < 2; i++) {
        parts[i] = (struct hps_embed_part){.range = scene->ranges[i],
                                           .keys = (const uint8_t *)scene->keys,
                                           .n = n,
                                           .region = scene->region,
                                           .offset = scene->offset};
        scene->offset += (uint64_t)n * ROW_BYTES;
    }
    return hps_embed_submit(scene->cache, parts, 2, &scene->tickets[slot]);
}

static void finish(struct scene *scene, unsigned slot)
{
    if (scene->tickets[slot] == NULL) {
        return;
    }
    hps_status status;
    while ((status = hps_embed_poll(scene->tickets[slot])) == HPS_AGAIN) {
        hps_embed_advance(scene->cache);
    }
    if (status == HPS_DATA_LOSS) {
        scene->lost = true;
        assert_int_equal(hps_embed_poll(scene->tickets[slot]), HPS_DATA_LOSS);
        assert_true(hps_embed_lost(scene->cache));
    }
    hps_embed_release(scene->tickets[slot]);
    scene->tickets[slot] = NULL;
}

static void stage(struct scene *scene, enum hps_embed_op op)
{
    uint32_t n_taken;

    for (unsigned i = 0; i < 2; i++) {
        hps_status status;
        do {
            status =
                hps_embed_stage(scene->cache, scene->ranges[i], op, scene->keys,
                                op == HPS_EMBED_ERASE ? NULL : scene->rows, N_KEYS, NULL, &n_taken);
            hps_embed_advance(scene->cache);
        } while (status == HPS_AGAIN);
        (void)fine(scene, status);
    }
}

static void open_ranges(struct scene *scene)
{
    const struct hps_embed_range_config config = {ROW_BYTES, 1000, 64 << 10};

    for (unsigned i = 0; i < 2; i++) {
        (void)fine(scene,
                   hps_embed_range_new(scene->cache, &config, &scene->ranges[i], &scene->err));
    }
}

/* Run lookups with changes of both ranges. Every second lookup is mapped, every other one
 * gathered. */
static void play(struct scene *scene)
{
    for (unsigned i = 0; i < N_LOOKUPS && scene->ranges[1] != NULL; i++) {
        stage(scene, i % 3 == 2   ? HPS_EMBED_ERASE
                     : i % 3 == 1 ? HPS_EMBED_UPDATE
                                  : HPS_EMBED_INSERT);
        finish(scene, i % 2);
        hps_status status = submit(scene, i % 2, i % 2 == 0 ? 3 : N_KEYS);
        assert_int_not_equal(status, HPS_AGAIN);
        if (fine(scene, status) && i == 2) {
            hps_embed_release(scene->tickets[i % 2]);
            scene->tickets[i % 2] = NULL;
        }
    }
}

static void close_scene(struct scene *scene)
{
    hps_embed_range_free(scene->ranges[0]); /* while it may be in use */
    finish(scene, 0);
    finish(scene, 1);
    hps_embed_range_free(scene->ranges[1]);
    hps_status status;
    while ((status = hps_embed_region_free(scene->region)) == HPS_AGAIN) {
        hps_embed_advance(scene->cache);
    }
    assert_int_equal(status, HPS_OK);
    hps_free_aligned(scene->memory); /* a later write would be a use after free */
    hps_embed_cache_close(scene->cache);
    hps_device_close(scene->device);
}

static void open_device(struct scene *scene, uint32_t delay_us_max, uint64_t memory_bytes)
{
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){
        .seed = 3, .delay_us_max = delay_us_max, .memory_bytes = memory_bytes});

    memset(scene, 0, sizeof(*scene));
    for (uint32_t i = 0; i < N_KEYS; i++) {
        scene->keys[i] = i;
    }
    assert_int_equal(hps_device_open(&sim.driver, 0, hps_embed_kernels, hps_embed_n_kernels,
                                     &scene->device, &scene->err),
                     HPS_OK);
}

static struct hps_embed_cache_config small_config(void)
{
    struct hps_embed_cache_config config = fixture_config();
    config.arena_bytes = 256 << 10;
    config.mapped_bytes_max = 1024;
    config.n_batches = N_LOOKUPS; /* released batches may still be in flight */
    return config;
}

static hps_status open_cache(struct scene *scene, const struct hps_embed_cache_config *config)
{
    hps_status status = hps_embed_cache_open(scene->device, config, &scene->cache, &scene->err);

    if (status == HPS_OK) {
        scene->memory = hps_alloc_aligned(4096, REGION_BYTES);
        status = hps_embed_region_host(scene->cache, scene->memory, REGION_BYTES, &scene->region,
                                       &scene->err);
        if (status != HPS_OK) {
            hps_free_aligned(scene->memory);
            hps_embed_cache_close(scene->cache);
        }
    }
    return status;
}

/* Returns whether the device was lost. */
static bool lose_at(uint64_t n, uint32_t delay_us_max)
{
    const struct hps_embed_cache_config config = small_config();
    struct scene *scene = hps_calloc(1, sizeof(*scene));

    open_device(scene, delay_us_max, 0);
    hps_device_sim_fail(scene->device, n);
    hps_status status = open_cache(scene, &config);
    if (status != HPS_OK) {
        assert_int_equal(status, HPS_DATA_LOSS);
        hps_device_close(scene->device);
        hps_free(scene);
        return true;
    }
    open_ranges(scene);
    play(scene);
    close_scene(scene);
    bool lost = scene->lost;
    hps_free(scene);
    return lost;
}

static void test_cache_when_device_is_lost_at_any_operation_then_data_loss_and_no_hang(void **state)
{
    uint64_t n = 1;
    (void)state;
    while (lose_at(n, n % 3 == 0 ? 50 : 0)) {
        n += STEP;
    }
    assert_true(n > 30); /* a scene has about this many operations */
}

static void test_cache_when_device_makes_no_progress_until_the_timeout_then_data_loss(void **state)
{
    struct hps_embed_cache_config config = small_config();
    struct scene *scene = hps_calloc(1, sizeof(*scene));
    (void)state;

    config.timeout_us = 1000;
    hps_clock_fake(1);
    open_device(scene, 0, 0);
    assert_int_equal(open_cache(scene, &config), HPS_OK);
    open_ranges(scene);
    stage(scene, HPS_EMBED_INSERT);
    while (!hps_embed_idle(scene->cache)) {
        hps_embed_advance(scene->cache);
    }
    hps_clock_advance(5000); /* the device has no work, so none is late */
    hps_embed_advance(scene->cache);
    hps_device_sim_hold(scene->device, true);
    assert_int_equal(submit(scene, 0, N_KEYS), HPS_OK);
    hps_clock_advance(1000);
    assert_int_equal(hps_embed_poll(scene->tickets[0]), HPS_AGAIN);
    hps_clock_advance(1);
    assert_int_equal(hps_embed_poll(scene->tickets[0]), HPS_DATA_LOSS);
    assert_true(hps_device_lost(scene->device));
    assert_int_equal(submit(scene, 1, 1), HPS_DATA_LOSS);
    scene->lost = true;
    stage(scene, HPS_EMBED_UPDATE);
    assert_true(hps_embed_idle(scene->cache)); /* no change waits for the device */
    hps_device_sim_hold(scene->device, false);
    close_scene(scene);
    hps_clock_real();
    hps_free(scene);
}

static hps_status (*launch)(struct hps_stream_q *, const struct hps_kernel *, uint32_t,
                            const void *);

static hps_status launch_slowly(struct hps_stream_q *stream, const struct hps_kernel *kernel,
                                uint32_t n_blocks, const void *args)
{
    hps_clock_advance(1001);
    return launch(stream, kernel, n_blocks, args);
}

static void test_cache_when_a_launch_takes_longer_than_the_timeout_then_not_lost(void **state)
{
    struct hps_embed_cache_config config = small_config();
    struct scene *scene = hps_calloc(1, sizeof(*scene));
    (void)state;

    config.timeout_us = 1000;
    hps_clock_fake(1);
    open_device(scene, 0, 0);
    assert_int_equal(open_cache(scene, &config), HPS_OK);
    open_ranges(scene);
    struct hps_device_ops slow = *scene->device->ops;
    launch = slow.launch;
    slow.launch = launch_slowly;
    scene->device->ops = &slow;
    hps_device_sim_hold(scene->device, true);
    assert_int_equal(submit(scene, 0, N_KEYS), HPS_OK);
    assert_int_equal(hps_embed_poll(scene->tickets[0]), HPS_AGAIN);
    stage(scene, HPS_EMBED_INSERT); /* needs two slices */
    assert_int_equal(submit(scene, 1, 3), HPS_OK);
    assert_int_equal(hps_embed_poll(scene->tickets[1]), HPS_AGAIN);
    hps_device_sim_hold(scene->device, false);
    close_scene(scene);
    assert_false(scene->lost);
    hps_clock_real();
    hps_free(scene);
}

static void test_advance_when_only_changes_are_in_flight_then_the_timeout_applies(void **state)
{
    struct hps_embed_cache_config config = small_config();
    struct scene *scene = hps_calloc(1, sizeof(*scene));
    (void)state;

    config.timeout_us = 1000;
    hps_clock_fake(1);
    open_device(scene, 0, 0);
    assert_int_equal(open_cache(scene, &config), HPS_OK);
    open_ranges(scene);
    hps_device_sim_hold(scene->device, true);
    stage(scene, HPS_EMBED_INSERT);
    hps_clock_advance(1001);
    hps_embed_advance(scene->cache);
    assert_true(hps_embed_lost(scene->cache));
    hps_device_sim_hold(scene->device, false);
    close_scene(scene);
    hps_clock_real();
    hps_free(scene);
}

/* A retired range is in no list of the cache, and after the loss no event ends its lookup. */
static void test_close_when_a_lookup_of_a_retired_range_is_lost_then_no_leak(void **state)
{
    const struct hps_embed_cache_config config = small_config();
    (void)state;

    hps_fault_heap_install(0);
    struct scene *scene = hps_calloc(1, sizeof(*scene));
    open_device(scene, 0, 0);
    assert_int_equal(open_cache(scene, &config), HPS_OK);
    open_ranges(scene);
    hps_embed_range_retire(scene->ranges[0]);
    hps_device_sim_hold(scene->device, true);
    assert_int_equal(submit(scene, 0, 3), HPS_OK);
    hps_device_sim_fail(scene->device, 0);
    close_scene(scene);
    assert_true(scene->lost);
    hps_free(scene);
    assert_int_equal(hps_fault_heap_live(), 0);
    hps_fault_heap_remove();
}

static void test_open_when_memory_is_short_then_the_error_names_the_needed_bytes(void **state)
{
    struct hps_embed_cache_config config = small_config();
    struct scene *scene = hps_calloc(1, sizeof(*scene));
    (void)state;

    for (uint64_t memory = 1 << 20; memory > 0; memory = memory < 8 << 20 ? memory * 2 : 0) {
        config.arena_bytes = 6 << 20;
        open_device(scene, 0, memory);
        assert_int_equal(open_cache(scene, &config), HPS_NO_MEMORY);
        assert_non_null(strstr(scene->err.text, "bytes of device memory are needed"));
        hps_device_close(scene->device);
    }
    hps_free(scene);
}

/* Make all calls that allocate: open a device and a cache, create a range and a region. */
static void scarce(void *ctx)
{
    const struct hps_embed_range_config range_config = {ROW_BYTES, 1000, 64 << 10};
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){0});
    struct hps_embed_cache_config config = small_config();
    static uint8_t memory[4096] __attribute__((aligned(4096)));
    struct hps_embed_cache *cache = NULL;
    struct hps_embed_region *region = NULL;
    struct hps_embed_range *range = NULL;
    struct hps_device *device = NULL;
    (void)ctx;

    config.n_batches = 2;
    hps_status status =
        hps_device_open(&sim.driver, 0, hps_embed_kernels, hps_embed_n_kernels, &device, NULL);
    status = status == HPS_OK ? hps_embed_cache_open(device, &config, &cache, NULL) : status;
    status = status == HPS_OK ? hps_embed_range_new(cache, &range_config, &range, NULL) : status;
    status = status == HPS_OK ? hps_embed_region_host(cache, memory, sizeof(memory), &region, NULL)
                              : status;
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY || status == HPS_DATA_LOSS);
    hps_embed_range_free(range);
    assert_int_equal(hps_embed_region_free(region), HPS_OK);
    hps_embed_cache_close(cache);
    hps_device_close(device);
}

static void test_open_when_the_heap_fails_anywhere_then_no_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(scarce, NULL) > 30);
}

static void test_open_when_settings_are_impossible_then_the_error_names_them(void **state)
{
    struct hps_embed_cache_config config = small_config();
    struct scene *scene = hps_calloc(1, sizeof(*scene));
    (void)state;

    open_device(scene, 0, 0);
    config.batch_keys_max = HPS_EMBED_BATCH_KEYS_MAX + 1;
    assert_int_equal(open_cache(scene, &config), HPS_INVALID);
    assert_non_null(strstr(scene->err.text, "batch_keys_max: got 65537"));
    config = small_config();
    config.arena_bytes = 0;
    assert_int_equal(open_cache(scene, &config), HPS_INVALID);
    assert_non_null(strstr(scene->err.text, "arena_bytes"));
    hps_device_close(scene->device);
    hps_free(scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_cache_when_device_is_lost_at_any_operation_then_data_loss_and_no_hang),
        cmocka_unit_test(test_cache_when_device_makes_no_progress_until_the_timeout_then_data_loss),
        cmocka_unit_test(test_cache_when_a_launch_takes_longer_than_the_timeout_then_not_lost),
        cmocka_unit_test(test_advance_when_only_changes_are_in_flight_then_the_timeout_applies),
        cmocka_unit_test(test_close_when_a_lookup_of_a_retired_range_is_lost_then_no_leak),
        cmocka_unit_test(test_open_when_memory_is_short_then_the_error_names_the_needed_bytes),
        cmocka_unit_test(test_open_when_the_heap_fails_anywhere_then_no_leak),
        cmocka_unit_test(test_open_when_settings_are_impossible_then_the_error_names_them),
    };
    return cmocka_run_group_tests_name("embed_loss", tests, NULL, NULL);
}
