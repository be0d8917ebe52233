/* SPDX-License-Identifier: Apache-2.0
 *
 * Event loop: descriptors, timers with a fake clock, deferred callbacks, tasks from other threads,
 * signals.
 */
#include "net/loop.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "tests/lib/fault_heap.h"

static void hook(const char *expr, const char *file, int line)
{
    mock_assert(0, expr, file, line);
}

static struct hps_loop *new_loop(void)
{
    struct hps_loop *loop = NULL;
    struct hps_error err;
    assert_int_equal(hps_loop_new(&loop, &err), HPS_OK);
    return loop;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

struct watch {
    struct hps_loop_fd fd;
    struct watch *victim; /* deleted by the callback */
    unsigned n_reads, n_writes;
};

static void on_watch(void *ctx, unsigned events)
{
    struct watch *watch = ctx;
    watch->n_reads += events == HPS_LOOP_READ;
    watch->n_writes += events == HPS_LOOP_WRITE;
    if (watch->victim) {
        hps_loop_fd_del(&watch->victim->fd);
    }
}

static void socket_pair(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
}

static void test_fd_when_ready_then_called_each_iteration_while_wanted(void **state)
{
    (void)state;
    struct hps_loop *loop = new_loop();
    struct watch watch = {0};
    int fds[2];
    socket_pair(fds);
    assert_int_equal(hps_loop_fd_add(loop, &watch.fd, fds[0], HPS_LOOP_READ, on_watch, &watch),
                     HPS_OK);
    hps_loop_turn(loop, 0);
    assert_int_equal(watch.n_reads, 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    hps_loop_turn(loop, 1000000);
    hps_loop_turn(loop, 1000000);
    assert_int_equal(watch.n_reads, 2);
    assert_int_equal(hps_loop_fd_want(&watch.fd, HPS_LOOP_READ | HPS_LOOP_WRITE), HPS_OK);
    hps_loop_turn(loop, 1000000);
    assert_int_equal(watch.n_reads, 3);
    assert_int_equal(watch.n_writes, 1);
    assert_int_equal(hps_loop_fd_want(&watch.fd, 0), HPS_OK);
    hps_loop_turn(loop, 0);
    assert_int_equal(watch.n_reads, 3);
    assert_int_equal(watch.n_writes, 1);
    hps_loop_fd_del(&watch.fd);
    hps_loop_fd_del(&watch.fd);
    close(fds[0]);
    close(fds[1]);
    hps_loop_free(loop);
}

static void test_fd_when_peer_hangs_up_then_readable(void **state)
{
    (void)state;
    struct hps_loop *loop = new_loop();
    struct watch watch = {0};
    int fds[2];
    socket_pair(fds);
    assert_int_equal(hps_loop_fd_add(loop, &watch.fd, fds[0], HPS_LOOP_READ, on_watch, &watch),
                     HPS_OK);
    close(fds[1]);
    hps_loop_turn(loop, 1000000);
    assert_int_equal(watch.n_reads, 1);
    hps_loop_fd_del(&watch.fd);
    close(fds[0]);
    hps_loop_free(loop);
}

static void test_fd_when_deleted_by_another_callback_then_not_called(void **state)
{
    (void)state;
    struct hps_loop *loop = new_loop();
    struct watch a = {0};
    struct watch b = {0};
    int fds[2];
    socket_pair(fds);
    a.victim = &b;
    b.victim = &a;
    assert_int_equal(hps_loop_fd_add(loop, &a.fd, fds[0], HPS_LOOP_WRITE, on_watch, &a), HPS_OK);
    assert_int_equal(hps_loop_fd_add(loop, &b.fd, fds[1], HPS_LOOP_WRITE, on_watch, &b), HPS_OK);
    hps_loop_turn(loop, 1000000);
    assert_int_equal(a.n_writes + b.n_writes, 1);
    hps_loop_fd_del(&a.fd);
    hps_loop_fd_del(&b.fd);
    close(fds[0]);
    close(fds[1]);
    hps_loop_free(loop);
}

static void test_fd_when_not_pollable_then_invalid(void **state)
{
    (void)state;
    struct hps_loop *loop = new_loop();
    struct watch watch = {0};
    char path[] = "/tmp/hps-loop-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(hps_loop_fd_add(loop, &watch.fd, fd, HPS_LOOP_READ, on_watch, &watch),
                     HPS_INVALID);
    hps_loop_fd_del(&watch.fd);
    close(fd);
    hps_loop_free(loop);
}

/* ---- timers ---------------------------------------------------------------------------------- */

#define N_TIMERS 200

struct ticks {
    struct hps_loop *loop;
    unsigned fired[N_TIMERS * 4];
    unsigned n_fired;
};

struct tick {
    struct hps_timer timer;
    struct ticks *ticks;
    unsigned number;
    uint64_t again_us; /* not 0: set again to this time by the callback */
    struct tick *victim;
};

static void on_tick(void *ctx)
{
    struct tick *tick = ctx;
    assert_false(hps_timer_armed(&tick->timer));
    tick->ticks->fired[tick->ticks->n_fired++] = tick->number;
    if (tick->victim) {
        hps_timer_stop(&tick->victim->timer);
    }
    if (tick->again_us > 0) {
        hps_timer_set(tick->ticks->loop, &tick->timer, tick->again_us);
    }
}

static void tick_init(struct tick *tick, struct ticks *ticks, unsigned number)
{
    *tick = (struct tick){.ticks = ticks, .number = number};
    hps_timer_init(&tick->timer, on_tick, tick);
}

static void test_timers_when_due_then_fire_once_in_order(void **state)
{
    (void)state;
    hps_clock_fake(1000);
    struct ticks ticks = {.loop = new_loop()};
    struct tick a, b, c;
    tick_init(&a, &ticks, 1);
    tick_init(&b, &ticks, 2);
    tick_init(&c, &ticks, 3);
    hps_timer_set(ticks.loop, &a.timer, 3000);
    hps_timer_set(ticks.loop, &b.timer, 2000);
    hps_timer_set_after(ticks.loop, &c.timer, 1000);
    hps_loop_turn(ticks.loop, 0);
    assert_int_equal(ticks.n_fired, 0);
    hps_clock_advance(999);
    hps_loop_turn(ticks.loop, 0);
    assert_int_equal(ticks.n_fired, 0);
    hps_clock_advance(1);
    hps_loop_turn(ticks.loop, 0);
    assert_int_equal(ticks.n_fired, 2);
    assert_int_equal(ticks.fired[0], 2);
    assert_int_equal(ticks.fired[1], 3);
    hps_clock_advance(5000);
    hps_loop_turn(ticks.loop, 0);
    hps_loop_turn(ticks.loop, 0);
    assert_int_equal(ticks.n_fired, 3);
    assert_int_equal(ticks.fired[2], 1);
    hps_loop_free(ticks.loop);
    hps_clock_real();
}

static void test_timer_when_set_in_callback_then_fires_in_next_iteration(void **state)
{
    (void)state;
    hps_clock_fake(1000);
    struct ticks ticks = {.loop = new_loop()};
    struct tick a;
    tick_init(&a, &ticks, 1);
    a.again_us = 1;
    hps_timer_set(ticks.loop, &a.timer, 1);
    hps_loop_turn(ticks.loop, 0);
    assert_int_equal(ticks.n_fired, 1);
    hps_loop_turn(ticks.loop, 1000000);
    assert_int_equal(ticks.n_fired, 2);
    hps_timer_stop(&a.timer);
    hps_timer_stop(&a.timer);
    assert_false(hps_timer_armed(&a.timer));
    hps_loop_free(ticks.loop);
    hps_clock_real();
}

static void test_timer_when_stopped_by_another_then_does_not_fire(void **state)
{
    (void)state;
    hps_clock_fake(1000);
    struct ticks ticks = {.loop = new_loop()};
    struct tick a, b;
    tick_init(&a, &ticks, 1);
    tick_init(&b, &ticks, 2);
    a.victim = &b;
    hps_timer_set(ticks.loop, &a.timer, 10);
    hps_timer_set(ticks.loop, &b.timer, 11);
    hps_loop_turn(ticks.loop, 0);
    assert_int_equal(ticks.n_fired, 1);
    hps_loop_free(ticks.loop);
    hps_clock_real();
}

/* Sets, changes and stops timers at random, and compares them with a simple list. */
static void test_timers_when_changed_at_random_then_fire_in_order(void **state)
{
    (void)state;
    hps_clock_fake(1);
    struct ticks ticks = {.loop = new_loop()};
    static struct tick all[N_TIMERS];
    uint64_t random = 88172645463325252u;
    for (unsigned i = 0; i < N_TIMERS; i++) {
        tick_init(&all[i], &ticks, i);
    }
    for (unsigned i = 0; i < N_TIMERS * 20; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        struct tick *tick = &all[random % N_TIMERS];
        if (random >> 62 == 0) {
            hps_timer_stop(&tick->timer);
        } else {
            hps_timer_set(ticks.loop, &tick->timer, 2 + (random >> 20) % 1000);
        }
    }
    unsigned n_armed = 0;
    uint64_t at_us[N_TIMERS];
    for (unsigned i = 0; i < N_TIMERS; i++) {
        n_armed += hps_timer_armed(&all[i].timer);
        at_us[i] = all[i].timer.at_us;
    }
    hps_clock_advance(500);
    hps_loop_turn(ticks.loop, 0);
    unsigned n_half = ticks.n_fired;
    hps_clock_advance(1000);
    hps_loop_turn(ticks.loop, 0);
    assert_int_equal(ticks.n_fired, n_armed);
    for (unsigned i = 0; i < n_armed; i++) {
        assert_true((at_us[ticks.fired[i]] <= 501) == (i < n_half));
        assert_true(i == 0 || at_us[ticks.fired[i - 1]] <= at_us[ticks.fired[i]]);
    }
    hps_loop_free(ticks.loop);
    hps_clock_real();
}

static void test_timer_when_clock_is_real_then_wakes_the_loop(void **state)
{
    (void)state;
    struct ticks ticks = {.loop = new_loop()};
    struct tick a;
    tick_init(&a, &ticks, 1);
    hps_timer_set_after(ticks.loop, &a.timer, 2000);
    while (ticks.n_fired == 0) {
        hps_loop_turn(ticks.loop, 60000000);
    }
    hps_loop_free(ticks.loop);
}

/* ---- later ----------------------------------------------------------------------------------- */

struct deferral {
    struct hps_loop *loop;
    struct hps_loop_later later;
    struct hps_loop_later *stop, *set;
    unsigned n_runs;
};

static void on_later(void *ctx)
{
    struct deferral *deferral = ctx;
    deferral->n_runs++;
    if (deferral->stop) {
        hps_loop_later_stop(deferral->stop);
    }
    if (deferral->set) {
        hps_loop_later_set(deferral->loop, deferral->set);
    }
}

static void test_later_when_set_twice_then_runs_once(void **state)
{
    (void)state;
    struct deferral a = {.loop = new_loop()};
    hps_loop_later_init(&a.later, on_later, &a);
    hps_loop_later_set(a.loop, &a.later);
    hps_loop_later_set(a.loop, &a.later);
    hps_loop_turn(a.loop, 1000000);
    hps_loop_turn(a.loop, 0);
    assert_int_equal(a.n_runs, 1);
    hps_loop_free(a.loop);
}

static void test_later_when_set_in_callback_then_runs_in_next_iteration(void **state)
{
    (void)state;
    struct deferral a = {.loop = new_loop()};
    hps_loop_later_init(&a.later, on_later, &a);
    a.set = &a.later;
    hps_loop_later_set(a.loop, &a.later);
    hps_loop_turn(a.loop, 1000000);
    assert_int_equal(a.n_runs, 1);
    hps_loop_turn(a.loop, 1000000); /* returns at once */
    assert_int_equal(a.n_runs, 2);
    hps_loop_later_stop(&a.later);
    hps_loop_free(a.loop);
}

static void test_later_when_stopped_by_another_then_does_not_run(void **state)
{
    (void)state;
    struct deferral a = {.loop = new_loop()};
    struct deferral b = {.loop = a.loop};
    struct deferral c = {.loop = a.loop};
    hps_loop_later_init(&a.later, on_later, &a);
    hps_loop_later_init(&b.later, on_later, &b);
    hps_loop_later_init(&c.later, on_later, &c);
    a.stop = &b.later;
    hps_loop_later_set(a.loop, &a.later);
    hps_loop_later_set(a.loop, &b.later);
    hps_loop_later_set(a.loop, &c.later);
    hps_loop_turn(a.loop, 0);
    assert_int_equal(a.n_runs, 1);
    assert_int_equal(b.n_runs, 0);
    assert_int_equal(c.n_runs, 1);
    hps_loop_free(a.loop);
}

/* ---- other threads --------------------------------------------------------------------------- */

#define N_SENDERS 4
#define N_POSTS   2000

struct sender {
    struct hps_loop *loop;
    struct hps_task tasks[N_POSTS];
    pthread_t thread;
};

static unsigned n_run; /* loop thread only */

static void count_run(struct hps_task *task)
{
    (void)task;
    n_run++;
}

static void *send_all(void *ctx)
{
    struct sender *sender = ctx;
    for (unsigned i = 0; i < N_POSTS; i++) {
        sender->tasks[i].run = count_run;
        hps_loop_post(sender->loop, &sender->tasks[i]);
    }
    return NULL;
}

static void *run_loop(void *ctx)
{
    hps_loop_run(ctx);
    return NULL;
}

static void test_post_when_many_threads_then_each_runs_once(void **state)
{
    (void)state;
    struct hps_loop *loop = new_loop();
    static struct sender senders[N_SENDERS];
    pthread_t thread;
    n_run = 0;
    assert_int_equal(pthread_create(&thread, NULL, run_loop, loop), 0);
    for (unsigned i = 0; i < N_SENDERS; i++) {
        senders[i].loop = loop;
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_all, &senders[i]), 0);
    }
    for (unsigned i = 0; i < N_SENDERS; i++) {
        pthread_join(senders[i].thread, NULL);
    }
    hps_loop_stop(loop);
    hps_loop_stop(loop);
    pthread_join(thread, NULL);
    hps_loop_free(loop); /* runs the remaining tasks */
    assert_int_equal(n_run, N_SENDERS * N_POSTS);
}

