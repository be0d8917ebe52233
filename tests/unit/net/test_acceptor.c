/* SPDX-License-Identifier: Apache-2.0
 *
 * Acceptor: limits, running out of descriptors, stopping, connections that end on other threads.
 */
#include "net/acceptor.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "net/sock.h"
#include "tests/lib/tmpdir.h"

#define N_MAX 64

struct rig {
    struct hps_loop *loop;
    struct hps_acceptor *acceptor;
    struct hps_metrics *metrics;
    struct hps_metric *refused;
    struct hps_addr addr;
    int listen_fd;
    struct hps_conn *conns[N_MAX];
    unsigned cookies[N_MAX];
    unsigned n;
    bool stop_on_accept;
    int clients[N_MAX];
    unsigned n_clients;
};

static void on_accept(void *ctx, struct hps_conn *conn, unsigned cookie)
{
    struct rig *rig = ctx;
    assert_true(rig->n < N_MAX);
    rig->conns[rig->n] = conn;
    rig->cookies[rig->n++] = cookie;
    if (rig->stop_on_accept) {
        hps_acceptor_stop(rig->acceptor);
    }
}

static void rig_add(struct rig *rig, const char *address, unsigned cookie)
{
    struct hps_addr addr;
    assert_int_equal(hps_addr_parse(address, &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0600, &rig->listen_fd, NULL), HPS_OK);
    assert_int_equal(hps_sock_local(rig->listen_fd, &rig->addr), HPS_OK);
    assert_int_equal(hps_acceptor_add(rig->acceptor, rig->listen_fd, NULL, cookie, true, NULL),
                     HPS_OK);
}

static void rig_open(struct rig *rig, unsigned max, unsigned per_peer_max)
{
    memset(rig, 0, sizeof(*rig));
    assert_int_equal(hps_loop_new(&rig->loop, NULL), HPS_OK);
    static const struct hps_metric_family_def refused = {"refused", "", HPS_METRIC_COUNTER, ""};
    struct hps_acceptor_options options = {
        .limits = {.max = max, .client_max = per_peer_max}, .on_accept = on_accept, .ctx = rig};
    rig->metrics = hps_metrics_new(&refused, 1, 0);
    assert_non_null(rig->metrics);
    rig->refused = hps_metric_get(rig->metrics, 0, NULL);
    for (unsigned i = 0; i < HPS_PLACES_REFUSALS; i++) {
        options.refused[i] = rig->refused;
    }
    assert_int_equal(hps_acceptor_new(rig->loop, &options, &rig->acceptor, NULL), HPS_OK);
}

/* A client; from another loopback address if `from` is given. */
static int rig_connect(struct rig *rig, const char *from)
{
    struct hps_places to;
    assert_int_equal(hps_addr_resolve(&rig->addr, false, &to, NULL), HPS_OK);
    int fd = socket(to.items[0].storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (from) {
        struct hps_addr addr;
        struct hps_places local;
        assert_int_equal(hps_addr_parse(from, &addr, NULL), HPS_OK);
        assert_int_equal(hps_addr_resolve(&addr, true, &local, NULL), HPS_OK);
        assert_int_equal(bind(fd, (struct sockaddr *)&local.items[0].storage, local.items[0].size),
                         0);
    }
    assert_int_equal(connect(fd, (struct sockaddr *)&to.items[0].storage, to.items[0].size), 0);
    rig->clients[rig->n_clients++] = fd;
    return fd;
}

static void turn_until(struct rig *rig, unsigned n_accepted, uint64_t n_refused)
{
    while (rig->n < n_accepted || hps_metric_value(rig->refused) < (double)n_refused) {
        hps_loop_turn(rig->loop, 1000000);
    }
    assert_int_equal(rig->n, n_accepted);
    assert_true(hps_metric_value(rig->refused) == (double)n_refused);
}

static void end(struct rig *rig, unsigned i)
{
    hps_conn_free(rig->conns[i]);
    rig->conns[i] = NULL;
}

static void rig_close(struct rig *rig)
{
    hps_acceptor_free(rig->acceptor);
    for (unsigned i = 0; i < rig->n; i++) { /* they outlive the acceptor */
        if (rig->conns[i]) {
            end(rig, i);
        }
    }
    for (unsigned i = 0; i < rig->n_clients; i++) {
        close(rig->clients[i]);
    }
    hps_loop_free(rig->loop);
    hps_metrics_free(rig->metrics);
}

/* Has the server closed this client? Waits for it. */
static void assert_closed(int fd)
{
    char byte;
    assert_true(recv(fd, &byte, 1, 0) <= 0);
}

static void test_accept_when_two_listeners_then_cookie_tells_which(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 0, 0);
    rig_add(&rig, "127.0.0.1:0", 7);
    rig_connect(&rig, NULL);
    turn_until(&rig, 1, 0);
    rig_add(&rig, "0.0.0.0:0", 8);
    rig_connect(&rig, NULL);
    turn_until(&rig, 2, 0);
    assert_int_equal(rig.cookies[0], 7);
    assert_int_equal(rig.cookies[1], 8);
    assert_true(hps_conn_is_loopback(rig.conns[0]));
    assert_false(hps_conn_is_loopback(rig.conns[1])); /* of a listener on all addresses */
    assert_int_equal(hps_acceptor_connections(rig.acceptor), 2);
    end(&rig, 0);
    assert_int_equal(hps_acceptor_connections(rig.acceptor), 1);
    rig_close(&rig);
}

