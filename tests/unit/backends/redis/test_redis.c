/* SPDX-License-Identifier: Apache-2.0
 *
 * Spaces of the redis store: which daemons use them, and how long they live.
 */
#include "backends/redis/redis.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backends/store_bulk.h"
#include "tests/lib/fake_redis.h"
#include "tests/lib/pause.h"
#include "tests/lib/redis_fixture.h"
#include "tests/lib/work.h"

enum { N_LOADED = 200, N_ROUNDS = HPS_TEST_WORK(60) };

static void await(const char *command, const char *wanted)
{
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (strcmp(hps_redis_rig_ask(fx_rig, 0, "%s", command), wanted) != 0) {
        if (hps_clock_us() > end_us) {
            fail_msg("%s: %s, expected %s", command, hps_redis_rig_ask(fx_rig, 0, "%s", command),
                     wanted);
        }
        brief_pause();
    }
}

static const char *const n_leases =
    "EVAL return(redis.call('ZCARD',redis.call('KEYS','*leases')[1]or'none')) 0";

/* Open a store with the only copy of the rows. */
static struct hps_store *open_only(const char *member, uint32_t n_shards, uint64_t lease_ms)
{
    struct hps_redis_store_options options = fx_options(member);
    options.authoritative = true;
    options.n_shards = n_shards;
    options.lease_ms = lease_ms;
    return fx_open_with(&options);
}

/* Load the version as a daemon does: existing shards stay, missing shards are loaded. Any
 * thread. */
static hps_status load(struct hps_space *space, struct hps_error *err)
{
    const struct hps_store_ops *ops = space->store->ops;
    hps_key keys[N_LOADED];
    uint8_t rows[N_LOADED * FX_ROW];
    struct hps_write write;
    struct hps_store_load *load = NULL;
    for (uint32_t i = 0; i < N_LOADED; i++) {
        keys[i] = i;
    }
    fx_write(&write, keys, rows, N_LOADED, 4);
    hps_status status = ops->bulk->begin(space, N_LOADED, 0, &load, err);
    if (status == HPS_OK) {
        status = ops->bulk->add(load, &fx_tables[0], keys, rows, N_LOADED, err);
        status = status == HPS_OK ? ops->bulk->commit(load, err) : status;
    }
    return status == HPS_PRECONDITION ? HPS_OK : status;
}

static uint32_t n_lost(struct hps_space *space)
{
    struct hps_store_usage usage;
    space->store->ops->space_usage(space, &usage);
    return usage.n_shards_lost;
}

static void await_lost(struct hps_space *space, uint32_t wanted)
{
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (n_lost(space) != wanted) {
        if (hps_clock_us() > end_us) {
            fail_msg("%u shards are lost, not %u", n_lost(space), wanted);
        }
        brief_pause();
    }
}

static void refused(const struct hps_redis_store_options *options, const char *named)
{
    struct hps_store *store = NULL;
    assert_int_equal(hps_redis_open(options, &store, &fx_error), HPS_INVALID);
    assert_null(store);
    assert_non_null(strstr(fx_error.text, named));
}

static void test_open_when_an_option_is_wrong_then_named(void **state)
{
    (void)state;
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    options.n_shards = 0;
    refused(&options, "num_partitions");
    options.n_shards = 64;
    options.fields_max = 0;
    refused(&options, "max_batch_size");
    options.fields_max = 10;
    options.target_ratio = 1.5;
    refused(&options, "overflow_resolution_target");
    options.target_ratio = 1;
    options.lease_ms = 0;
    refused(&options, "leases");
}