enum { SLOW = 64, SLOW_US = 200, SLOW_PER_TURN_MAX = 10 };

struct slow {
    struct hps_task task;
    struct hps_timer timer;
    unsigned *n; /* counts the tasks or timers that have run */
    unsigned place;
};

static void take_long(struct slow *slow)
{
    assert_int_equal(*slow->n, slow->place);
    ++*slow->n;
    hps_clock_advance(SLOW_US);
}

static void on_slow_task(struct hps_task *task)
{
    take_long(HPS_CONTAINER_OF(task, struct slow, task));
}

static void on_slow_timer(void *ctx)
{
    take_long(ctx);
}

/* Runs the loop until all have run. Each iteration must check the descriptor. */
static void check_slow(struct hps_loop *loop, struct watch *watch, const unsigned *n)
{
    while (*n < SLOW) {
        unsigned n_before = *n, n_reads = watch->n_reads;
        hps_loop_turn(loop, 1000000);
        assert_in_range(*n - n_before, 1, SLOW_PER_TURN_MAX);
        assert_int_equal(watch->n_reads, n_reads + 1);
    }
}

static void test_iteration_when_tasks_or_timers_take_long_then_rest_waits_for_next(void **state)
{
    static struct slow slow[SLOW];
    struct hps_loop *loop = new_loop();
    struct watch watch = {0};
    unsigned n_tasks = 0, n_timers = 0;
    int fds[2];

    (void)state;
    hps_clock_fake(1000000);
    socket_pair(fds);
    assert_int_equal(write(fds[1], "x", 1), 1);
    assert_int_equal(hps_loop_fd_add(loop, &watch.fd, fds[0], HPS_LOOP_READ, on_watch, &watch),
                     HPS_OK);
    for (unsigned i = 0; i < SLOW; i++) {
        slow[i] = (struct slow){.task.run = on_slow_task, .n = &n_tasks, .place = i};
        hps_loop_post(loop, &slow[i].task);
    }
    check_slow(loop, &watch, &n_tasks);
    for (unsigned i = 0; i < SLOW; i++) {
        slow[i].n = &n_timers;
        hps_timer_init(&slow[i].timer, on_slow_timer, &slow[i]);
        hps_timer_set(loop, &slow[i].timer, 1);
    }
    check_slow(loop, &watch, &n_timers);
    hps_loop_fd_del(&watch.fd);
    close(fds[0]);
    close(fds[1]);
    hps_loop_free(loop);
    hps_clock_real();
}

