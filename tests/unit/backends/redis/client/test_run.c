/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of Redis commands by a thread that is held up between asking and looking for the answer.
 */
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/lib/fake_redis.h"
#include "tests/lib/pause.h"
#include "tests/lib/redis_calls.h"

#define TIMEOUT_US UINT64_C(1000000)

static atomic_bool holds; /* whoever sends a GET, until it has its answer and is too late */

static void hold(int fd)
{
    struct pollfd answered = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&answered, 1, -1), 1);
    uint64_t end_us = hps_clock_us() + 2 * TIMEOUT_US;
    while (hps_clock_us() < end_us) {
        brief_pause();
    }
}

/* Takes the place of the C library's. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t n = syscall(SYS_sendmsg, fd, message, flags);
    const struct iovec *first = message->msg_iov;
    if (n > 0 && atomic_load(&holds) && memmem(first->iov_base, first->iov_len, "GET", 3) != NULL) {
        hold(fd);
    }
    return n;
}

static void test_answer_when_the_caller_was_held_up_then_it_counts(void **state)
{
    struct hps_redis_options options = HPS_REDIS_OPTIONS_DEFAULT;
    struct hps_redis_node_stats node;
    (void)state;
    struct hps_fake_redis *fake = hps_fake_redis_new(1, hps_fake_redis_alone, NULL);
    options.addresses = hps_fake_redis_address(fake, 0);
    options.connect_timeout_us = REDIS_PATIENCE_US;
    options.command_timeout_us = TIMEOUT_US;
    options.failures_max = 1000000;
    struct hps_redis_cluster *cluster = redis_open_with(&options);
    redis_await_status(cluster, "a", HPS_OK);
    hps_redis_cluster_nodes(cluster, &node, 1);
    uint64_t n_timeouts = node.n_timeouts;
    atomic_store(&holds, true);
    assert_int_equal(redis_status(cluster, "a", "GET", "a", NULL), HPS_OK);
    atomic_store(&holds, false);
    hps_redis_cluster_nodes(cluster, &node, 1);
    assert_int_equal(node.n_timeouts, n_timeouts);
    hps_redis_cluster_close(cluster);
    hps_fake_redis_free(fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer_when_the_caller_was_held_up_then_it_counts),
    };
    return cmocka_run_group_tests_name("redis_run", tests, NULL, NULL);
}
