/* SPDX-License-Identifier: Apache-2.0
 *
 * A slow, silent or changing node of a Redis cluster must not affect other nodes, or calls,
 * connections and lookups that do not need it.
 */
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/redis/client/internal.h"
#include "base/heap.h"
#include "tests/lib/fake_redis.h"
#include "tests/lib/names.h"
#include "tests/lib/pause.h"
#include "tests/lib/redis_client_rig.h"

enum { TRIES = 10 }; /* of a second each, for a busy machine */

/* ---- slow nodes ------------------------------------------------------------------------------ */

struct call {
    struct redis_calls calls;
    pthread_t thread;
    hps_status status;
};

static struct call *call_new(void)
{
    struct call *call = hps_calloc(1, sizeof(*call));
    assert_non_null(call);
    return call;
}

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

static void call_end(struct call *call, hps_status status)
{
    pthread_join(call->thread, NULL);
    assert_int_equal(call->status, status);
    redis_calls_fini(&call->calls);
    hps_free(call);
}

/* Waits on its node until a value is pushed. */
static void add_slow(struct call *call, const char *key)
{
    redis_calls_add(&call->calls, key, "BLPOP", key, "0", NULL);
}

static void connect_with_one_connection_each(void)
{
    options.connections_per_node = 1;
    options.command_timeout_us = UINT64_C(1000) * 1000;
    client_connect();
}

static void test_connection_when_another_node_is_slow_then_it_is_released_early(void **state)
{
    char slow[64];
    char key[64];
    (void)state;

    connect_with_one_connection_each();
    struct call *call = call_new();
    add_slow(call, redis_key_at(0, "slow", slow));
    redis_calls_add(&call->calls, redis_key_at(1, "quick", key), "GET", key, NULL);
    call_start(call);
    hps_redis_rig_await(shared, 0, "blocked_clients:1", "INFO clients");
    for (unsigned i = 0; redis_status(cluster, key, "GET", key, NULL) != HPS_OK; i++) {
        assert_true(i < TRIES); /* on the only connection */
    }
    hps_redis_rig_ask(shared, 0, "RPUSH %s 1", slow);
    call_end(call, HPS_OK);
}

static void test_commands_when_another_node_is_slow_then_they_do_not_wait_for_it(void **state)
{
    char slow[64];
    char key[64];
    char first[64];
    (void)state;

    connect_with_one_connection_each();
    struct call *busy = call_new();
    struct call *call = call_new();
    add_slow(busy, redis_key_at(1, "busy", first));
    call_start(busy);
    hps_redis_rig_await(shared, 1, "blocked_clients:1", "INFO clients");
    add_slow(call, redis_key_at(0, "slow", slow));
    redis_calls_add(&call->calls, redis_key_at(1, "count", key), "INCR", key, NULL);
    call_start(call);
    hps_redis_rig_await(shared, 0, "blocked_clients:1", "INFO clients");
    hps_redis_rig_ask(shared, 1, "RPUSH %s 1", first);
    call_end(busy, HPS_OK);
    char get[80];
    snprintf(get, sizeof(get), "GET %s", key);
    hps_redis_rig_await(shared, 1, "1", get); /* while the other node is busy */
    assert_non_null(strstr(hps_redis_rig_ask(shared, 0, "INFO clients"), "blocked_clients:1"));
    hps_redis_rig_ask(shared, 0, "RPUSH %s 1", slow);
    call_end(call, HPS_OK);
}

static void test_slot_when_it_moves_while_another_node_is_slow_then_it_is_followed(void **state)
{
    char slow[64];
    char key[64];
    char other[80];
    (void)state;

    connect_with_one_connection_each();
    struct call *call = call_new();
    redis_key_at(1, "moves", key);
    uint16_t slot = hps_redis_slot(key, strlen(key));
    hps_redis_rig_migrate_begin(shared, slot, 1, 0);
    /* One of the two keys exists: the client retries until both exist. */
    snprintf(other, sizeof(other), "{%s}other", key);
    hps_redis_rig_ask(shared, 1, "SET %s 1", key);
    add_slow(call, redis_key_at(2, "slow", slow));
    redis_calls_add(&call->calls, key, "MSET", key, "2", other, "2", NULL);
    call_start(call);
    hps_redis_rig_await(shared, 2, "blocked_clients:1", "INFO clients");
    struct hps_redis_stats stats = {0};
    uint64_t until_us = redis_soon_us();
    while (stats.n_tryagain < 20) { /* retried while the other node is busy */
        hps_redis_cluster_stats(cluster, &stats);
        assert_true(hps_clock_us() < until_us);
    }
    hps_redis_rig_migrate_keys(shared, slot, 1, 0, 10);
    hps_redis_rig_migrate_end(shared, slot, 1, 0);
    snprintf(other, sizeof(other), "GET {%s}other", key);
    hps_redis_rig_await(shared, 0, "2", other);
    assert_non_null(strstr(hps_redis_rig_ask(shared, 2, "INFO clients"), "blocked_clients:1"));
    hps_redis_rig_ask(shared, 2, "RPUSH %s 1", slow);
    call_end(call, HPS_OK);
}