static void test_run_when_stopped_before_then_returns_at_once(void **state)
{
    (void)state;
    struct hps_loop *loop = new_loop();
    hps_loop_stop(loop);
    hps_loop_run(loop);
    hps_loop_free(loop);
    hps_loop_free(NULL);
}

static void test_loop_when_used_by_another_thread_then_assert(void **state)
{
    (void)state;
    struct hps_loop *loop = new_loop();
    struct hps_task task = {.run = count_run};
    struct ticks ticks = {.loop = loop};
    struct tick a;
    pthread_t thread;
    tick_init(&a, &ticks, 1);
    assert_true(hps_loop_is_mine(loop));
    assert_int_equal(pthread_create(&thread, NULL, run_loop, loop), 0);
    hps_loop_post(loop, &task);
    while (hps_loop_is_mine(loop)) {
        sched_yield();
    }
    hps_assert_hook(hook);
    expect_assert_failure(hps_timer_set(loop, &a.timer, 1));
    hps_assert_hook(NULL);
    hps_loop_stop(loop);
    pthread_join(thread, NULL);
    hps_loop_free(loop);
}

/* ---- signals, memory ------------------------------------------------------------------------- */

static void on_signal(void *ctx, int signal_number)
{
    *(int *)ctx = signal_number;
}

