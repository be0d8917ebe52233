/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that an owner starts and stops: base/worker.h. The tests' own thread, and workers.
 */
#include "base/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/pause.h"

struct owner {
    struct hps_worker worker;
    struct hps_lock lock;
    struct hps_cond wake;
    bool stopping;
    unsigned n_begun;
    char name[16];
};

static void *run(void *arg)
{
    struct owner *owner = arg;
    hps_lock_acquire(&owner->lock);
    owner->n_begun++;
    (void)pthread_getname_np(pthread_self(), owner->name, sizeof(owner->name));
    while (!owner->stopping) {
        hps_cond_wait(&owner->wake, &owner->lock);
    }
    hps_lock_release(&owner->lock);
    return NULL;
}

/* It waits: it has the lock until then. */
static unsigned n_begun(struct owner *owner)
{
    hps_lock_acquire(&owner->lock);
    unsigned n = owner->n_begun;
    hps_lock_release(&owner->lock);
    return n;
}

static hps_status start(struct owner *owner, size_t stack_bytes)
{
    hps_lock_acquire(&owner->lock); /* so that it has its name before it looks */
    hps_status status =
        hps_worker_start(&owner->worker, "a-name-of-18-bytes", stack_bytes, run, owner);
    hps_lock_release(&owner->lock);
    return status;
}

static void test_worker_when_started_and_stopped_again_and_again_then_it_runs_once_each_time(
    void **state)
{
    (void)state;
    struct owner owner = {.n_begun = 0};
    hps_lock_init(&owner.lock, HPS_LOCK_BACKFILL);
    hps_cond_init(&owner.wake);
    hps_worker_stop(&owner.worker, &owner.lock, &owner.wake, &owner.stopping); /* none: at once */
    assert_true(owner.stopping);
    assert_int_equal(start(&owner, 1), HPS_EXHAUSTED);
    assert_false(owner.worker.running);
    for (unsigned i = 1; i <= 3; i++) {
        owner.stopping = false;
        assert_int_equal(start(&owner, 0), HPS_OK);
        assert_int_equal(start(&owner, 0), HPS_OK); /* it runs already */
        AWAIT(n_begun(&owner) == i);
        hps_worker_stop(&owner.worker, &owner.lock, &owner.wake, &owner.stopping);
        hps_worker_join(&owner.worker);
        assert_false(owner.worker.running);
        assert_int_equal(owner.n_begun, i);
    }
    assert_string_equal(owner.name, "a-name-of-18-by");
    hps_cond_fini(&owner.wake);
    hps_lock_fini(&owner.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_worker_when_started_and_stopped_again_and_again_then_it_runs_once_each_time),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
