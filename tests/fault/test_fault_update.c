/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation of the update path fails once: the batch is refused whole or applied whole, and
 * all memory is given back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/heap.h"
#include "cache/update/update.h"
#include "tests/lib/fake_store.h"
#include "tests/lib/fault_heap.h"

enum { N_KEYS = 40 };

static const struct hps_call no_limit = {0};

static float value_in(struct hps_version *version, hps_key key)
{
    float value = 0;
    uint32_t slot = 0;
    struct hps_space *space = version->tiers[version->n_tiers - 1];
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = (uint8_t *)&value, .n = 1};
    assert_int_equal(space->store->ops->get(space, &no_limit, &version->tables[0], &batch), HPS_OK);
    return value;
}

/* Two batches: keys with 1, then some of them with 2 and others deleted. */
static void use(struct hps_version *version)
{
    hps_key keys[N_KEYS + 1];
    float rows[N_KEYS + 1];
    struct hps_error err;
    const struct hps_record position = {"p", 1, "1", 1};
    struct hps_update_part parts[2] = {
        {.row_bytes = 4, .n = N_KEYS, .keys = keys, .rows = (const uint8_t *)rows},
        {.n = 10, .keys = keys}};
    const struct hps_update_batch batches[2] = {
        {.parts = parts, .n_parts = 1, .positions = &position, .n_positions = 1},
        {.parts = parts, .n_parts = 2, .positions = &position, .n_positions = 1}};
    float before = 0;
    for (unsigned b = 0; b < 2; b++) {
        for (uint32_t i = 0; i < N_KEYS; i++) {
            keys[i] = i;
            rows[i] = (float)(b + 1);
        }
        hps_status status = hps_update_apply(version, &batches[b], &err);
        if (status == HPS_OK) {
            before = rows[0];
        }
        for (uint32_t i = 10; i < N_KEYS; i++) {
            assert_true(value_in(version, i) == before);
        }
        assert_true(status == HPS_OK || status == HPS_NO_MEMORY || status == HPS_EXHAUSTED);
    }
}

static void open_and_use(struct hps_version *version, struct hps_store *const *stores,
                         uint32_t n_stores)
{
    struct hps_error err;
    version->tables[0] = (struct hps_table){
        .name = NULL, .id = 0, .dim = 1, .row_bytes = 4, .dtype = HPS_DTYPE_FP32};
    const struct hps_space_id id = {"m", 1, version->tables, 1, 0};
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n_stores && status == HPS_OK; i++) {
        status = stores[i]->ops->space_open(stores[i], &id, &version->tiers[i], &err);
        version->n_tiers += status == HPS_OK ? 1 : 0;
    }
    if (status == HPS_OK && hps_update_open(version, &err) == HPS_OK) {
        hps_version_pin(version);
        use(version);
        hps_version_unpin(version);
    }
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        version->tiers[i]->store->ops->space_close(version->tiers[i]);
    }
}

static void scenario(void *ctx)
{
    bool durable = *(bool *)ctx;
    const struct hps_fake_options host = {.name = "host", .tier = HPS_TIER_HOST};
    const struct hps_fake_options disk = {
        .name = "disk", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_DURABLE};
    struct hps_store *stores[2] = {hps_fake_store_new(&host),
                                   durable ? hps_fake_store_new(&disk) : NULL};
    struct hps_version *version = hps_version_new("m", 1, 1);
    if (version != NULL && stores[0] != NULL && (!durable || stores[1] != NULL)) {
        open_and_use(version, stores, durable ? 2 : 1);
    }
    hps_version_free(version);
    for (unsigned i = 0; i < 2; i++) {
        if (stores[i] != NULL) {
            stores[i]->ops->close(stores[i]);
        }
    }
}

static void test_update_when_each_allocation_fails_then_whole_or_nothing(void **state)
{
    (void)state;
    bool durable = true;
    assert_true(hps_fault_heap_run(scenario, &durable) > 30);
}

static void test_update_of_memory_when_each_allocation_fails_then_whole_or_nothing(void **state)
{
    (void)state;
    bool durable = false;
    assert_true(hps_fault_heap_run(scenario, &durable) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_update_when_each_allocation_fails_then_whole_or_nothing),
        cmocka_unit_test(test_update_of_memory_when_each_allocation_fails_then_whole_or_nothing),
    };
    return cmocka_run_group_tests_name("fault_update", tests, NULL, NULL);
}
