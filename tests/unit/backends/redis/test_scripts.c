/* SPDX-License-Identifier: Apache-2.0
 *
 * The scripts have the hashes that a server gives them, and run there.
 */
#include "backends/redis/scripts.h"

#include "backends/redis/client/codec.h"
#include "tests/lib/redis_fixture.h"

/* Run a command that lies in `bytes`; `values` is to be finished. */
static hps_status run(struct hps_redis_cluster *cluster, struct hps_buf *bytes,
                      struct hps_redis_values *values)
{
    hps_redis_values_init(values, 64, 1 << 16);
    struct hps_redis_command command = {
        .bytes = bytes->data, .size = bytes->size, .reply = {.values = values}};
    hps_ignore(hps_redis_cluster_run(cluster, &command, 1, hps_clock_us() + FX_WAIT_US));
    hps_buf_clear(bytes);
    return command.reply.status;
}

static void test_sha_when_a_server_loads_it_then_the_same(void **state)
{
    (void)state;
    struct hps_store *store = fx_open("one");
    struct hps_buf bytes;
    struct hps_redis_values values;
    hps_buf_init(&bytes, 1 << 16);
    for (enum hps_redis_script i = 0; i < HPS_REDIS_SCRIPTS; i++) {
        assert_int_equal(hps_redis_script_load(&bytes, i), HPS_OK);
        assert_int_equal(run(hps_redis_of(store), &bytes, &values), HPS_OK);
        assert_string_equal(hps_redis_values_text(&values, 0), hps_redis_script_sha(i));
        hps_redis_values_fini(&values);
    }
    hps_buf_fini(&bytes);
    store->ops->close(store);
}

static void test_begin_when_the_script_is_not_known_then_noscript(void **state)
{
    (void)state;
    struct hps_store *store = fx_open("one");
    const struct hps_redis_name key = {"k", 1};
    struct hps_buf bytes;
    struct hps_redis_values values;
    int64_t n = 0;
    hps_buf_init(&bytes, 1 << 16);
    (void)hps_redis_rig_ask(fx_rig, 0, "SCRIPT FLUSH");
    for (int known = 0; known < 2; known++) {
        assert_int_equal(hps_redis_script_begin(&bytes, HPS_REDIS_LEASE, &key, 1, 3), HPS_OK);
        assert_int_equal(hps_redis_put_text(&bytes, "me"), HPS_OK);
        assert_int_equal(hps_redis_put_u64(&bytes, 1000), HPS_OK);
        assert_int_equal(hps_redis_put_text(&bytes, "take"), HPS_OK);
        assert_int_equal(run(hps_redis_of(store), &bytes, &values),
                         known != 0 ? HPS_OK : HPS_NOT_FOUND);
        assert_true(known == 0 || (hps_redis_values_i64(&values, 0, &n) && n == 1));
        hps_redis_values_fini(&values);
        assert_int_equal(hps_redis_script_load(&bytes, HPS_REDIS_LEASE), HPS_OK);
        assert_int_equal(run(hps_redis_of(store), &bytes, &values), HPS_OK);
        hps_redis_values_fini(&values);
    }
    hps_buf_fini(&bytes);
    store->ops->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(test_sha_when_a_server_loads_it_then_the_same),
        FX_TEST(test_begin_when_the_script_is_not_known_then_noscript),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}
