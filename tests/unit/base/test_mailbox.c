/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-over between threads: order, descriptor, many senders.
 */
#include "base/mailbox.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/assert.h"
#include "tests/lib/fault_heap.h"

struct item {
    struct hps_task task; /* must be first */
    unsigned sender;
    unsigned number;
};

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static bool readable(struct hps_mailbox *mailbox)
{
    struct pollfd poll_fd = {hps_mailbox_fd(mailbox), POLLIN, 0};
    return poll(&poll_fd, 1, 0) == 1;
}

static void test_fd_when_tasks_then_readable_until_empty(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new();
    struct hps_task tasks[3] = {{0}};
    hps_mailbox_post(mailbox, &tasks[0]);
    assert_true(readable(mailbox)); /* posted before the descriptor was requested */
    hps_mailbox_post(mailbox, &tasks[1]);
    assert_non_null(hps_mailbox_wait(mailbox));
    assert_true(readable(mailbox));
    assert_non_null(hps_mailbox_wait(mailbox));
    assert_false(readable(mailbox));
    hps_mailbox_post(mailbox, &tasks[2]);
    assert_true(readable(mailbox));
    assert_ptr_equal(hps_mailbox_take_all(mailbox), &tasks[2]);
    assert_null(hps_mailbox_take_all(mailbox));
    assert_false(readable(mailbox));
    hps_mailbox_free(mailbox);
    hps_mailbox_free(NULL);
}

static void test_free_when_not_empty_then_assert(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new();
    struct hps_task task = {0};
    hps_mailbox_post(mailbox, &task);
    hps_assert_hook(hook);
    expect_assert_failure(hps_mailbox_free(mailbox));
    hps_assert_hook(NULL);
    assert_ptr_equal(hps_mailbox_take_all(mailbox), &task);
    hps_mailbox_free(mailbox);
}

static void mailbox_scenario(void *ctx)
{
    (void)ctx;
    hps_mailbox_free(hps_mailbox_new());
}

static void test_new_when_allocation_fails_then_null(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(mailbox_scenario, NULL), 1);
}

enum { N_SENDERS = 4, N_ITEMS = 2000 };

struct sender {
    struct hps_mailbox *mailbox;
    struct item items[N_ITEMS];
    unsigned number;
};

static void *send_all(void *arg)
{
    struct sender *sender = arg;
    for (unsigned i = 0; i < N_ITEMS; i++) {
        sender->items[i] = (struct item){.sender = sender->number, .number = i};
        hps_mailbox_post(sender->mailbox, &sender->items[i].task);
    }
    return NULL;
}

static struct sender senders[N_SENDERS];

static void senders_start(struct hps_mailbox *mailbox, pthread_t *threads)
{
    for (unsigned i = 0; i < N_SENDERS; i++) {
        senders[i].mailbox = mailbox;
        senders[i].number = i;
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
    }
}

static void test_take_all_when_many_senders_then_each_in_order(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new();
    struct pollfd poll_fd = {hps_mailbox_fd(mailbox), POLLIN, 0};
    pthread_t threads[N_SENDERS];
    senders_start(mailbox, threads);
    unsigned next[N_SENDERS] = {0};
    unsigned n = 0;
    while (n < N_SENDERS * N_ITEMS) {
        assert_int_equal(poll(&poll_fd, 1, -1), 1); /* a lost wake-up would hang here */
        for (struct hps_task *task = hps_mailbox_take_all(mailbox); task != NULL;
             task = task->next) {
            const struct item *item = (const struct item *)task;
            assert_int_equal(item->number, next[item->sender]);
            next[item->sender]++;
            n++;
        }
    }
    for (unsigned i = 0; i < N_SENDERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_false(readable(mailbox));
    hps_mailbox_free(mailbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fd_when_tasks_then_readable_until_empty),
        cmocka_unit_test(test_free_when_not_empty_then_assert),
        cmocka_unit_test(test_new_when_allocation_fails_then_null),
        cmocka_unit_test(test_take_all_when_many_senders_then_each_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
