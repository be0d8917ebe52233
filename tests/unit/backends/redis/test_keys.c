/* SPDX-License-Identifier: Apache-2.0
 *
 * Names in Redis are what they were, and keys are spread over the shards.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "backends/redis/keys.h"
#include "backends/store_log.h"

static const struct hps_table tables[2] = {{.name = "a", .id = 0, .dim = 4, .row_bytes = 16},
                                           {.name = "b", .id = 1, .dim = 8, .row_bytes = 32}};
static const struct hps_space_id id = {"dlrm", 3, tables, 2, 7};

static void test_names_when_printed_then_the_tag_is_the_shard(void **state)
{
    (void)state;
    char name[HPS_REDIS_NAME_BYTES_MAX];
    size_t size = hps_redis_shard_name(&id, 0xabc, 17, false, name);
    assert_int_equal(size, strlen(name));
    assert_string_equal(name, "hpsd:{dlrm/3/0000000000000abc/17}");
    hps_redis_shard_name(&id, 0xabc, 17, true, name);
    assert_string_equal(name, "hpsd:{dlrm/3/0000000000000abc/17}:used");
    hps_redis_leases_name(&id, 0xabc, name);
    assert_string_equal(name, "hpsd:{dlrm/3/0000000000000abc}:leases");
}

static void test_load_hash_when_rows_or_shards_differ_then_another(void **state)
{
    (void)state;
    struct hps_table other[2] = {tables[0], tables[1]};
    struct hps_space_id changed = id;
    uint64_t hash = hps_redis_load_hash(&id, 64);
    assert_true(hps_redis_load_hash(&id, 64) == hash);
    assert_true(hps_redis_load_hash(&id, 32) != hash);
    changed.load_id = 8;
    assert_true(hps_redis_load_hash(&changed, 64) != hash);
    changed = id;
    changed.tables = other;
    assert_true(hps_redis_load_hash(&changed, 64) == hash);
    other[1].dtype = HPS_DTYPE_BF16;
    assert_true(hps_redis_load_hash(&changed, 64) != hash);
    other[1] = tables[1];
    other[1].name = "c";
    assert_true(hps_redis_load_hash(&changed, 64) != hash);
}

static void test_field_when_made_then_big_endian(void **state)
{
    (void)state;
    static const uint8_t wanted[] = {0, 0, 1, 2, 0xff, 0xfe, 0, 0, 0, 0, 0, 3};
    uint8_t field[HPS_REDIS_FIELD_BYTES];
    hps_redis_field(0x102, UINT64_C(0xfffe000000000003), field);
    assert_memory_equal(field, wanted, sizeof(wanted));
}

/* Stored by every daemon that ever was: these never change. */
static void test_shard_when_asked_then_as_ever_and_even(void **state)
{
    (void)state;
    enum { N = 64000, SHARDS = 64 };
    unsigned counts[SHARDS] = {0};
    assert_int_equal(hps_redis_shard(0, 0, 64), 0);
    assert_int_equal(hps_redis_shard(0, 1, 64), 21);
    assert_int_equal(hps_redis_shard(5, 1, 64), 28);
    assert_int_equal(hps_redis_shard(0, UINT64_MAX, 64), 45);
    for (hps_key key = 0; key < N; key++) {
        counts[hps_redis_shard(3, key * 8, SHARDS)]++;
    }
    for (unsigned i = 0; i < SHARDS; i++) {
        assert_in_range(counts[i], N / SHARDS * 8 / 10, N / SHARDS * 12 / 10);
    }
}

static void test_partition_when_asked_then_as_ever(void **state)
{
    (void)state;
    const char *log = "abcdefghijklmnopqrstuv";
    uint64_t items = hps_log_partition(log, "hps_et.dlrm.items", 3);
    assert_true(items == UINT64_C(0x73de42ec8f039c7c));
    assert_true(hps_log_partition(log, "hps_et.dlrm.items", 4) != items);
    assert_true(hps_log_partition(log, "hps_et.dlrm.item", 3) != items);
    assert_true(hps_log_partition("", "hps_et.dlrm.items", 3) != items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_when_printed_then_the_tag_is_the_shard),
        cmocka_unit_test(test_load_hash_when_rows_or_shards_differ_then_another),
        cmocka_unit_test(test_field_when_made_then_big_endian),
        cmocka_unit_test(test_shard_when_asked_then_as_ever_and_even),
        cmocka_unit_test(test_partition_when_asked_then_as_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
