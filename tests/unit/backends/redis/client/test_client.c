/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands to real Redis servers: a standalone server over each transport, and a cluster that
 * moves slots. tests/fault/test_fault_redis.c tests server failures.
 */
#include "base/heap.h"
#include "tests/lib/certs.h"
#include "tests/lib/redis_client_rig.h"

/* ---- one server ------------------------------------------------------------------------------ */

static void test_standalone_when_opened_then_it_has_all_slots(void **state)
{
    struct hps_redis_node_stats nodes[4];
    struct hps_redis_stats stats;
    (void)state;

    server_start(NULL);
    client_connect_patiently();
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.kind, HPS_REDIS_STANDALONE);
    assert_int_equal(stats.n_slots, HPS_REDIS_SLOTS);
    assert_int_equal(hps_redis_cluster_nodes(cluster, nodes, 4), 1);
    assert_string_equal(nodes[0].address, hps_redis_rig_address(rig, 0));
    assert_int_equal(nodes[0].role, HPS_REDIS_MASTER);
    assert_true(nodes[0].up);
    assert_string_equal(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK");
    assert_string_equal(redis_text(cluster, "b", "GET", "b", NULL), "(nil)");
    assert_string_equal(hps_redis_rig_ask(rig, 0, "GET a"), "1");
    hps_redis_cluster_nodes(cluster, nodes, 4);
    assert_int_equal(nodes[0].n_commands, 2);
    assert_true(nodes[0].n_bytes_sent > 0 && nodes[0].n_bytes_received > 0);
    assert_true(nodes[0].latency_us > 0);
}

static void test_commands_when_some_fail_then_each_has_its_own_reply(void **state)
{
    struct redis_calls calls;
    (void)state;

    server_start(NULL);
    client_connect_patiently();
    redis_calls_init(&calls);
    redis_calls_add(&calls, "s", "SET", "s", "text", NULL);
    redis_calls_add(&calls, "s", "HGET", "s", "field", NULL);
    redis_calls_add(&calls, "s", "EVALSHA", "0000000000000000000000000000000000000000", "0", NULL);
    redis_calls_add(&calls, "s", "GET", "s", NULL);
    redis_calls_add(&calls, "s", "EVAL", "return redis.error_reply('ODD \\27[31m')", "0", NULL);
    assert_int_equal(redis_calls_run(&calls, cluster, 0), HPS_INVALID);
    assert_non_null(strstr(calls.commands[1].reply.error, "WRONGTYPE"));
    assert_int_equal(calls.commands[0].reply.status, HPS_OK);
    assert_int_equal(calls.commands[1].reply.status, HPS_INVALID);
    assert_int_equal(calls.commands[2].reply.status, HPS_NOT_FOUND);
    assert_non_null(strstr(calls.commands[2].reply.error, "NOSCRIPT"));
    assert_int_equal(calls.commands[3].reply.status, HPS_OK);
    assert_string_equal(hps_redis_values_text(&calls.values[3], 0), "text");
    struct hps_redis_node_stats node;
    assert_int_equal(hps_redis_cluster_nodes(cluster, &node, 1), 1);
    assert_int_equal(node.n_errors, 2);
    assert_string_equal(node.error, "ODD \\u001b[31m"); /* the last error, escaped for printing */
    redis_calls_fini(&calls);
}

/* Both directions exceed the socket buffers: a client that writes everything before it reads
 * would hang. */
static void test_commands_when_larger_than_socket_buffers_then_writes_and_reads_overlap(
    void **state)
{
    enum { SIZE = 300000, N = 40 };
    char *value = hps_alloc(SIZE + 1);
    struct redis_calls calls;
    (void)state;

    server_start(NULL);
    client_connect_patiently();
    memset(value, 'v', SIZE);
    value[SIZE] = '\0';
    redis_calls_init(&calls);
    for (unsigned i = 0; i < N; i++) {
        redis_calls_add(&calls, "k", "ECHO", value, NULL);
    }
    assert_int_equal(redis_calls_run(&calls, cluster, redis_soon_us()), HPS_OK);
    for (unsigned i = 0; i < N; i++) {
        assert_string_equal(hps_redis_values_text(&calls.values[i], 0), value);
    }
    redis_calls_fini(&calls);
    hps_free(value);
}

