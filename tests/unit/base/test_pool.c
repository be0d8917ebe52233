/* SPDX-License-Identifier: Apache-2.0
 *
 * Worker threads: names, bounds, and that nothing queued is lost at the end.
 */
#include "base/pool.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/fault_heap.h"

static atomic_uint n_run;

struct probe {
    struct hps_task task; /* first */
    sem_t started;
    sem_t go_on;
    char name[16];
    bool term_blocked;
};

static void run_count(struct hps_task *task)
{
    (void)task;
    atomic_fetch_add(&n_run, 1);
}

static void run_probe(struct hps_task *task)
{
    struct probe *probe = (struct probe *)task;
    sigset_t blocked;
    pthread_getname_np(pthread_self(), probe->name, sizeof(probe->name));
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    probe->term_blocked = sigismember(&blocked, SIGTERM) == 1;
    sem_post(&probe->started);
    sem_wait(&probe->go_on);
}

static void probe_init(struct probe *probe)
{
    memset(probe, 0, sizeof(*probe));
    probe->task.run = run_probe;
    sem_init(&probe->started, 0, 0);
    sem_init(&probe->go_on, 0, 0);
}

static void test_pool_when_freed_then_all_queued_have_run(void **state)
{
    (void)state;
    enum { N_TASKS = 1000 };
    static struct hps_task tasks[N_TASKS];
    struct hps_pool *pool = NULL;
    atomic_store(&n_run, 0);
    assert_int_equal(hps_pool_new("count", 3, 0, &pool), HPS_OK);
    assert_int_equal(hps_pool_threads(pool), 3);
    for (unsigned i = 0; i < N_TASKS; i++) {
        tasks[i].run = run_count;
        assert_int_equal(hps_pool_post(pool, &tasks[i]), HPS_OK);
    }
    hps_pool_free(pool);
    assert_int_equal(atomic_load(&n_run), N_TASKS);
    hps_pool_free(NULL);
}

static void test_post_when_queue_full_then_exhausted_and_others_run(void **state)
{
    (void)state;
    struct hps_pool *pool = NULL;
    struct probe probe;
    struct hps_task tasks[3] = {{NULL, run_count}, {NULL, run_count}, {NULL, run_count}};
    probe_init(&probe);
    atomic_store(&n_run, 0);
    assert_int_equal(hps_pool_new("full", 1, 2, &pool), HPS_OK);
    assert_int_equal(hps_pool_post(pool, &probe.task), HPS_OK);
    sem_wait(&probe.started); /* the only worker is busy from here on */
    assert_int_equal(hps_pool_depth(pool), 0);
    assert_int_equal(hps_pool_post(pool, &tasks[0]), HPS_OK);
    assert_int_equal(hps_pool_post(pool, &tasks[1]), HPS_OK);
    assert_int_equal(hps_pool_post(pool, &tasks[2]), HPS_EXHAUSTED);
    assert_int_equal(hps_pool_depth(pool), 2);
    sem_post(&probe.go_on);
    hps_pool_free(pool);
    assert_int_equal(atomic_load(&n_run), 2);
}

static void test_pool_when_name_long_then_number_kept(void **state)
{
    (void)state;
    struct hps_pool *pool = NULL;
    struct probe probes[2];
    assert_int_equal(hps_pool_new("a-very-long-pool-name", 2, 0, &pool), HPS_OK);
    for (unsigned i = 0; i < 2; i++) {
        probe_init(&probes[i]);
        assert_int_equal(hps_pool_post(pool, &probes[i].task), HPS_OK);
    }
    for (unsigned i = 0; i < 2; i++) {
        sem_wait(&probes[i].started); /* both workers are inside at once */
    }
    for (unsigned i = 0; i < 2; i++) {
        sem_post(&probes[i].go_on);
        assert_memory_equal(probes[i].name, "a-very-long-p-", 14);
        assert_true(probes[i].term_blocked);
    }
    assert_int_equal(probes[0].name[14] + probes[1].name[14], '0' + '1');
    hps_pool_free(pool);
}

static void test_pool_when_started_then_creator_keeps_its_signals(void **state)
{
    (void)state;
    struct hps_pool *pool = NULL;
    sigset_t blocked;
    assert_int_equal(hps_pool_new("sig", 1, 0, &pool), HPS_OK);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    assert_int_equal(sigismember(&blocked, SIGTERM), 0);
    hps_pool_free(pool);
}

static void pool_scenario(void *ctx)
{
    (void)ctx;
    struct hps_pool *pool = NULL;
    if (hps_pool_new("fault", 2, 1, &pool) != HPS_OK) {
        assert_null(pool);
    }
    hps_pool_free(pool);
}

static void test_pool_when_each_allocation_fails_then_no_leak(void **state)
{
    (void)state;
    assert_int_equal(hps_fault_heap_run(pool_scenario, NULL), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_when_freed_then_all_queued_have_run),
        cmocka_unit_test(test_post_when_queue_full_then_exhausted_and_others_run),
        cmocka_unit_test(test_pool_when_name_long_then_number_kept),
        cmocka_unit_test(test_pool_when_started_then_creator_keeps_its_signals),
        cmocka_unit_test(test_pool_when_each_allocation_fails_then_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