/* No server listens at the address. */
static void test_calls_when_no_server_then_unavailable_and_no_harm(void **state)
{
    (void)state;
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    char address[32];
    struct hps_store *store = NULL;
    struct hps_insert_report inserted;
    struct hps_log_report report;
    struct hps_log_position behind;
    uint32_t n_behind = 1;
    hps_key key = 1;
    uint32_t slot = 0;
    uint8_t row[FX_ROW] = {0};
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", hps_redis_rig_free_port());
    options.redis.addresses = address;
    assert_int_equal(hps_redis_open(&options, &store, &fx_error), HPS_OK);
    struct hps_space *space = fx_space(store);
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = row, .n = 1};
    fx_at(space, 3);
    assert_int_equal(store->ops->get(space, &fx_call, &fx_tables[0], &batch), HPS_UNAVAILABLE);
    assert_int_equal(batch.n, 1);
    assert_int_equal(store->ops->put(space, &fx_call, &fx_tables[0], &key, row, 1),
                     HPS_UNAVAILABLE);
    hps_ignore(store->ops->insert(space, &fx_call, &fx_tables[0], &key, &slot, row, 1, NULL,
                                  &inserted)); /* OK or an error: only the report counts */
    assert_int_equal(inserted.n_inserted, 0);
    const struct hps_log_span span = {FX_PARTITION, 0, 3, 4};
    const struct hps_log_batch log = {.spans = &span, .n_spans = 1};
    assert_int_equal(store->ops->log->apply(space, &fx_call, &log, &report), HPS_OK);
    assert_int_equal(report.n_failed, options.n_shards);
    assert_int_equal(store->ops->log->behind(space, &fx_call, &behind, 1, &n_behind),
                     HPS_UNAVAILABLE);
    assert_int_equal(n_behind, 0);
    assert_int_equal(store->ops->log->reset(space, &fx_call, &report), HPS_OK);
    assert_int_equal(report.n_failed, options.n_shards);
    assert_int_equal(store->ops->space_drop(space, &fx_error), HPS_UNAVAILABLE);
    store->ops->close(store);
}

static void test_drop_when_another_daemon_has_a_lease_then_rows_stay(void **state)
{
    (void)state;
    struct hps_store *one = fx_open("one");
    struct hps_store *two = fx_open("two");
    struct hps_space *a = fx_space(one);
    assert_int_equal(fx_insert(a, 100, 0).n_inserted, 100);
    await(n_leases, "1");
    struct hps_space *b = fx_space(two);
    await(n_leases, "2");
    assert_int_equal(one->ops->space_drop(a, &fx_error), HPS_OK);
    assert_int_equal(fx_found(b, 100, 0), 100);
    assert_int_equal(two->ops->space_drop(b, &fx_error), HPS_OK);
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "DBSIZE"), "0");
    one->ops->close(one);
    two->ops->close(two);
}

/* ---- loads while another daemon unloads ------------------------------------------------------ */

static void test_load_when_begun_then_the_version_is_in_use_at_once(void **state)
{
    (void)state;
    struct hps_store *one = open_only("one", FX_SHARDS, 30000);
    struct hps_store *two = open_only("two", FX_SHARDS, 30000);
    struct hps_space *a = fx_space(one);
    assert_int_equal(load(a, &fx_error), HPS_OK);
    struct hps_space *b = fx_space(two);
    await(n_leases, "2");
    (void)hps_redis_rig_ask(fx_rig, 0, "EVAL redis.call('DEL',redis.call('KEYS','*leases')[1]) 0");
    assert_int_equal(load(b, &fx_error), HPS_OK); /* it relies on the existing shards */
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "%s", n_leases), "1");
    assert_int_equal(one->ops->space_drop(a, &fx_error), HPS_OK);
    assert_int_equal(fx_found(b, N_LOADED, 4), N_LOADED);
    fx_close(b);
    one->ops->close(one);
}