static void test_unix_socket_when_named_then_it_is_used(void **state)
{
    const char *const args[] = {"--unixsocket", "sock", NULL}; /* in its directory */
    char address[600];
    (void)state;

    server_start(args);
    snprintf(address, sizeof(address), "unix:%s/sock", hps_redis_rig_dir(rig, 0));
    cluster = redis_open(address);
    assert_string_equal(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK");
}

static void test_user_when_its_password_is_right_then_it_has_its_permissions(void **state)
{
    (void)state;
    server_start(NULL);
    hps_redis_rig_ask(rig, 0, "ACL SETUSER app on >secret ~mine* +@all -@admin");
    options.user = "app";
    options.password = "secret";
    client_connect();
    assert_string_equal(redis_text(cluster, "mine", "SET", "mine", "1", NULL), "OK");
    assert_non_null(strstr(redis_text(cluster, "his", "GET", "his", NULL), "-NOPERM"));
}

/* The user may run the needed commands, but not CLUSTER SLOTS. */
static const char few[] = "ACL SETUSER few on >secret ~* -@all +get +set";

static void test_user_when_cluster_slots_is_denied_then_a_standalone_server_works(void **state)
{
    (void)state;
    server_start(NULL);
    hps_redis_rig_ask(rig, 0, few);
    options.user = "few";
    options.password = "secret";
    client_connect();
    struct hps_redis_stats stats;
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.kind, HPS_REDIS_STANDALONE);
    assert_string_equal(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK");
}

/* Wait until the node has this state and error. */
static void await_node(const char *address, bool up, const char *error)
{
    struct hps_redis_node_stats nodes[8];
    uint64_t until_us = redis_soon_us();
    for (;;) {
        uint32_t n = hps_redis_cluster_nodes(cluster, nodes, 8);
        for (uint32_t i = 0; i < n; i++) {
            if (strcmp(nodes[i].address, address) == 0 && nodes[i].up == up &&
                strstr(nodes[i].error, error)) {
                return;
            }
        }
        if (hps_clock_us() > until_us) {
            fail_msg("node %s is not %s: %s", address, up ? "up" : "down", error);
        }
    }
}

static void test_user_when_its_password_is_wrong_then_unavailable_naming_the_cause(void **state)
{
    (void)state;
    server_start(NULL);
    hps_redis_rig_ask(rig, 0, "ACL SETUSER app on >secret ~* +@all");
    options.user = "app";
    options.password = "guess";
    client_open();
    redis_await_status(cluster, "a", HPS_UNAVAILABLE);
    await_node(hps_redis_rig_address(rig, 0), false, "WRONGPASS");
}

static void test_connection_when_the_server_has_too_many_clients_then_the_error_says_so(
    void **state)
{
    (void)state;
    server_start(NULL);
    struct hps_redis_cluster *first = redis_open(hps_redis_rig_addresses(rig));
    assert_string_equal(hps_redis_rig_ask(rig, 0, "CONFIG SET maxclients 1"), "OK");
    client_open();
    await_node(hps_redis_rig_address(rig, 0), false, "max number of clients");
    hps_redis_cluster_close(first);
}

/* Both addresses belong to one server. Commands go to the address that replies first. */
static void test_entries_when_their_server_restarts_then_all_are_up_again(void **state)
{
    struct hps_redis_node_stats nodes[2] = {0};
    struct redis_calls calls;
    uint64_t until_us = redis_soon_us();
    char addresses[128];
    char why[HPS_REDIS_ERROR_MAX] = "";
    (void)state;

    server_start(NULL);
    snprintf(addresses, sizeof(addresses), "localhost:%u,127.0.0.1:%u", hps_redis_rig_port(rig, 0),
             hps_redis_rig_port(rig, 0));
    options.addresses = addresses;
    hps_redis_rig_kill(rig, 0);
    client_open();
    while (nodes[0].n_broken < options.failures_max || nodes[1].n_broken < options.failures_max) {
        assert_int_equal(hps_redis_cluster_nodes(cluster, nodes, 2), 2);
        assert_true(hps_clock_us() < until_us);
    }
    redis_calls_init(&calls);
    redis_calls_add(&calls, "a", "GET", "a", NULL);
    do { /* the client retries; on a busy machine a call may time out instead */
        assert_int_equal(redis_calls_run(&calls, cluster, 0), HPS_UNAVAILABLE);
        assert_true(hps_clock_us() < until_us);
    } while (!strstr(calls.commands[0].reply.error, "refused"));
    redis_calls_fini(&calls);
    while (!strstr(why, "refused")) {
        hps_redis_cluster_why(cluster, why, sizeof(why));
        assert_true(hps_clock_us() < until_us);
    }

    hps_redis_rig_start(rig, 0);
    assert_true(hps_redis_cluster_wait(cluster, redis_soon_us()));
    await_node(nodes[0].address, true, "");
    await_node(nodes[1].address, true, "");
    hps_redis_cluster_why(cluster, why, sizeof(why));
    assert_string_equal(why, "");
}

static void test_tls_when_the_port_is_plain_then_the_error_says_so(void **state)
{
    (void)state;
    server_start(NULL);
    options.tls = true;
    client_open();
    await_node(hps_redis_rig_address(rig, 0), false, "TLS");
}

static void test_tls_when_both_sides_show_certificates_then_connected(void **state)
{
    struct hps_certs certs;
    char port[8];
    char address[32];
    (void)state;

    hps_certs_make(&certs);
    snprintf(port, sizeof(port), "%u", hps_redis_rig_free_port());
    snprintf(address, sizeof(address), "127.0.0.1:%s", port);
    const char *const args[] = {"--tls-port",
                                port,
                                "--tls-cert-file",
                                certs.server_cert,
                                "--tls-key-file",
                                certs.server_key,
                                "--tls-ca-cert-file",
                                certs.ca,
                                "--tls-auth-clients",
                                "yes",
                                NULL};
    server_start(args);
    options.addresses = address;
    options.tls = true;
    options.ca_file = certs.ca;
    options.cert_file = certs.client_cert;
    options.key_file = certs.client_key;
    options.server_name = "localhost";
    client_connect();
    assert_string_equal(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK");
    assert_string_equal(redis_text(cluster, "a", "GET", "a", NULL), "1");
    client_close();

    options.server_name = "someone.else"; /* not a name in the certificate */
    client_open();
    redis_await_status(cluster, "a", HPS_UNAVAILABLE);
    await_node(address, false, "certificate");
    client_close();

    options.server_name = "localhost";
    options.cert_file = options.key_file = NULL; /* the server requires a client certificate */
    client_open();
    await_node(address, false, "certificate");
    redis_await_status(cluster, "a", HPS_UNAVAILABLE);
    client_close();
    hps_certs_remove(&certs);
}

static void test_memory_when_it_is_full_then_exhausted(void **state)
{
    const char *const args[] = {"--maxmemory", "100kb", "--maxmemory-policy", "noeviction", NULL};
    (void)state;

    server_start(args);
    client_connect_patiently();
    assert_non_null(strstr(redis_text(cluster, "a", "SET", "a", "1", NULL), "-OOM"));
    assert_int_equal(redis_status(cluster, "a", "SET", "a", "1", NULL), HPS_EXHAUSTED);
    assert_int_equal(redis_status(cluster, "a", "GET", "a", NULL),
                     HPS_OK); /* the client still sends commands to the server */
}

static void test_options_when_wrong_then_invalid_naming_them(void **state)
{
    struct hps_error err;
    (void)state;

    static const char *const addresses[] = {
        "", " , ;", "host:99999", "host:7000,:x:", "host:0", "http://host:1", "::1"};
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        options.addresses = addresses[i];
        assert_int_equal(hps_redis_cluster_open(&options, &cluster, &err), HPS_INVALID);
        assert_true(err.text[0] != '\0');
        assert_int_equal(hps_redis_addresses_check(addresses[i], &err), HPS_INVALID);
    }
    assert_int_equal(hps_redis_addresses_check("host;[::1]:7000, unix:/run/r.sock", &err), HPS_OK);
    options = HPS_REDIS_OPTIONS_DEFAULT;
    options.user = "app";
    assert_int_equal(hps_redis_cluster_open(&options, &cluster, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "app"));
    options = HPS_REDIS_OPTIONS_DEFAULT;
    options.tls = true;
    options.ca_file = "/nowhere/ca.pem";
    assert_int_not_equal(hps_redis_cluster_open(&options, &cluster, &err), HPS_OK);
    assert_non_null(strstr(err.text, "/nowhere/ca.pem"));
}

/* ---- a cluster ------------------------------------------------------------------------------- */

static void test_cluster_when_one_address_is_given_then_all_nodes_are_found(void **state)
{
    struct hps_redis_node_stats nodes[8];
    uint16_t slots[8];
    uint32_t n = 0;
    uint32_t n_replicas = 0;
    struct hps_redis_stats stats;
    (void)state;

    cluster = redis_open(hps_redis_rig_address(shared, 4));
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.kind, HPS_REDIS_CLUSTERED);
    assert_int_equal(hps_redis_cluster_nodes(cluster, nodes, 8), 6);
    for (unsigned i = 0; i < 6; i++) {
        n += nodes[i].n_slots;
        n_replicas += nodes[i].role == HPS_REDIS_REPLICA;
    }
    assert_int_equal(n, HPS_REDIS_SLOTS);
    assert_int_equal(n_replicas, 3);
    hps_redis_cluster_masters(cluster, slots, 8, &n);
    assert_int_equal(n, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(redis_master_of(slots[i]), i);
    }
}