static void test_accept_when_over_the_limit_then_closed_until_one_ends(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 2, 0);
    rig_add(&rig, "127.0.0.1:0", 0);
    rig_connect(&rig, NULL);
    rig_connect(&rig, NULL);
    turn_until(&rig, 2, 0);
    assert_closed((rig_connect(&rig, NULL), turn_until(&rig, 2, 1), rig.clients[2]));
    end(&rig, 0);
    rig_connect(&rig, NULL);
    turn_until(&rig, 3, 1);
    rig_close(&rig);
}

static void test_limits_when_set_then_they_hold_for_connections_that_come(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 0, 0);
    rig_add(&rig, "127.0.0.1:0", 0);
    rig_connect(&rig, "127.0.0.2:0");
    rig_connect(&rig, "127.0.0.2:0");
    turn_until(&rig, 2, 0);
    struct hps_place_limits limits = {.max = 1};
    hps_acceptor_limits_set(rig.acceptor, &limits);
    assert_int_equal(hps_acceptor_connections(rig.acceptor), 2); /* those stay */
    rig_connect(&rig, "127.0.0.3:0");
    turn_until(&rig, 2, 1);
    limits = (struct hps_place_limits){.max = 3, .client_max = 1};
    hps_acceptor_limits_set(rig.acceptor, &limits);
    rig_connect(&rig, "127.0.0.2:0");
    turn_until(&rig, 2, 2);
    rig_connect(&rig, "127.0.0.3:0");
    turn_until(&rig, 3, 2);
    rig_close(&rig);
}

static void test_accept_when_one_peer_has_too_many_then_others_still_come(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 0, 1);
    rig_add(&rig, "127.0.0.1:0", 0);
    rig_connect(&rig, "127.0.0.2:0");
    turn_until(&rig, 1, 0);
    int refused = rig_connect(&rig, "127.0.0.2:0");
    turn_until(&rig, 1, 1);
    assert_closed(refused);
    rig_connect(&rig, "127.0.0.3:0");
    turn_until(&rig, 2, 1);
    end(&rig, 0);
    rig_connect(&rig, "127.0.0.2:0");
    turn_until(&rig, 3, 1);
    rig_close(&rig);
}