static void test_load_when_another_daemon_deletes_the_rows_then_refused_until_it_ends(void **state)
{
    (void)state;
    struct hps_store *one = open_only("one", FX_SHARDS, 30000);
    struct hps_space *a = fx_space(one);
    assert_int_equal(load(a, &fx_error), HPS_OK);
    /* a third daemon holds its unload lease and deletes shards, or was killed then */
    (void)hps_redis_rig_ask(fx_rig, 0,
                            "EVAL local\tk=redis.call('KEYS','*leases')[1]redis.call('DEL',k)"
                            "redis.call('ZADD',k,'1e15','-three') 0");
    struct hps_store *two = open_only("two", FX_SHARDS, 30000);
    struct hps_space *b = fx_space(two);
    assert_int_equal(load(b, &fx_error), HPS_UNAVAILABLE);
    assert_non_null(strstr(fx_error.text, "another daemon is unloading the version"));
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "%s", n_leases),
                        "1"); /* the maintenance thread takes no lease either */
    (void)hps_redis_rig_ask(fx_rig, 0,
                            "EVAL redis.call('ZADD',redis.call('KEYS','*leases')[1],1,'-three') 0");
    assert_int_equal(load(b, &fx_error), HPS_OK); /* the unload has ended */
    assert_int_equal(fx_found(b, N_LOADED, 4), N_LOADED);
    fx_close(b);
    fx_close(a);
}

struct unloader {
    struct hps_store *store;
    _Atomic uint32_t n_rounds;
    atomic_bool stops;
};

/* Load and unload the version repeatedly. */
static void *unloader_run(void *ctx)
{
    struct unloader *unloader = ctx;
    struct hps_error err;
    while (!atomic_load(&unloader->stops)) {
        struct hps_space *space = fx_space(unloader->store);
        assert_int_equal(load(space, &err), HPS_OK);
        assert_int_equal(unloader->store->ops->space_drop(space, &err), HPS_OK);
        atomic_fetch_add(&unloader->n_rounds, 1);
    }
    return NULL;
}

static void test_load_when_another_daemon_unloads_repeatedly_then_complete_when_done(void **state)
{
    (void)state;
    struct unloader unloader = {.store = open_only("one", 64, 30000)};
    struct hps_store *store = open_only("two", 64, 30000);
    pthread_t thread;
    uint32_t n_refused = 0;
    assert_int_equal(pthread_create(&thread, NULL, unloader_run, &unloader), 0);
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        struct hps_error err;
        struct hps_space *space = fx_space(store);
        hps_status status;
        while ((status = load(space, &err)) == HPS_UNAVAILABLE) {
            n_refused++;
        }
        assert_int_equal(status, HPS_OK);
        for (uint32_t again = 0; again < 4; again++) {
            assert_int_equal(fx_found(space, N_LOADED, 4), N_LOADED);
        }
        store->ops->space_close(space);
    }
    atomic_store(&unloader.stops, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("%u unloads, %u loads refused\n", unloader.n_rounds, n_refused);
    store->ops->close(store);
    unloader.store->ops->close(unloader.store);
}

/* ---- loss of the only copy ------------------------------------------------------------------- */

static void test_usage_when_the_only_copy_is_lost_then_reported_until_loaded_again(void **state)
{
    (void)state;
    struct hps_store *one = open_only("one", FX_SHARDS, 30); /* checked in each round */
    struct hps_space *a = fx_space(one);
    await(n_leases, "1");
    assert_int_equal(n_lost(a), 0); /* not loaded yet */
    assert_int_equal(load(a, &fx_error), HPS_OK);
    assert_int_equal(n_lost(a), 0);
    (void)hps_redis_rig_ask(fx_rig, 0,
                            "EVAL redis.call('DEL',redis.call('KEYS','hpsd*[0-9]}')[1]) 0");
    await_lost(a, 1);
    (void)hps_redis_rig_ask(fx_rig, 0, "FLUSHALL");
    await_lost(a, FX_SHARDS);
    struct hps_store *two = open_only("two", FX_SHARDS, 30);
    struct hps_space *b = fx_space(two);
    assert_int_equal(load(b, &fx_error), HPS_OK);
    await_lost(a, 0);
    assert_int_equal(fx_found(a, N_LOADED, 4), N_LOADED);
    fx_close(a);
    fx_close(b);
}