static void test_user_when_a_cluster_denies_cluster_slots_then_the_error_says_so(void **state)
{
    struct hps_redis_stats stats;
    char why[HPS_REDIS_ERROR_MAX];
    (void)state;

    for (uint32_t i = 0; i < 6; i++) {
        hps_redis_rig_ask(shared, i, few);
    }
    options.user = "few";
    options.password = "secret";
    client_open();
    redis_await_status(cluster, "a", HPS_UNAVAILABLE);
    assert_non_null(strstr(redis_text(cluster, "a", "GET", "a", NULL), "cluster|slots"));
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.kind, HPS_REDIS_UNKNOWN);
    assert_int_equal(stats.n_slots_up, 0);
    assert_non_null(strstr(stats.error, "cluster|slots"));
    hps_redis_cluster_why(cluster, why, sizeof(why));
    assert_non_null(strstr(why, "cluster|slots")); /* the node in the text may change */
    for (uint32_t i = 0; i < 6; i++) {
        hps_redis_rig_ask(shared, i, "ACL SETUSER few +cluster|slots");
    }
    assert_true(hps_redis_cluster_wait(cluster, redis_soon_us()));
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.kind, HPS_REDIS_CLUSTERED);
    assert_string_equal(stats.error, "");
    redis_await_status(cluster, "a", HPS_OK);
    client_close();
    for (uint32_t i = 0; i < 6; i++) {
        hps_redis_rig_ask(shared, i, "ACL DELUSER few");
    }
}

