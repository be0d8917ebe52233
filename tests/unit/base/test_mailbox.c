/* SPDX-License-Identifier: Apache-2.0
 *
 * Hand-over between threads: bounds, order, descriptor, closing, many senders.
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
#include "base/heap.h"
#include "tests/lib/fault_heap.h"

struct item {
    struct hps_task task; /* first */
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

static void test_post_when_full_then_exhausted(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(2);
    struct hps_task tasks[3] = {{0}};
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[0]), HPS_OK);
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[1]), HPS_OK);
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[2]), HPS_EXHAUSTED);
    assert_int_equal(hps_mailbox_depth(mailbox), 2);
    assert_ptr_equal(hps_mailbox_wait(mailbox), &tasks[0]);
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[2]), HPS_OK);
    struct hps_task *list = hps_mailbox_take_all(mailbox);
    assert_ptr_equal(list, &tasks[1]);
    assert_ptr_equal(list->next, &tasks[2]);
    assert_null(list->next->next);
    assert_null(hps_mailbox_take_all(mailbox));
    assert_int_equal(hps_mailbox_depth(mailbox), 0);
    hps_mailbox_free(mailbox);
    hps_mailbox_free(NULL);
}

static void test_fd_when_tasks_then_readable_until_empty(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(0);
    struct hps_task tasks[3] = {{0}};
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[0]), HPS_OK);
    assert_true(readable(mailbox)); /* posted before anybody asked for the descriptor */
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[1]), HPS_OK);
    assert_non_null(hps_mailbox_wait(mailbox));
    assert_true(readable(mailbox));
    assert_non_null(hps_mailbox_wait(mailbox));
    assert_false(readable(mailbox));
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[2]), HPS_OK);
    assert_true(readable(mailbox));
    assert_non_null(hps_mailbox_take_all(mailbox));
    assert_false(readable(mailbox));
    hps_mailbox_free(mailbox);
}

static void test_withdraw_when_a_task_waits_then_it_is_the_callers_again(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(3);
    struct hps_task tasks[4] = {{0}};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(hps_mailbox_post(mailbox, &tasks[i]), HPS_OK);
    }
    assert_false(hps_mailbox_withdraw(mailbox, &tasks[3]));
    assert_true(hps_mailbox_withdraw(mailbox, &tasks[2])); /* the last one */
    assert_int_equal(hps_mailbox_depth(mailbox), 2);
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[3]), HPS_OK);
    assert_true(hps_mailbox_withdraw(mailbox, &tasks[1])); /* between others */
    assert_true(hps_mailbox_withdraw(mailbox, &tasks[0])); /* the first one */
    assert_true(readable(mailbox));
    assert_ptr_equal(hps_mailbox_wait(mailbox), &tasks[3]);
    assert_false(hps_mailbox_withdraw(mailbox, &tasks[3])); /* taken */
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[0]), HPS_OK);
    assert_true(hps_mailbox_withdraw(mailbox, &tasks[0])); /* the only one */
    assert_false(readable(mailbox));
    assert_int_equal(hps_mailbox_depth(mailbox), 0);
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[1]), HPS_OK);
    assert_ptr_equal(hps_mailbox_wait(mailbox), &tasks[1]);
    hps_mailbox_free(mailbox);
}

/* One that is looked for from the front would have this take minutes. */
static void test_withdraw_when_very_many_wait_then_each_as_quickly_as_one(void **state)
{
    enum { N_TASKS = 400 * 1000 };
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(0);
    struct hps_task *tasks = hps_calloc(N_TASKS, sizeof(*tasks));
    assert_non_null(tasks);
    for (unsigned i = 0; i < N_TASKS; i++) {
        assert_int_equal(hps_mailbox_post(mailbox, &tasks[i]), HPS_OK);
    }
    for (unsigned i = N_TASKS - 1; i > 0; i--) {
        assert_true(hps_mailbox_withdraw(mailbox, &tasks[i]));
    }
    assert_int_equal(hps_mailbox_depth(mailbox), 1);
    assert_ptr_equal(hps_mailbox_wait(mailbox), &tasks[0]);
    hps_mailbox_free(mailbox);
    hps_free(tasks);
}

static void test_withdraw_when_it_waits_elsewhere_or_is_not_urgent_then_false(void **state)
{
    (void)state;
    struct hps_mailbox *one = hps_mailbox_new(0);
    struct hps_mailbox *other = hps_mailbox_new(0);
    struct hps_task task = {0};
    assert_int_equal(hps_mailbox_post(one, &task), HPS_OK);
    assert_false(hps_mailbox_withdraw(other, &task));
    assert_ptr_equal(hps_mailbox_wait(one), &task);
    assert_int_equal(hps_mailbox_post(other, &task), HPS_OK); /* its receiver sends it on */
    assert_false(hps_mailbox_withdraw(one, &task));
    assert_ptr_equal(hps_mailbox_take_all(other), &task);
    assert_false(hps_mailbox_withdraw(other, &task));
    assert_int_equal(hps_mailbox_post_low(one, &task), HPS_OK);
    assert_false(hps_mailbox_withdraw(one, &task));
    assert_ptr_equal(hps_mailbox_wait(one), &task);
    hps_mailbox_free(one);
    hps_mailbox_free(other);
}