/* ---- unreachable nodes ----------------------------------------------------------------------- */

/* Node 0 accepts connections but does not reply; node 1 closes its connection after each reply. */
static enum hps_fake_redis_then silent_and_short(void *ctx, uint32_t node, const char *command,
                                                 char *out_answer)
{
    struct hps_fake_redis **fake = ctx;
    if (node == 0) {
        return HPS_FAKE_REDIS_GO_ON;
    }
    if (strcmp(command, "CLUSTER SLOTS") == 0) {
        hps_fake_redis_map(*fake, 2, out_answer);
        return HPS_FAKE_REDIS_GO_ON;
    }
    hps_fake_redis_usual(command, out_answer);
    return strncmp(command, "GET", 3) == 0 ? HPS_FAKE_REDIS_HANG_UP : HPS_FAKE_REDIS_GO_ON;
}

static void test_node_when_it_is_unreachable_then_other_nodes_get_connections(void **state)
{
    enum { CALLERS = 80 };
    struct hps_fake_redis *fake = NULL;
    static struct call *calls[CALLERS];
    char silent[64];
    char key[64];
    (void)state;

    fake = hps_fake_redis_new(2, silent_and_short, &fake);
    options.addresses = hps_fake_redis_address(fake, 1);
    options.connections_per_node = CALLERS;
    options.failures_max = 1000000;
    options.connect_timeout_us = REDIS_PATIENCE_US;
    options.command_timeout_us = UINT64_C(1000) * 1000;
    client_open();
    redis_key_at(0, "a", silent);
    redis_await_status(cluster, redis_key_at(2, "b", key), HPS_OK);
    for (unsigned i = 0; i < CALLERS; i++) {
        calls[i] = call_new();
        redis_calls_add(&calls[i]->calls, silent, "GET", silent, NULL);
        call_start(calls[i]);
    }
    uint32_t n_failed = 0;
    for (unsigned i = 0; i < 50; i++) { /* each on a new connection */
        n_failed += redis_status(cluster, key, "GET", key, NULL) != HPS_OK;
        assert_true(n_failed < TRIES);
    }
    hps_fake_redis_free(fake);
    for (unsigned i = 0; i < CALLERS; i++) {
        call_end(calls[i], HPS_UNAVAILABLE);
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The only node closes its connection after each GET, so that each GET needs a new one. */
static enum hps_fake_redis_then short_lived(void *ctx, uint32_t node, const char *command,
                                            char *out_answer)
{
    struct hps_fake_redis **fake = ctx;
    (void)node;
    if (strcmp(command, "CLUSTER SLOTS") == 0) {
        hps_fake_redis_map(*fake, 1, out_answer);
        return HPS_FAKE_REDIS_GO_ON;
    }
    hps_fake_redis_usual(command, out_answer);
    return strncmp(command, "GET", 3) == 0 ? HPS_FAKE_REDIS_HANG_UP : HPS_FAKE_REDIS_GO_ON;
}

static bool is_reported(const char *address, const char *why)
{
    struct hps_redis_node_stats nodes[4];
    uint32_t n = hps_redis_cluster_nodes(cluster, nodes, 4);
    for (uint32_t i = 0; i < n && i < 4; i++) {
        if (strcmp(nodes[i].address, address) == 0) {
            return strstr(nodes[i].error, why) != NULL;
        }
    }
    return false;
}

static void test_name_when_its_lookup_hangs_then_other_calls_and_close_do_not_wait(void **state)
{
    struct hps_fake_redis *fake = NULL;
    char addresses[128];
    (void)state;

    fake = hps_fake_redis_new(1, short_lived, &fake);
    snprintf(addresses, sizeof(addresses), "redis.hung:7000;%s", hps_fake_redis_address(fake, 0));
    options.addresses = addresses;
    options.command_timeout_us = UINT64_C(1000) * 1000;
    options.connect_timeout_us = UINT64_C(100) * 1000;
    options.pause_us_max = options.pause_us_first;
    client_open();
    redis_await_status(cluster, "a", HPS_OK);
    uint64_t end_us = redis_soon_us();
    while (!is_reported("redis.hung:7000", "name lookup timed out")) {
        assert_true(hps_clock_us() < end_us);
        brief_pause();
    }
    uint32_t n_failed = 0;
    for (unsigned i = 0; i < 50; i++) {
        n_failed += redis_status(cluster, "a", "GET", "a", NULL) != HPS_OK;
        assert_true(n_failed < TRIES);
    }
    client_close();
    assert_int_equal(atomic_load(&names_waiting), 1); /* for all tries together */
    sem_post(&names_go);
    while (atomic_load(&names_waiting) > 0) {
        brief_pause();
    }
    hps_fake_redis_free(fake);
}

/* A standalone server that has a host name. */
struct named {
    struct hps_fake_redis *fake;
    pthread_t callers[12];
    atomic_bool stop;
    atomic_uint n_failed;
};

static void *named_call(void *ctx)
{
    struct named *named = ctx;
    struct redis_calls *calls = hps_calloc(1, sizeof(*calls));
    while (!atomic_load(&named->stop)) {
        redis_calls_add(calls, "a", "GET", "a", NULL);
        hps_status status = redis_calls_run(calls, cluster, 0);
        atomic_fetch_add(&named->n_failed, status != HPS_OK);
        redis_calls_fini(calls);
        redis_calls_init(calls);
    }
    hps_free(calls);
    return NULL;
}

static void named_connect(struct named *named, uint64_t connect_timeout_us)
{
    char address[64];
    snprintf(address, sizeof(address), "localhost:%u", hps_fake_redis_port(named->fake, 0));
    options.addresses = address;
    options.connections_per_node = 8;
    options.failures_max = 1;
    options.connect_timeout_us = connect_timeout_us;
    options.command_timeout_us = REDIS_PATIENCE_US;
    options.name_kept_us = 0;
    client_connect();
}

static void named_open(struct named *named, uint64_t connect_timeout_us)
{
    memset(named, 0, sizeof(*named));
    named->fake = hps_fake_redis_new(1, hps_fake_redis_alone, NULL);
    named_connect(named, connect_timeout_us);
}

/* More callers than connections, so that more connections are always needed. */
static void named_begin(struct named *named)
{
    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(pthread_create(&named->callers[i], NULL, named_call, named), 0);
    }
}

static struct hps_redis_node_stats named_node(struct named *named)
{
    struct hps_redis_node_stats node;
    assert_int_equal(hps_redis_cluster_nodes(cluster, &node, 1), 1);
    assert_true(node.up);
    assert_true(node.n_connections > 0);
    assert_int_equal(atomic_load(&named->n_failed), 0);
    return node;
}

static void named_await_connections(struct named *named, uint32_t n)
{
    uint64_t end_us = redis_soon_us();
    while (named_node(named).n_connections < n) {
        assert_true(hps_clock_us() < end_us);
        brief_pause();
    }
}

static void named_end(struct named *named)
{
    atomic_store(&named->stop, true);
    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(pthread_join(named->callers[i], NULL), 0);
    }
    client_close();
    hps_fake_redis_free(named->fake);
}