static void test_signals_when_raised_then_callback(void **state)
{
    (void)state;
    struct hps_loop *loop = new_loop();
    const int signals[] = {SIGUSR1, SIGHUP};
    const int wrong[] = {100000};
    struct hps_loop_signals *watch = NULL;
    struct hps_error err;
    int seen = 0;
    assert_int_equal(hps_loop_signals_new(loop, wrong, 1, on_signal, &seen, &watch, &err),
                     HPS_INVALID);
    assert_int_equal(hps_loop_signals_new(loop, signals, 2, on_signal, &seen, &watch, &err),
                     HPS_OK);
    assert_int_equal(kill(getpid(), SIGHUP), 0);
    hps_loop_turn(loop, 1000000);
    assert_int_equal(seen, SIGHUP);
    hps_loop_signals_free(watch);
    hps_loop_signals_free(NULL);
    hps_loop_free(loop);
}

static void scenario(void *ctx)
{
    (void)ctx;
    struct hps_loop *loop = NULL;
    struct watch watch = {0};
    int fds[2];
    if (hps_loop_new(&loop, NULL) != HPS_OK) {
        return;
    }
    socket_pair(fds);
    if (hps_loop_fd_add(loop, &watch.fd, fds[0], HPS_LOOP_WRITE, on_watch, &watch) == HPS_OK) {
        hps_loop_turn(loop, 0);
        assert_int_equal(watch.n_writes, 1);
    }
    hps_loop_fd_del(&watch.fd);
    close(fds[0]);
    close(fds[1]);
    hps_loop_free(loop);
}