static void test_wait_when_closed_then_rest_then_null(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(0);
    struct hps_task tasks[2] = {{0}};
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[0]), HPS_OK);
    hps_mailbox_close(mailbox);
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[1]), HPS_CLOSED);
    assert_ptr_equal(hps_mailbox_wait(mailbox), &tasks[0]);
    assert_null(hps_mailbox_wait(mailbox));
    hps_mailbox_free(mailbox);
}

static void test_free_when_not_empty_then_assert(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(0);
    struct hps_task task = {0};
    assert_int_equal(hps_mailbox_post(mailbox, &task), HPS_OK);
    hps_assert_hook(hook);
    expect_assert_failure(hps_mailbox_free(mailbox));
    hps_assert_hook(NULL);
    assert_ptr_equal(hps_mailbox_take_all(mailbox), &task);
    hps_mailbox_free(mailbox);
}

static void mailbox_scenario(void *ctx)
{
    (void)ctx;
    hps_mailbox_free(hps_mailbox_new(1));
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
    unsigned n_failed;
};

static void *send_all(void *arg)
{
    struct sender *sender = arg;
    for (unsigned i = 0; i < N_ITEMS; i++) {
        sender->items[i] = (struct item){.sender = sender->number, .number = i};
        sender->n_failed += hps_mailbox_post(sender->mailbox, &sender->items[i].task) != HPS_OK;
    }
    return NULL;
}

static struct sender senders[N_SENDERS];

static void senders_start(struct hps_mailbox *mailbox, pthread_t *threads)
{
    for (unsigned i = 0; i < N_SENDERS; i++) {
        senders[i].mailbox = mailbox;
        senders[i].number = i;
        senders[i].n_failed = 0;
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
    }
}

static void test_take_all_when_many_senders_then_each_in_order(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(0);
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
        assert_int_equal(senders[i].n_failed, 0);
    }
    assert_false(readable(mailbox));
    hps_mailbox_free(mailbox);
}

static void *receive_all(void *arg)
{
    uintptr_t n = 0;
    while (hps_mailbox_wait(arg) != NULL) {
        n++;
    }
    return (void *)n;
}

static void test_wait_when_many_receivers_then_each_task_once(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(0);
    pthread_t sending[N_SENDERS];
    pthread_t receiving[2];
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&receiving[i], NULL, receive_all, mailbox), 0);
    }
    senders_start(mailbox, sending);
    for (unsigned i = 0; i < N_SENDERS; i++) {
        pthread_join(sending[i], NULL);
    }
    hps_mailbox_close(mailbox);
    uintptr_t n = 0;
    for (unsigned i = 0; i < 2; i++) {
        void *received = NULL;
        pthread_join(receiving[i], &received);
        n += (uintptr_t)received;
    }
    assert_int_equal(n, N_SENDERS * N_ITEMS);
    hps_mailbox_free(mailbox);
}

static void test_low_when_others_wait_then_taken_after_them(void **state)
{
    (void)state;
    struct hps_mailbox *mailbox = hps_mailbox_new(1);
    struct hps_task tasks[5] = {{0}};
    assert_int_equal(hps_mailbox_post_low(mailbox, &tasks[0]), HPS_OK);
    assert_int_equal(hps_mailbox_post_low(mailbox, &tasks[1]), HPS_OK);
    assert_int_equal(hps_mailbox_depth(mailbox), 0); /* they take nobody's place */
    assert_true(readable(mailbox));
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[2]), HPS_OK);
    assert_ptr_equal(hps_mailbox_wait(mailbox), &tasks[2]);
    assert_ptr_equal(hps_mailbox_wait(mailbox), &tasks[0]);
    assert_int_equal(hps_mailbox_post(mailbox, &tasks[3]), HPS_OK);
    struct hps_task *list = hps_mailbox_take_all(mailbox);
    assert_ptr_equal(list, &tasks[3]);
    assert_ptr_equal(list->next, &tasks[1]);
    assert_null(list->next->next);
    assert_false(readable(mailbox));
    assert_int_equal(hps_mailbox_post_low(mailbox, &tasks[4]), HPS_OK);
    hps_mailbox_close(mailbox);
    assert_int_equal(hps_mailbox_post_low(mailbox, &tasks[0]), HPS_CLOSED);
    assert_ptr_equal(hps_mailbox_take_all(mailbox), &tasks[4]);
    assert_null(hps_mailbox_wait(mailbox));
    hps_mailbox_free(mailbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_post_when_full_then_exhausted),
        cmocka_unit_test(test_fd_when_tasks_then_readable_until_empty),
        cmocka_unit_test(test_withdraw_when_a_task_waits_then_it_is_the_callers_again),
        cmocka_unit_test(test_withdraw_when_very_many_wait_then_each_as_quickly_as_one),
        cmocka_unit_test(test_withdraw_when_it_waits_elsewhere_or_is_not_urgent_then_false),
        cmocka_unit_test(test_wait_when_closed_then_rest_then_null),
        cmocka_unit_test(test_free_when_not_empty_then_assert),
        cmocka_unit_test(test_new_when_allocation_fails_then_null),
        cmocka_unit_test(test_take_all_when_many_senders_then_each_in_order),
        cmocka_unit_test(test_wait_when_many_receivers_then_each_task_once),
        cmocka_unit_test(test_low_when_others_wait_then_taken_after_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
