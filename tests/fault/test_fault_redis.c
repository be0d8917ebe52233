/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis servers that are killed, paused, loading, replaced, or move slots under load: which
 * calls succeed, the errors of other calls, and recovery without help.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/redis/client/internal.h"
#include "base/heap.h"
#include "tests/lib/pause.h"
#include "tests/lib/redis_client_rig.h"

static struct hps_redis_node_stats node_of(const char *address)
{
    struct hps_redis_node_stats nodes[16];
    uint32_t n = hps_redis_cluster_nodes(cluster, nodes, 16);
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(nodes[i].address, address) == 0) {
            return nodes[i];
        }
    }
    fail_msg("no node %s", address);
    return nodes[0];
}

static uint32_t slots_up(void)
{
    struct hps_redis_stats stats;
    hps_redis_cluster_stats(cluster, &stats);
    return stats.n_slots_up;
}

/* ---- one server ------------------------------------------------------------------------------ */

static void test_server_when_it_is_down_then_unavailable_until_it_starts(void **state)
{
    (void)state;
    server_start(NULL);
    hps_redis_rig_kill(rig, 0);
    client_open();
    redis_await_status(cluster, "a", HPS_UNAVAILABLE);
    assert_int_equal(slots_up(), 0);
    hps_redis_rig_start(rig, 0);
    assert_true(hps_redis_cluster_wait(cluster, redis_soon_us()));
    assert_string_equal(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK");
}

static void test_server_when_killed_then_no_commands_until_it_restarts(void **state)
{
    struct hps_redis_stats stats;
    (void)state;

    server_start(NULL);
    client_connect_patiently();
    assert_string_equal(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK");
    hps_redis_rig_kill(rig, 0);
    uint64_t until_us = redis_soon_us();
    while (node_of(hps_redis_rig_address(rig, 0)).n_refused == 0) {
        assert_int_equal(redis_status(cluster, "a", "GET", "a", NULL), HPS_UNAVAILABLE);
        assert_true(hps_clock_us() < until_us);
    }
    struct hps_redis_node_stats node = node_of(hps_redis_rig_address(rig, 0));
    assert_false(node.up);
    assert_true(node.n_broken >= 5);
    assert_non_null(strstr(node.error, "refused"));
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.n_slots, HPS_REDIS_SLOTS); /* it owns the slots, but is down */
    assert_int_equal(stats.n_slots_up, 0);
    hps_redis_rig_start(rig, 0);
    assert_true(hps_redis_cluster_wait(cluster, redis_soon_us()));
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.n_slots_up, HPS_REDIS_SLOTS);
    assert_string_equal(redis_text(cluster, "a", "GET", "a", NULL), "(nil)");
}

static void test_server_when_paused_then_deadline_then_no_commands_until_it_resumes(void **state)
{
    uint64_t until_us = redis_soon_us();
    (void)state;

    server_start(NULL);
    options.connect_timeout_us = REDIS_PATIENCE_US; /* only calls fail */
    client_connect();
    hps_redis_rig_pause(rig, 0);
    /* A call that the machine delays does not count against the node, so there may be more
     * calls. */
    while (slots_up() > 0) {
        assert_int_equal(redis_status(cluster, "a", "GET", "a", NULL), HPS_DEADLINE);
        assert_true(hps_clock_us() < until_us);
    }
    assert_int_equal(redis_status(cluster, "a", "GET", "a", NULL), HPS_UNAVAILABLE);
    struct hps_redis_node_stats node = node_of(hps_redis_rig_address(rig, 0));
    assert_true(node.n_timeouts >= options.failures_max);
    assert_true(node.n_refused >= 1);
    hps_redis_rig_resume(rig, 0);
    assert_true(hps_redis_cluster_wait(cluster, redis_soon_us()));
    assert_string_equal(redis_text(cluster, "a", "GET", "a", NULL), "(nil)");
}