static void test_loop_when_allocation_fails_then_status_and_no_leak(void **state)
{
    (void)state;
    assert_true(hps_fault_heap_run(scenario, NULL) > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fd_when_ready_then_called_each_iteration_while_wanted),
        cmocka_unit_test(test_fd_when_peer_hangs_up_then_readable),
        cmocka_unit_test(test_fd_when_deleted_by_another_callback_then_not_called),
        cmocka_unit_test(test_fd_when_not_pollable_then_invalid),
        cmocka_unit_test(test_timers_when_due_then_fire_once_in_order),
        cmocka_unit_test(test_timer_when_set_in_callback_then_fires_in_next_iteration),
        cmocka_unit_test(test_timer_when_stopped_by_another_then_does_not_fire),
        cmocka_unit_test(test_timers_when_changed_at_random_then_fire_in_order),
        cmocka_unit_test(test_timer_when_clock_is_real_then_wakes_the_loop),
        cmocka_unit_test(test_later_when_set_twice_then_runs_once),
        cmocka_unit_test(test_later_when_set_in_callback_then_runs_in_next_iteration),
        cmocka_unit_test(test_later_when_stopped_by_another_then_does_not_run),
        cmocka_unit_test(test_post_when_many_threads_then_each_runs_once),
        cmocka_unit_test(test_iteration_when_tasks_or_timers_take_long_then_rest_waits_for_next),
        cmocka_unit_test(test_run_when_stopped_before_then_returns_at_once),
        cmocka_unit_test(test_loop_when_used_by_another_thread_then_assert),
        cmocka_unit_test(test_signals_when_raised_then_callback),
        cmocka_unit_test(test_loop_when_allocation_fails_then_status_and_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