static void test_name_when_its_lookup_hangs_then_existing_connections_stay(void **state)
{
    struct named named;
    (void)state;

    named_open(&named, UINT64_C(1000) * 1000);
    assert_int_equal(redis_status(cluster, "a", "GET", "a", NULL), HPS_OK);
    uint32_t n = named_node(&named).n_connections;
    uint64_t n_broken = named_node(&named).n_broken;
    atomic_store(&names_hang, true);
    named_begin(&named);
    uint64_t end_us = redis_soon_us();
    while (named_node(&named).n_broken < n_broken + 2 || atomic_load(&names_waiting) == 0) {
        assert_true(hps_clock_us() < end_us);
        brief_pause();
    }
    assert_int_equal(atomic_load(&names_waiting), 1);
    assert_string_equal(named_node(&named).error, "name lookup timed out");
    atomic_store(&names_hang, false);
    sem_post(&names_go);
    named_await_connections(&named, n + 1); /* by the result of this lookup or the next one */
    named_end(&named);
}

static void test_name_when_its_first_address_refuses_then_no_connection_fails(void **state)
{
    struct named named;
    (void)state;

    atomic_store(&names_two, true);
    named_open(&named, REDIS_PATIENCE_US);
    named_begin(&named);
    named_await_connections(&named, 8);
    assert_int_equal(named_node(&named).n_broken, 0);
    named_end(&named);
    atomic_store(&names_two, false);
}

