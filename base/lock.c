/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks, and the records of held locks in debug builds: see lock.h. Any thread.
 */
#include "base/lock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/lock_table.h"

enum { US_PER_S = 1000000, NS_PER_US = 1000 };

/* Without attributes, mutexes and conditions need no resource that could run out. The checks below
 * assert what the C library guarantees on Linux. */
void hps_lock_init(struct hps_lock *lock, enum hps_lock_class lock_class)
{
    HPS_ASSERT(lock_class > HPS_LOCK_NONE && lock_class < HPS_LOCK_CLASSES);
    int failed = pthread_mutex_init(&lock->mutex, NULL);
    HPS_ASSERT(failed == 0);
#ifdef HPS_DEBUG
    lock->lock_class = lock_class;
#endif
}

void hps_lock_fini(struct hps_lock *lock)
{
    HPS_LOCK_DEBUG(HPS_ASSERT(lock->lock_class != HPS_LOCK_NONE && !hps_lock_debug_is_held(lock)));
    int failed = pthread_mutex_destroy(&lock->mutex);
    HPS_ASSERT(failed == 0);
#ifdef HPS_DEBUG
    lock->lock_class = HPS_LOCK_NONE;
#endif
}

void hps_rwlock_init(struct hps_rwlock *lock, enum hps_lock_class lock_class)
{
    pthread_rwlockattr_t writers_first; /* otherwise a writer could wait forever */

    HPS_ASSERT(lock_class > HPS_LOCK_NONE && lock_class < HPS_LOCK_CLASSES);
    int failed = pthread_rwlockattr_init(&writers_first);
    HPS_ASSERT(failed == 0);
    failed =
        pthread_rwlockattr_setkind_np(&writers_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    HPS_ASSERT(failed == 0);
    failed = pthread_rwlock_init(&lock->rwlock, &writers_first);
    HPS_ASSERT(failed == 0);
    pthread_rwlockattr_destroy(&writers_first);
#ifdef HPS_DEBUG
    lock->lock_class = lock_class;
#endif
}

void hps_rwlock_fini(struct hps_rwlock *lock)
{
    HPS_LOCK_DEBUG(HPS_ASSERT(lock->lock_class != HPS_LOCK_NONE && !hps_lock_debug_is_held(lock)));
    int failed = pthread_rwlock_destroy(&lock->rwlock);
    HPS_ASSERT(failed == 0);
#ifdef HPS_DEBUG
    lock->lock_class = HPS_LOCK_NONE;
#endif
}

void hps_cond_init(struct hps_cond *cond)
{
    pthread_condattr_t monotonic;

    int failed = pthread_condattr_init(&monotonic);
    HPS_ASSERT(failed == 0);
    failed = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    HPS_ASSERT(failed == 0);
    failed = pthread_cond_init(&cond->cond, &monotonic);
    HPS_ASSERT(failed == 0);
    pthread_condattr_destroy(&monotonic);
}

void hps_cond_fini(struct hps_cond *cond)
{
    int failed = pthread_cond_destroy(&cond->cond);
    HPS_ASSERT(failed == 0);
}

bool hps_cond_wait_until(struct hps_cond *cond, struct hps_lock *lock, uint64_t deadline_us)
{
    uint64_t now_us = hps_clock_us();
    uint64_t left_us = deadline_us > now_us ? deadline_us - now_us : 0;
    struct timespec until; /* on the kernel's clock; hps_clock_us may be a fake one */

    HPS_LOCK_DEBUG(hps_lock_debug_waits(lock));
    int failed = clock_gettime(CLOCK_MONOTONIC, &until);
    HPS_ASSERT(failed == 0);
    uint64_t us = (uint64_t)until.tv_nsec / NS_PER_US + left_us % US_PER_S;
    until.tv_sec += (time_t)(left_us / US_PER_S + us / US_PER_S);
    until.tv_nsec = (long)(us % US_PER_S) * NS_PER_US;
    failed = pthread_cond_timedwait(&cond->cond, &lock->mutex, &until);
    HPS_ASSERT(failed == 0 || failed == ETIMEDOUT);
    return failed == 0;
}

/* ---- records of debug builds ----------------------------------------------------------------- */

#ifdef HPS_DEBUG
enum { HELD_MAX = 16 };

struct held {
    const void *lock;
    enum hps_lock_class lock_class;
};

static _Thread_local struct held held[HELD_MAX]; /* in order of acquisition */
static _Thread_local unsigned n_held;

/* Names the locks, which the failing assertion cannot do. */
static bool report(const char *wants, const struct held *while_held)
{
    (void)fprintf(stderr, "hps: lock order: %s while the thread holds %s\n", wants,
                  hps_lock_rows[while_held->lock_class].label);
    return false;
}

void hps_lock_debug_order(enum hps_lock_class lock_class)
{
    HPS_ASSERT(lock_class > HPS_LOCK_NONE && lock_class < HPS_LOCK_CLASSES);
    for (unsigned i = 0; i < n_held; i++) {
        bool in_order = hps_lock_rows[held[i].lock_class].rank < hps_lock_rows[lock_class].rank ||
                        report(hps_lock_rows[lock_class].label, &held[i]);
        HPS_ASSERT(in_order);
    }
}

void hps_lock_debug_taken(enum hps_lock_class lock_class, const void *lock)
{
    HPS_ASSERT(lock_class > HPS_LOCK_NONE && lock_class < HPS_LOCK_CLASSES);
    HPS_ASSERT(n_held < HELD_MAX);
    held[n_held++] = (struct held){lock, lock_class};
}

/* Index in `held`; n_held if it is not held. */
static unsigned find_held(const void *lock)
{
    unsigned i = 0;

    while (i < n_held && held[i].lock != lock) {
        i++;
    }
    return i;
}

void hps_lock_debug_released(const void *lock)
{
    unsigned i = find_held(lock);

    HPS_ASSERT(i < n_held);
    n_held--;
    memmove(&held[i], &held[i + 1], (n_held - i) * sizeof(held[0]));
}

bool hps_lock_debug_is_held(const void *lock)
{
    return find_held(lock) < n_held;
}

void hps_lock_debug_waits(const void *own)
{
    HPS_ASSERT(own == NULL || hps_lock_debug_is_held(own));
    for (unsigned i = 0; i < n_held; i++) {
        bool may = held[i].lock == own ||
                   hps_lock_rows[held[i].lock_class].may == HPS_LOCK_MAY_WAIT ||
                   report("waits", &held[i]);
        HPS_ASSERT(may);
    }
}
#endif