static void test_command_when_its_reply_is_missing_then_marked_as_maybe_done(void **state)
{
    struct redis_calls calls;
    (void)state;

    server_start(NULL);
    options.command_timeout_us = UINT64_C(1000) * 1000; /* it is sent within this time */
    client_connect();
    redis_calls_init(&calls);
    redis_calls_add(&calls, "n", "INCR", "n", NULL);
    calls.commands[0].flags = HPS_REDIS_ONCE | HPS_REDIS_QUICK;
    hps_redis_rig_pause(rig, 0);
    assert_int_equal(redis_calls_run(&calls, cluster, UINT64_MAX), HPS_DEADLINE);
    assert_true(calls.commands[0].maybe_done);
    hps_redis_rig_resume(rig, 0);
    hps_redis_rig_await(rig, 0, "1", "GET n"); /* it was executed */
    hps_redis_rig_kill(rig, 0);
    redis_await_status(cluster, "n", HPS_UNAVAILABLE);
    uint64_t until_us = redis_soon_us();
    while (redis_calls_run(&calls, cluster, 0) != HPS_UNAVAILABLE) {
        assert_true(hps_clock_us() < until_us);
    }
    assert_false(calls.commands[0].maybe_done);
    redis_calls_fini(&calls);
}

static void test_connections_when_the_server_closes_them_then_calls_succeed(void **state)
{
    (void)state;
    server_start(NULL);
    client_connect_patiently();
    for (unsigned i = 0; i < 20; i++) {
        assert_string_equal(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK");
        hps_redis_rig_ask(rig, 0, "CLIENT KILL TYPE normal SKIPME yes");
    }
    assert_true(node_of(hps_redis_rig_address(rig, 0)).up);
}

static void test_server_when_it_is_loading_then_unavailable_until_it_has_loaded(void **state)
{
    const char *const args[] = {"--loading-process-events-interval-bytes", "1024", NULL};
    struct hps_redis_stats stats;
    (void)state;

    server_start(args);
    client_connect_patiently();
    hps_redis_rig_ask(rig, 0, "DEBUG POPULATE 3000 key 100");
    hps_redis_rig_ask(rig, 0, "SAVE");
    hps_redis_rig_kill(rig, 0);
    hps_redis_rig_more_args(rig, (const char *const[]){"--key-load-delay", "10000", NULL});
    redis_await_status(cluster, "key:1", HPS_UNAVAILABLE);
    hps_redis_rig_start(rig, 0);
    hps_redis_rig_await(rig, 0, "LOADING", "PING");
    redis_await_status(cluster, "key:1", HPS_UNAVAILABLE);
    /* The load would have taken half a minute, longer than any stall. */
    assert_string_equal(hps_redis_rig_ask(rig, 0, "CONFIG SET key-load-delay 0"), "OK");
    assert_true(hps_redis_cluster_wait(cluster, redis_soon_us()));
    hps_redis_rig_ask(rig, 0, "PING");
    assert_string_not_equal(redis_text(cluster, "key:1", "GET", "key:1", NULL), "(nil)");
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.kind, HPS_REDIS_STANDALONE);
}

static void test_replica_when_it_is_configured_first_then_the_master_is_found(void **state)
{
    struct hps_redis_rig *master = hps_redis_rig_standalone(NULL);
    struct hps_redis_rig *replica = hps_redis_rig_standalone(NULL);
    char addresses[100];
    uint64_t until_us = redis_soon_us();
    (void)state;

    hps_redis_rig_ask(replica, 0, "REPLICAOF 127.0.0.1 %u", hps_redis_rig_port(master, 0));
    hps_redis_rig_await(replica, 0, "master_link_status:up", "INFO replication");
    snprintf(addresses, sizeof(addresses), "%s;%s", hps_redis_rig_addresses(replica),
             hps_redis_rig_addresses(master));
    cluster = redis_open(addresses);
    while (redis_status(cluster, "a", "SET", "a", "1", NULL) != HPS_OK) {
        assert_true(hps_clock_us() < until_us);
    }
    assert_string_equal(hps_redis_rig_ask(master, 0, "GET a"), "1");
    /* The master is killed: the replica takes over and is found. */
    hps_redis_rig_kill(master, 0);
    hps_redis_rig_ask(replica, 0, "REPLICAOF NO ONE");
    while (redis_status(cluster, "b", "SET", "b", "1", NULL) != HPS_OK) {
        assert_true(hps_clock_us() < until_us);
    }
    assert_string_equal(hps_redis_rig_ask(replica, 0, "GET b"), "1");
    client_close();
    hps_redis_rig_free(master);
    hps_redis_rig_free(replica);
}

/* ---- many callers ---------------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    unsigned id;
    atomic_bool *stop;
    uint64_t n_rounds;
    uint64_t n_wrong;
    char error[HPS_REDIS_ERROR_MAX];
};

enum { WORKERS = 6, KEYS = 24 };

/* Each worker adds 1 to its own counters, at least once. A counter must equal the number of
 * additions. */