/* The first address accepts connections but does not reply. */
static void test_name_when_its_first_address_is_silent_then_the_next_one_is_used(void **state)
{
    struct named named;
    struct sockaddr_in silent = {.sin_family = AF_INET};
    (void)state;

    memset(&named, 0, sizeof(named));
    named.fake = hps_fake_redis_new(1, hps_fake_redis_alone, NULL);
    silent.sin_port = htons(hps_fake_redis_port(named.fake, 0));
    silent.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&silent, sizeof(silent)), 0);
    assert_int_equal(listen(fd, 16), 0);
    atomic_store(&names_two, true);
    named_connect(&named, UINT64_C(200) * 1000);
    assert_int_equal(redis_status(cluster, "a", "GET", "a", NULL), HPS_OK);
    client_close();
    hps_fake_redis_free(named.fake);
    close(fd);
    atomic_store(&names_two, false);
}

/* ---- malformed replies ----------------------------------------------------------------------- */

struct odd {
    struct hps_fake_redis *fake;
    _Atomic(const char *) answer; /* to GET; NULL: the usual reply */
    enum hps_fake_redis_then then;
};

static enum hps_fake_redis_then odd_answer(void *ctx, uint32_t node, const char *command,
                                           char *out_answer)
{
    struct odd *odd = ctx;
    const char *answer = atomic_load(&odd->answer);
    (void)node;
    if (strcmp(command, "CLUSTER SLOTS") == 0) {
        hps_fake_redis_map(odd->fake, 1, out_answer);
    } else if (strncmp(command, "GET", 3) == 0 && answer) {
        snprintf(out_answer, HPS_FAKE_REDIS_ANSWER_MAX, "%s", answer);
        return odd->then;
    } else {
        hps_fake_redis_usual(command, out_answer);
    }
    return HPS_FAKE_REDIS_GO_ON;
}

static void test_reply_when_it_is_malformed_then_an_error_and_the_next_one_is_right(void **state)
{
    static const struct {
        const char *answer;
        enum hps_fake_redis_then then;
        hps_status status;
    } cases[] = {
        {"$10\r\nhalf", HPS_FAKE_REDIS_HANG_UP, HPS_UNAVAILABLE},
        {"$10\r\nhalf", HPS_FAKE_REDIS_GO_ON, HPS_DEADLINE},
        {"", HPS_FAKE_REDIS_HANG_UP, HPS_UNAVAILABLE},
        {"HTTP/1.1 400 Bad Request\r\n", HPS_FAKE_REDIS_GO_ON, HPS_IO},
        {"$99999999999999999999\r\n", HPS_FAKE_REDIS_GO_ON, HPS_IO},
        {"*-5\r\n", HPS_FAKE_REDIS_GO_ON, HPS_IO},
        {"+1\r\n+2\r\n", HPS_FAKE_REDIS_GO_ON, HPS_OK}, /* a reply without a request */
        {"-MOVED 1\r\n", HPS_FAKE_REDIS_GO_ON, HPS_UNAVAILABLE},
        {"-ASK 1 nobody:99999\r\n", HPS_FAKE_REDIS_GO_ON, HPS_UNAVAILABLE},
    };
    struct odd odd = {0};
    (void)state;

    odd.fake = hps_fake_redis_new(1, odd_answer, &odd);
    options.addresses = hps_fake_redis_address(odd.fake, 0);
    options.failures_max = 1000000;
    options.command_timeout_us = UINT64_C(1000) * 1000;
    client_connect();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        odd.then = cases[i].then;
        atomic_store(&odd.answer, cases[i].answer);
        assert_int_equal(redis_status(cluster, "a", "GET", "a", NULL), cases[i].status);
        atomic_store(&odd.answer, NULL);
        assert_string_equal(redis_text(cluster, "a", "GET", "a", NULL), "OK");
    }
    client_close();
    hps_fake_redis_free(odd.fake);
}

/* ---- nodes that are added and removed -------------------------------------------------------- */

enum { COMING = 300 };

/* Take a map of one master and new replicas. */
static void take_map(const char *master, uint32_t number)
{
    static struct hps_redis_map map;
    struct hps_addr addr;
    char text[64];
    assert_int_equal(hps_addr_parse(master, &addr, NULL), HPS_OK);
    hps_lock_acquire(&cluster->lock);
    hps_redis_map_begin(&map, cluster);
    hps_redis_map_tell(&map, 0, HPS_REDIS_SLOTS - 1, true, &addr);
    for (uint32_t i = 0; i < COMING; i++) {
        uint32_t n = number * COMING + i;
        snprintf(text, sizeof(text), "127.1.%u.%u:1", n / 250, 1 + n % 250);
        assert_int_equal(hps_addr_parse(text, &addr, NULL), HPS_OK);
        hps_redis_map_tell(&map, 0, HPS_REDIS_SLOTS - 1, false, &addr);
    }
    hps_redis_map_commit(&map, HPS_REDIS_CLUSTERED);
    assert_true(cluster->n_nodes <= 4 * (COMING + 1));
    hps_lock_release(&cluster->lock);
}