/* The client identifies nodes by address, so the two host names are extra entries. */
static void test_cluster_when_entries_are_names_then_they_are_not_down(void **state)
{
    struct hps_redis_node_stats nodes[9];
    char addresses[64];
    (void)state;

    snprintf(addresses, sizeof(addresses), "localhost:%u,localhost:%u",
             hps_redis_rig_port(shared, 0), hps_redis_rig_port(shared, 1));
    cluster = redis_open(addresses);
    assert_int_equal(hps_redis_cluster_nodes(cluster, nodes, 9), 8);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(nodes[i].role == HPS_REDIS_ENTRY, i < 2);
        assert_true(nodes[i].up);
    }
}

static void test_cluster_when_commands_are_of_many_slots_then_each_goes_to_its_node(void **state)
{
    struct hps_redis_stats stats;
    struct redis_calls calls;
    char key[16];
    (void)state;

    client_connect_patiently();
    redis_calls_init(&calls);
    for (unsigned i = 0; i < 60; i++) {
        snprintf(key, sizeof(key), "key%u", i);
        redis_calls_add(&calls, key, "SET", key, key, NULL);
        redis_calls_add(&calls, key, "GET", key, NULL);
    }
    assert_int_equal(redis_calls_run(&calls, cluster, redis_soon_us()), HPS_OK);
    for (unsigned i = 0; i < 60; i++) {
        snprintf(key, sizeof(key), "key%u", i);
        assert_string_equal(hps_redis_values_text(&calls.values[2 * i + 1], 0), key);
        uint16_t slot = hps_redis_slot(key, strlen(key));
        char text[8];
        snprintf(text, sizeof(text), "%u", slot);
        assert_string_equal(hps_redis_rig_ask(shared, 0, "CLUSTER KEYSLOT %s", key), text);
        assert_string_equal(hps_redis_rig_ask(shared, redis_master_of(slot), "GET %s", key), key);
    }
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.n_moved, 0);
    redis_calls_fini(&calls);
}