static void *count_on(void *ctx)
{
    struct worker *worker = ctx;
    do {
        struct redis_calls *calls = hps_alloc(sizeof(*calls));
        redis_calls_init(calls);
        for (unsigned i = 0; i < KEYS; i++) {
            char key[32];
            snprintf(key, sizeof(key), "{k%u}w%u", i, worker->id);
            redis_calls_add(calls, key, "INCR", key, NULL);
            calls->commands[i].flags = HPS_REDIS_ONCE;
        }
        hps_status status = redis_calls_run(calls, cluster, redis_soon_us());
        worker->n_rounds++;
        for (unsigned i = 0; i < KEYS; i++) {
            bool right = calls->commands[i].reply.status == HPS_OK &&
                         calls->values[i].items[0].number == (int64_t)worker->n_rounds;
            worker->n_wrong += !right;
            if (!right && !worker->error[0]) {
                snprintf(worker->error, sizeof(worker->error), "%s",
                         calls->commands[i].reply.error);
            }
        }
        redis_calls_fini(calls);
        hps_free(calls);
        if (status != HPS_OK) {
            break;
        }
    } while (!atomic_load(worker->stop));
    return NULL;
}

static void start_workers(struct worker workers[WORKERS], atomic_bool *stop)
{
    atomic_init(stop, false);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.id = i, .stop = stop};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, count_on, &workers[i]), 0);
    }
}

static void stop_workers(struct worker workers[WORKERS], atomic_bool *stop)
{
    atomic_store(stop, true);
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        assert_string_equal(workers[i].error, "");
        assert_int_equal(workers[i].n_wrong, 0);
        assert_true(workers[i].n_rounds > 0);
    }
}

static void test_callers_when_there_are_more_than_connections_then_all_succeed(void **state)
{
    struct worker workers[WORKERS];
    atomic_bool stop;
    (void)state;

    server_start(NULL);
    options.connections_per_node = 2;
    client_connect();
    start_workers(workers, &stop);
    uint64_t until_us = redis_soon_us();
    while (strtol(hps_redis_rig_ask(rig, 0, "GET {k0}w0"), NULL, 10) < 100) {
        assert_true(hps_clock_us() < until_us);
    }
    stop_workers(workers, &stop);
    assert_true(node_of(hps_redis_rig_address(rig, 0)).n_connections <= 2);
}

/* ---- a cluster ------------------------------------------------------------------------------- */

static const char *key_at(uint32_t master, const char *prefix)
{
    static char key[64];
    return redis_key_at(master, prefix, key);
}

static void test_slots_when_they_move_under_load_then_each_command_is_executed_once(void **state)
{
    uint64_t begin_us = hps_clock_us();
    struct worker workers[WORKERS];
    struct hps_redis_stats stats;
    atomic_bool stop;
    (void)state;

    client_connect_patiently();
    start_workers(workers, &stop);
    for (unsigned round = 0; round < 6; round++) {
        for (unsigned i = 0; i < KEYS; i++) {
            char tag[16];
            snprintf(tag, sizeof(tag), "k%u", i);
            uint16_t slot = hps_redis_slot(tag, strlen(tag));
            uint32_t from = slot < 5461 ? 0 : slot < 10922 ? 1 : 2;
            uint32_t to = (from + 1) % 3;
            if (round % 2 == 1) {
                uint32_t swap = from;
                from = to;
                to = swap;
            }
            hps_redis_rig_migrate_begin(shared, slot, from, to);
            hps_redis_rig_migrate_keys(shared, slot, from, to, 1000);
            hps_redis_rig_migrate_end(shared, slot, from, to);
        }
    }
    stop_workers(workers, &stop);
    hps_redis_cluster_stats(cluster, &stats);
    assert_true(stats.n_moved > 0);
    /* However often slots move, the map is requested once a second, or again after a timeout. */
    assert_true(stats.n_refreshes <= 2 + 2 * ((hps_clock_us() - begin_us) / 1000000 + 1));
}