static void test_usage_when_a_lookup_finds_a_lost_shard_then_reported_soon(void **state)
{
    (void)state;
    struct hps_space *space = fx_space(open_only("one", FX_SHARDS, 3600 * 1000));
    hps_key key = 1;
    uint32_t slot = 0;
    uint8_t row[FX_ROW];
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = row, .n = 1};
    assert_int_equal(load(space, &fx_error), HPS_OK);
    (void)hps_redis_rig_ask(fx_rig, 0, "FLUSHALL");
    assert_int_equal(space->store->ops->get(space, &fx_call, &fx_tables[0], &batch),
                     HPS_UNAVAILABLE);
    assert_int_equal(batch.n, 1);
    await_lost(space, FX_SHARDS);
    fx_close(space);
}

static void test_close_when_opened_again_then_rows_are_kept(void **state)
{
    (void)state;
    struct hps_space *space = fx_space(fx_open("one"));
    fx_at(space, 5);
    assert_int_equal(fx_insert(space, 100, 4).n_inserted, 100);
    fx_close(space);
    space = fx_space(fx_open("one"));
    fx_at(space, 5);
    assert_int_equal(fx_found(space, 100, 4), 100);
    fx_close(space);
}

static uint64_t server_bytes(void)
{
    const char *info = hps_redis_rig_ask(fx_rig, 0, "INFO memory");
    const char *at = strstr(info, "used_memory:");
    assert_non_null(at);
    return strtoull(at + strlen("used_memory:"), NULL, 10);
}

static void test_usage_when_rows_exist_then_the_estimate_is_near_the_servers_memory(void **state)
{
    (void)state;
    struct hps_store_usage usage;
    struct hps_space *space = fx_daemon("one");
    uint64_t before = server_bytes();
    static uint8_t rows[20000 * FX_ROW];
    static hps_key keys[20000];
    for (uint32_t i = 0; i < 20000; i++) {
        keys[i] = i;
    }
    assert_int_equal(space->store->ops->put(space, &fx_call, &fx_tables[0], keys, rows, 20000),
                     HPS_OK);
    space->store->ops->space_usage(space, &usage);
    assert_int_equal(usage.n_rows, 20000);
    uint64_t after = server_bytes(); /* wide rows only: the estimate counts both tables alike */
    assert_in_range(usage.used_bytes, (after - before) / 2, (after - before) * 5 / 4);
}

static void test_space_when_loads_or_versions_differ_then_apart(void **state)
{
    (void)state;
    struct hps_store *store = fx_open("one");
    struct hps_space *space = fx_space(store);
    struct hps_space_id id = {"m", 2, fx_tables, 2, 99};
    struct hps_space *other = NULL;
    assert_int_equal(fx_insert(space, 10, 0).n_inserted, 10);
    assert_int_equal(store->ops->space_open(store, &id, &other, &fx_error), HPS_OK);
    assert_int_equal(fx_found(other, 10, 0), 0);
    store->ops->space_close(other);
    fx_close(space);
    store = fx_open("one");
    id = (struct hps_space_id){"m", 1, fx_tables, 2, 98};
    assert_int_equal(store->ops->space_open(store, &id, &other, &fx_error), HPS_OK);
    assert_int_equal(fx_found(other, 10, 0), 0);
    fx_close(other);
}

static void test_ttl_when_set_then_the_server_expires_shards(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.ttl_ms = 3600 * 1000;
    options.lease_ms = 30; /* renewed in each round of maintenance */
    struct hps_space *space = fx_daemon_with(&options);
    assert_int_equal(fx_insert(space, 100, 0).n_inserted, 100);
    await("EVAL return(redis.call('PTTL',redis.call('KEYS','hpsd*[0-9]}')[1])>0) 0", "1");
}

/* A fake server that counts the shards deleted between two lease checks. */
struct counter {
    struct hps_fake_redis *fake;
    atomic_uint n_asked;
    atomic_uint n_deleted;
    atomic_uint n_since; /* since the last lease check */
    atomic_uint n_since_max;
};

