/* SPDX-License-Identifier: Apache-2.0
 *
 * Name resolution on another thread: its results, and resolvers that do not reply.
 */
#include "net/resolve.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/names.h"
#include "tests/lib/pause.h"

static struct hps_resolve *begin(const char *text, int wake_fd)
{
    struct hps_addr addr;
    struct hps_resolve *resolve = NULL;
    assert_int_equal(hps_addr_parse(text, &addr, NULL), HPS_OK);
    assert_int_equal(hps_resolve_new(&addr, wake_fd, &resolve, NULL), HPS_OK);
    return resolve;
}

static void test_resolve_when_name_is_known_or_unknown_then_woken_with_result(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        hps_status status;
    } cases[] = {{"localhost:80", HPS_OK},
                 {"127.0.0.1:80", HPS_OK},
                 {"[::1]:80", HPS_OK},
                 {"no-such-host.invalid:80", HPS_UNAVAILABLE}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        struct hps_resolve *resolve = begin(cases[i].text, wake_fd);
        struct pollfd polled = {.fd = wake_fd, .events = POLLIN};
        struct hps_places places = {.n = 0};
        struct hps_error err = {0};
        assert_int_equal(poll(&polled, 1, -1), 1);
        assert_true(hps_resolve_ended_us(resolve) > 0);
        for (unsigned again = 0; again < 2; again++) {
            assert_int_equal(hps_resolve_take(resolve, &places, &err), cases[i].status);
            assert_int_equal(places.n > 0, cases[i].status == HPS_OK);
        }
        assert_int_equal(strstr(err.text, "no-such-host.invalid") != NULL, places.n == 0);
        hps_resolve_free(resolve);
        close(wake_fd);
    }
}

static void test_resolve_when_resolver_hangs_then_free_does_not_wait(void **state)
{
    (void)state;
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct hps_resolve *resolve = begin("redis.hung:80", wake_fd);
    struct hps_places places;
    uint64_t count = 0;
    while (atomic_load(&names_waiting) == 0) {
        brief_pause();
    }
    assert_int_equal(hps_resolve_take(resolve, &places, NULL), HPS_AGAIN);
    assert_true(hps_resolve_ended_us(resolve) == 0);
    hps_resolve_free(resolve);
    assert_int_equal(read(wake_fd, &count, sizeof(count)), -1);
    sem_post(&names_go); /* its thread then uses no memory of the test */
    struct pollfd polled = {.fd = wake_fd, .events = POLLIN};
    assert_int_equal(poll(&polled, 1, -1), 1);
    close(wake_fd);
    hps_resolve_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolve_when_name_is_known_or_unknown_then_woken_with_result),
        cmocka_unit_test(test_resolve_when_resolver_hangs_then_free_does_not_wait),
    };
    sem_init(&names_go, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