static void test_slot_when_no_master_has_it_then_unavailable_until_one_does(void **state)
{
    struct hps_redis_stats stats;
    const char *key = key_at(0, "orphan");
    uint16_t slot = hps_redis_slot(key, strlen(key));
    (void)state;

    client_connect_patiently();
    hps_redis_rig_ask(shared, 0, "CLUSTER DELSLOTS %u", slot);
    assert_int_equal(redis_status(cluster, key, "GET", key, NULL), HPS_UNAVAILABLE);
    hps_redis_cluster_stats(cluster, &stats);
    assert_true(stats.n_down >= 1);
    hps_redis_rig_ask(shared, 0, "CLUSTER ADDSLOTS %u", slot);
    redis_await_status(cluster, key, HPS_OK);
}

static void test_entry_when_the_first_is_paused_then_the_next_is_used(void **state)
{
    char addresses[100];
    (void)state;

    snprintf(addresses, sizeof(addresses), "%s,%s", hps_redis_rig_address(shared, 3),
             hps_redis_rig_address(shared, 4));
    hps_redis_rig_pause(shared, 3); /* a replica, so no slot is missing */
    options.addresses = addresses;
    client_open();
    redis_await_status(cluster, key_at(0, "e"), HPS_OK);
    hps_redis_rig_resume(shared, 3);
}

static void test_master_when_it_is_paused_then_other_masters_reply_in_the_same_call(void **state)
{
    struct redis_calls calls;
    (void)state;

    client_connect();
    redis_calls_init(&calls);
    for (uint32_t i = 0; i < 3; i++) {
        char key[64];
        snprintf(key, sizeof(key), "%s", key_at(i, "p"));
        redis_calls_add(&calls, key, "GET", key, NULL);
    }
    hps_redis_rig_pause(shared, 0);
    hps_status status;
    uint64_t until_us = redis_soon_us();
    do { /* the paused node times out, then is skipped; a busy machine may delay other nodes, too */
        status = redis_calls_run(&calls, cluster, 0);
        assert_true(hps_clock_us() < until_us);
    } while (status != HPS_UNAVAILABLE || calls.commands[1].reply.status != HPS_OK ||
             calls.commands[2].reply.status != HPS_OK);
    assert_non_null(strstr(calls.commands[0].reply.error, hps_redis_rig_address(shared, 0)));
    hps_redis_rig_resume(shared, 0);
    redis_await_status(cluster, key_at(0, "p"), HPS_OK);
    redis_calls_fini(&calls);
}

/* Must be last: it leaves the cluster with another master. */
static void test_master_when_it_dies_then_its_replica_is_found_and_lost_writes_are_missing(
    void **state)
{
    char key[64];
    char lost[80];
    (void)state;

    client_connect_patiently();
    snprintf(key, sizeof(key), "%s", key_at(1, "failover"));
    snprintf(lost, sizeof(lost), "{%s}lost", key);
    assert_string_equal(redis_text(cluster, key, "SET", key, "kept", NULL), "OK");
    /* WAIT covers only the writes of its own connection. */
    assert_string_equal(hps_redis_rig_ask(shared, 1, "SET {%s}waited 1", key), "OK");
    assert_string_equal(hps_redis_rig_ask(shared, 1, "WAIT 1 60000"), "1");
    /* An acknowledged write that never reaches the replica. */
    hps_redis_rig_pause(shared, 4);
    assert_string_equal(hps_redis_rig_ask(shared, 1, "CLIENT KILL TYPE replica"), "1");
    assert_string_equal(redis_text(cluster, key, "SET", lost, "1", NULL), "OK");
    hps_redis_rig_kill(shared, 1);
    hps_redis_rig_resume(shared, 4);
    hps_redis_rig_takeover(shared, 4);
    redis_await_status(cluster, key, HPS_OK);
    assert_string_equal(redis_text(cluster, key, "GET", lost, NULL), "(nil)");
    assert_string_equal(redis_text(cluster, key, "GET", key, NULL), "kept");
    struct hps_redis_node_stats node = node_of(hps_redis_rig_address(shared, 4));
    assert_int_equal(node.role, HPS_REDIS_MASTER);
    /* The old master returns as a replica of the new one. */
    hps_redis_rig_start(shared, 1);
    hps_redis_rig_await(shared, 1, "master_link_status:up", "INFO replication");
    assert_string_equal(redis_text(cluster, key, "GET", key, NULL), "kept");
}

struct call {
    pthread_t thread;
    struct redis_calls calls;
    hps_status status;
};

static void *call_run(void *ctx)
{
    struct call *call = ctx;
    call->status = redis_calls_run(&call->calls, cluster, redis_soon_us());
    return NULL;
}