/* A key in the slots of that master. */
static const char *key_at(uint32_t master, const char *prefix)
{
    static char key[64];
    return redis_key_at(master, prefix, key);
}

static void test_slot_when_it_moves_then_ask_and_moved_are_followed(void **state)
{
    struct hps_redis_stats stats;
    char key[64];
    char sibling[80];
    (void)state;

    client_connect_patiently();
    snprintf(key, sizeof(key), "%s", key_at(0, "moving"));
    snprintf(sibling, sizeof(sibling), "{%s}sibling", key);
    uint16_t slot = hps_redis_slot(key, strlen(key));
    assert_string_equal(redis_text(cluster, key, "SET", key, "here", NULL), "OK");
    hps_redis_rig_migrate_begin(shared, slot, 0, 1);
    /* The old master replies for keys that it still has. Other keys are read and written on the
     * new master. */
    assert_string_equal(redis_text(cluster, key, "GET", key, NULL), "here");
    assert_string_equal(redis_text(cluster, key, "SET", sibling, "there", NULL), "OK");
    assert_string_equal(redis_text(cluster, key, "GET", sibling, NULL), "there");
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.n_ask, 2);
    assert_int_equal(stats.n_moved, 0);
    /* One key is on each master: both reply TRYAGAIN until one master has both keys. */
    struct redis_calls calls;
    redis_calls_init(&calls);
    redis_calls_add(&calls, key, "MGET", key, sibling, NULL);
    uint64_t until_us = redis_soon_us();
    do { /* on a busy machine no master may have replied in time */
        assert_int_equal(redis_calls_run(&calls, cluster, hps_clock_us() + 100 * 1000),
                         HPS_DEADLINE);
        assert_true(hps_clock_us() < until_us);
        hps_redis_cluster_stats(cluster, &stats);
    } while (stats.n_tryagain == 0);
    assert_int_equal(hps_redis_rig_migrate_keys(shared, slot, 0, 1, 100), 1);
    assert_int_equal(redis_calls_run(&calls, cluster, redis_soon_us()), HPS_OK);
    hps_redis_rig_migrate_end(shared, slot, 0, 1);
    assert_int_equal(redis_calls_run(&calls, cluster, redis_soon_us()), HPS_OK);
    assert_string_equal(hps_redis_values_text(&calls.values[0], 1), "here");
    assert_string_equal(hps_redis_values_text(&calls.values[0], 2), "there");
    hps_redis_cluster_stats(cluster, &stats);
    assert_int_equal(stats.n_moved, 1);
    redis_calls_fini(&calls);
    /* Move the slot back for the next test. */
    hps_redis_rig_ask(shared, 1, "DEL %s %s", key, sibling);
    hps_redis_rig_migrate_begin(shared, slot, 1, 0);
    hps_redis_rig_migrate_end(shared, slot, 1, 0);
    assert_string_equal(redis_text(cluster, key, "GET", key, NULL), "(nil)");
}