static void test_accept_when_out_of_descriptors_then_pauses_and_goes_on(void **state)
{
    (void)state;
    struct rig rig;
    struct rlimit limit, none;
    hps_clock_fake(1000000);
    rig_open(&rig, 0, 0);
    rig_add(&rig, "127.0.0.1:0", 0);
    int client = rig_connect(&rig, NULL);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = (rlim_t)client + 1, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    hps_loop_turn(rig.loop, 100000);
    assert_int_equal(rig.n, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    hps_loop_turn(rig.loop, 0); /* paused: not even tried */
    assert_int_equal(rig.n, 0);
    hps_clock_advance(100000);
    turn_until(&rig, 1, 0);
    rig_close(&rig);
    hps_clock_real();
}

static void test_stop_when_called_then_refuses_and_keeps_connections(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 0, 0);
    rig_add(&rig, "127.0.0.1:0", 0);
    rig.stop_on_accept = true;
    int client = rig_connect(&rig, NULL);
    turn_until(&rig, 1, 0);
    hps_acceptor_stop(rig.acceptor);
    struct hps_places to;
    assert_int_equal(hps_addr_resolve(&rig.addr, false, &to, NULL), HPS_OK);
    int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_not_equal(connect(late, (struct sockaddr *)&to.items[0].storage, to.items[0].size),
                         0);
    close(late);
    struct iovec iov = {.iov_base = (void *)(uintptr_t) "x", .iov_len = 1};
    size_t written = 0;
    char byte;
    assert_int_equal(hps_conn_writev(rig.conns[0], &iov, 1, &written), HPS_OK);
    assert_int_equal(recv(client, &byte, 1, 0), 1);
    rig_close(&rig);
}

static void test_stop_when_unix_then_own_file_is_removed_and_another_is_kept(void **state)
{
    (void)state;
    struct hps_tmpdir dir;
    char address[HPS_TMPDIR_PATH_MAX + 8];
    struct stat st;
    hps_tmpdir_open(&dir);
    snprintf(address, sizeof(address), "unix:%s", hps_tmpdir_join(&dir, "a.sock"));
    struct rig rig;
    rig_open(&rig, 0, 1);
    rig_add(&rig, address, 0);
    rig_connect(&rig, NULL);
    rig_connect(&rig, NULL); /* not counted per peer */
    turn_until(&rig, 2, 0);
    hps_acceptor_stop(rig.acceptor);
    assert_int_not_equal(lstat(address + 5, &st), 0);
    rig_add(&rig, address, 0);
    assert_int_equal(rename(address + 5, hps_tmpdir_join(&dir, "aside")),
                     0); /* keeps the inode from being used again */
    struct hps_addr addr;
    int other = -1;
    assert_int_equal(hps_addr_parse(address, &addr, NULL), HPS_OK);
    assert_int_equal(hps_sock_listen(&addr, 0600, &other, NULL), HPS_OK);
    hps_acceptor_stop(rig.acceptor);
    assert_int_equal(lstat(address + 5, &st), 0);
    close(other);
    rig_close(&rig);
    hps_tmpdir_close(&dir);
}

static void *end_all(void *ctx)
{
    struct rig *rig = ctx;
    for (unsigned i = 0; i < rig->n; i += 2) {
        end(rig, i);
    }
    return NULL;
}

static void test_gone_when_on_another_thread_then_counted(void **state)
{
    (void)state;
    struct rig rig;
    pthread_t thread;
    rig_open(&rig, 0, 0);
    rig_add(&rig, "127.0.0.1:0", 0);
    for (unsigned i = 0; i < 20; i++) {
        rig_connect(&rig, i % 2 ? "127.0.0.5:0" : "127.0.0.6:0");
    }
    turn_until(&rig, 20, 0);
    struct rig copy = rig;
    assert_int_equal(pthread_create(&thread, NULL, end_all, &copy), 0);
    for (unsigned i = 1; i < 20; i += 2) {
        end(&rig, i);
    }
    pthread_join(thread, NULL);
    assert_int_equal(hps_acceptor_connections(rig.acceptor), 0);
    for (unsigned i = 0; i < 20; i++) {
        rig.conns[i] = NULL;
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accept_when_two_listeners_then_cookie_tells_which),
        cmocka_unit_test(test_accept_when_over_the_limit_then_closed_until_one_ends),
        cmocka_unit_test(test_limits_when_set_then_they_hold_for_connections_that_come),
        cmocka_unit_test(test_accept_when_one_peer_has_too_many_then_others_still_come),
        cmocka_unit_test(test_accept_when_out_of_descriptors_then_pauses_and_goes_on),
        cmocka_unit_test(test_stop_when_called_then_refuses_and_keeps_connections),
        cmocka_unit_test(test_stop_when_unix_then_own_file_is_removed_and_another_is_kept),
        cmocka_unit_test(test_gone_when_on_another_thread_then_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