static void call_start(struct call *call)
{
    assert_int_equal(pthread_create(&call->thread, NULL, call_run, call), 0);
}

static hps_status call_end(struct call *call)
{
    pthread_join(call->thread, NULL);
    redis_calls_fini(&call->calls);
    return call->status;
}

/* Wait until a call waits for a connection to the node. */
static void await_waiting(const char *address)
{
    uint64_t until_us = redis_soon_us();
    uint32_t n = 0;
    while (n == 0) {
        hps_lock_acquire(&cluster->lock);
        for (uint32_t i = 0; i < cluster->n_nodes; i++) {
            n += strcmp(cluster->nodes[i]->text, address) == 0 ? cluster->nodes[i]->n_waiting : 0;
        }
        hps_lock_release(&cluster->lock);
        assert_true(hps_clock_us() < until_us);
        brief_pause();
    }
}

/* The only connection to node 2 is released while the call waits for node 1 until its deadline. */
static void test_node_when_another_used_all_the_time_then_its_connection_is_not_broken(void **state)
{
    static struct call busy;
    static struct call call;
    char none[64];
    char key[64];
    (void)state;

    options.connections_per_node = 1;
    options.command_timeout_us = UINT64_C(5000) * 1000; /* far longer than node 2 needs */
    client_connect();
    struct hps_redis_node_stats before = node_of(hps_redis_rig_address(shared, 2));
    redis_calls_init(&busy.calls);
    redis_key_at(2, "none", none);
    redis_calls_add(&busy.calls, none, "BLPOP", none, "0", NULL);
    redis_calls_init(&call.calls);
    redis_key_at(1, "paused", key);
    redis_calls_add(&call.calls, key, "GET", key, NULL);
    redis_key_at(2, "whole", key);
    redis_calls_add(&call.calls, key, "GET", key, NULL);
    call.calls.commands[0].flags = call.calls.commands[1].flags = HPS_REDIS_QUICK;
    hps_redis_rig_pause(shared, 1);
    call_start(&busy);
    hps_redis_rig_await(shared, 2, "blocked_clients:1", "INFO clients");
    call_start(&call);
    await_waiting(hps_redis_rig_address(shared, 2));
    hps_redis_rig_ask(shared, 2, "RPUSH %s 1", none);
    assert_int_equal(call_end(&busy), HPS_OK);
    assert_int_not_equal(call_end(&call), HPS_OK);
    hps_redis_rig_resume(shared, 1);
    struct hps_redis_node_stats after = node_of(hps_redis_rig_address(shared, 2));
    assert_int_equal(after.n_broken, before.n_broken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLIENT_TEST(test_server_when_it_is_down_then_unavailable_until_it_starts),
        CLIENT_TEST(test_server_when_killed_then_no_commands_until_it_restarts),
        CLIENT_TEST(test_server_when_paused_then_deadline_then_no_commands_until_it_resumes),
        CLIENT_TEST(test_command_when_its_reply_is_missing_then_marked_as_maybe_done),
        CLIENT_TEST(test_connections_when_the_server_closes_them_then_calls_succeed),
        CLIENT_TEST(test_server_when_it_is_loading_then_unavailable_until_it_has_loaded),
        CLIENT_TEST(test_replica_when_it_is_configured_first_then_the_master_is_found),
        CLIENT_TEST(test_callers_when_there_are_more_than_connections_then_all_succeed),
    };
    const struct CMUnitTest cluster_tests[] = {
        CLIENT_TEST(test_slots_when_they_move_under_load_then_each_command_is_executed_once),
        CLIENT_TEST(test_slot_when_no_master_has_it_then_unavailable_until_one_does),
        CLIENT_TEST(test_entry_when_the_first_is_paused_then_the_next_is_used),
        CLIENT_TEST(test_master_when_it_is_paused_then_other_masters_reply_in_the_same_call),
        CLIENT_TEST(test_node_when_another_used_all_the_time_then_its_connection_is_not_broken),
        CLIENT_TEST(test_master_when_it_dies_then_its_replica_is_found_and_lost_writes_are_missing),
    };
    if (!hps_redis_rig_present()) {
        return HPS_REDIS_RIG_SKIP;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed + cmocka_run_group_tests(cluster_tests, shared_start_with_replicas, shared_stop);
}