static bool ends(const char *text, const char *with)
{
    size_t size = strlen(text);
    return size >= strlen(with) && strcmp(text + size - strlen(with), with) == 0;
}

static enum hps_fake_redis_then counter_answer(void *ctx, uint32_t node, const char *command,
                                               char *out_answer)
{
    struct counter *counter = ctx;
    (void)node;
    if (strcmp(command, "CLUSTER SLOTS") == 0) {
        hps_fake_redis_map(counter->fake, 1, out_answer);
    } else if (ends(command, "}") && strncmp(command, "UNLINK", 6) == 0) {
        atomic_fetch_add(&counter->n_deleted, 1);
        unsigned n = atomic_fetch_add(&counter->n_since, 1) + 1;
        if (n > atomic_load(&counter->n_since_max)) {
            atomic_store(&counter->n_since_max, n);
        }
        memcpy(out_answer, ":1\r\n", 5);
    } else if (strncmp(command, "EVALSHA", 7) == 0) {
        bool drops = ends(command, " drop");
        atomic_fetch_add(&counter->n_asked, drops);
        atomic_store(&counter->n_since, 0);
        memcpy(out_answer, ends(command, " take") ? ":1\r\n" : ":0\r\n", 5);
    } else if (strncmp(command, "HLEN", 4) == 0 || strncmp(command, "UNLINK", 6) == 0) {
        memcpy(out_answer, ":0\r\n", 5);
    } else {
        hps_fake_redis_usual(command, out_answer);
    }
    return HPS_FAKE_REDIS_GO_ON;
}

static void test_drop_when_many_shards_then_the_lease_is_checked_for_each_eight(void **state)
{
    enum { AT_ONCE = 8, MANY = 60 };
    (void)state;
    struct counter counter = {.n_asked = 0};
    counter.fake = hps_fake_redis_new(1, counter_answer, &counter);
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    options.redis.addresses = hps_fake_redis_address(counter.fake, 0);
    options.redis.command_timeout_us = FX_WAIT_US;
    options.write_timeout_us = FX_WAIT_US;
    options.n_shards = MANY;
    options.member = "one";
    struct hps_space *space = fx_space(fx_open_with(&options));
    struct hps_store *store = space->store;
    assert_int_equal(store->ops->space_drop(space, &fx_error), HPS_OK);
    assert_int_equal(atomic_load(&counter.n_deleted), MANY);
    assert_int_equal(atomic_load(&counter.n_asked), (MANY + AT_ONCE - 1) / AT_ONCE);
    assert_int_equal(atomic_load(&counter.n_since_max), AT_ONCE);
    store->ops->close(store);
    hps_fake_redis_free(counter.fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_when_an_option_is_wrong_then_named),
        cmocka_unit_test(test_calls_when_no_server_then_unavailable_and_no_harm),
        FX_TEST(test_drop_when_another_daemon_has_a_lease_then_rows_stay),
        cmocka_unit_test(test_drop_when_many_shards_then_the_lease_is_checked_for_each_eight),
        FX_TEST(test_load_when_begun_then_the_version_is_in_use_at_once),
        FX_TEST(test_load_when_another_daemon_deletes_the_rows_then_refused_until_it_ends),
        FX_TEST(test_load_when_another_daemon_unloads_repeatedly_then_complete_when_done),
        FX_TEST(test_usage_when_the_only_copy_is_lost_then_reported_until_loaded_again),
        FX_TEST(test_usage_when_a_lookup_finds_a_lost_shard_then_reported_soon),
        FX_TEST(test_close_when_opened_again_then_rows_are_kept),
        FX_TEST(test_usage_when_rows_exist_then_the_estimate_is_near_the_servers_memory),
        FX_TEST(test_space_when_loads_or_versions_differ_then_apart),
        FX_TEST(test_ttl_when_set_then_the_server_expires_shards),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}