static void test_nodes_when_they_are_replaced_then_removed_ones_are_forgotten(void **state)
{
    static struct hps_redis_node_stats nodes[HPS_REDIS_NODES_MAX];
    struct hps_redis_stats stats;
    (void)state;

    server_start(NULL);
    client_connect_patiently();
    for (uint32_t i = 0; i < 20; i++) {
        take_map(hps_redis_rig_address(rig, 0), i);
        assert_int_equal(hps_redis_cluster_nodes(cluster, nodes, HPS_REDIS_NODES_MAX), COMING + 1);
        hps_redis_cluster_stats(cluster, &stats);
        assert_int_equal(stats.n_nodes, COMING + 1);
        assert_string_equal(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK");
    }
}

struct caller {
    pthread_t thread;
    atomic_bool *stop;
    uint64_t n_done;
    uint64_t n_failed;
};

static void *call_on(void *ctx)
{
    struct caller *caller = ctx;
    struct call *call = call_new();
    for (unsigned i = 0; i < 8; i++) {
        redis_calls_add(&call->calls, "a", "SET", "a", "1", NULL);
    }
    while (!atomic_load(caller->stop)) {
        call_run(call);
        caller->n_done++;
        caller->n_failed += call->status != HPS_OK;
    }
    redis_calls_fini(&call->calls);
    hps_free(call);
    return NULL;
}

/* The master has a new name each time, so that calls are in flight to a removed node. */
static void test_master_when_it_is_removed_while_calls_are_in_flight_then_calls_complete(
    void **state)
{
    enum { CALLERS = 4, ROUNDS = 150 };
    struct caller callers[CALLERS];
    atomic_bool stop;
    (void)state;

    server_start(NULL);
    client_connect_patiently();
    atomic_init(&stop, false);
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.stop = &stop};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_on, &callers[i]), 0);
    }
    uint64_t n_failed = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        char master[64];
        snprintf(master, sizeof(master), "localhost:%u", hps_redis_rig_port(rig, 0));
        for (unsigned bit = 0; bit < 9; bit++) {
            master[bit] = (char)(master[bit] - (round >> bit & 1 ? 'a' - 'A' : 0));
        }
        take_map(master, round % 40);
        n_failed += strcmp(redis_text(cluster, "a", "SET", "a", "1", NULL), "OK") != 0;
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        n_failed += callers[i].n_failed;
    }
    assert_int_equal(n_failed, 0);
}

int main(void)
{
    const struct CMUnitTest fake_tests[] = {
        CLIENT_TEST(test_node_when_it_is_unreachable_then_other_nodes_get_connections),
        CLIENT_TEST(test_name_when_its_lookup_hangs_then_other_calls_and_close_do_not_wait),
        CLIENT_TEST(test_name_when_its_lookup_hangs_then_existing_connections_stay),
        CLIENT_TEST(test_name_when_its_first_address_refuses_then_no_connection_fails),
        CLIENT_TEST(test_name_when_its_first_address_is_silent_then_the_next_one_is_used),
        CLIENT_TEST(test_reply_when_it_is_malformed_then_an_error_and_the_next_one_is_right),
    };
    const struct CMUnitTest tests[] = {
        CLIENT_TEST(test_connection_when_another_node_is_slow_then_it_is_released_early),
        CLIENT_TEST(test_commands_when_another_node_is_slow_then_they_do_not_wait_for_it),
        CLIENT_TEST(test_slot_when_it_moves_while_another_node_is_slow_then_it_is_followed),
        CLIENT_TEST(test_nodes_when_they_are_replaced_then_removed_ones_are_forgotten),
        CLIENT_TEST(test_master_when_it_is_removed_while_calls_are_in_flight_then_calls_complete),
    };
    sem_init(&names_go, 0, 0);
    int failed = cmocka_run_group_tests(fake_tests, NULL, NULL);
    if (!hps_redis_rig_present()) {
        return failed ? failed : HPS_REDIS_RIG_SKIP;
    }
    return failed + cmocka_run_group_tests(tests, shared_start, shared_stop);
}