static void test_replicas_when_reads_are_allowed_then_they_serve_reads_but_no_writes(void **state)
{
    struct hps_redis_node_stats nodes[8];
    const char *key = key_at(2, "read");
    (void)state;

    options.replica_reads = true;
    client_connect();
    assert_string_equal(redis_text(cluster, key, "SET", key, "1", NULL), "OK");
    /* WAIT covers only the writes of its own connection. */
    assert_string_equal(hps_redis_rig_ask(shared, 2, "SET {%s}waited 1", key), "OK");
    assert_string_equal(hps_redis_rig_ask(shared, 2, "WAIT 1 60000"), "1");
    struct redis_calls calls;
    redis_calls_init(&calls);
    redis_calls_add(&calls, key, "GET", key, NULL);
    calls.commands[0].flags = HPS_REDIS_READ;
    assert_int_equal(redis_calls_run(&calls, cluster, redis_soon_us()), HPS_OK);
    assert_string_equal(hps_redis_values_text(&calls.values[0], 0), "1");
    redis_calls_fini(&calls);
    assert_int_equal(hps_redis_cluster_nodes(cluster, nodes, 8), 6);
    for (unsigned i = 0; i < 6; i++) {
        bool master = strcmp(nodes[i].address, hps_redis_rig_address(shared, 2)) == 0;
        bool replica = strcmp(nodes[i].address, hps_redis_rig_address(shared, 5)) == 0;
        assert_int_equal(nodes[i].n_commands, master || replica ? 1 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLIENT_TEST(test_standalone_when_opened_then_it_has_all_slots),
        CLIENT_TEST(test_commands_when_some_fail_then_each_has_its_own_reply),
        CLIENT_TEST(test_commands_when_larger_than_socket_buffers_then_writes_and_reads_overlap),
        CLIENT_TEST(test_unix_socket_when_named_then_it_is_used),
        CLIENT_TEST(test_user_when_its_password_is_right_then_it_has_its_permissions),
        CLIENT_TEST(test_user_when_cluster_slots_is_denied_then_a_standalone_server_works),
        CLIENT_TEST(test_user_when_its_password_is_wrong_then_unavailable_naming_the_cause),
        CLIENT_TEST(test_connection_when_the_server_has_too_many_clients_then_the_error_says_so),
        CLIENT_TEST(test_entries_when_their_server_restarts_then_all_are_up_again),
        CLIENT_TEST(test_tls_when_the_port_is_plain_then_the_error_says_so),
        CLIENT_TEST(test_tls_when_both_sides_show_certificates_then_connected),
        CLIENT_TEST(test_memory_when_it_is_full_then_exhausted),
        CLIENT_TEST(test_options_when_wrong_then_invalid_naming_them),
    };
    const struct CMUnitTest cluster_tests[] = {
        CLIENT_TEST(test_cluster_when_one_address_is_given_then_all_nodes_are_found),
        CLIENT_TEST(test_user_when_a_cluster_denies_cluster_slots_then_the_error_says_so),
        CLIENT_TEST(test_cluster_when_entries_are_names_then_they_are_not_down),
        CLIENT_TEST(test_cluster_when_commands_are_of_many_slots_then_each_goes_to_its_node),
        CLIENT_TEST(test_slot_when_it_moves_then_ask_and_moved_are_followed),
        CLIENT_TEST(test_replicas_when_reads_are_allowed_then_they_serve_reads_but_no_writes),
    };
    if (!hps_redis_rig_present()) {
        return HPS_REDIS_RIG_SKIP;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed + cmocka_run_group_tests(cluster_tests, shared_start_with_replicas, shared_stop);
}
