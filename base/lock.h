/* SPDX-License-Identifier: Apache-2.0
 *
 * Mutexes, reader-writer locks, and conditions on the monotonic clock. Each lock has a class: a
 * line of base/lock_table.def with its purpose, the threads that take it, and its rank. A thread
 * may take a lock only if the rank of the lock is higher than the ranks of all locks that the
 * thread holds. This prevents deadlocks. Debug and sanitizer builds (HPS_DEBUG) record the locks of
 * each thread and assert this order; other builds do not. Any thread.
 */
#ifndef HPS_BASE_LOCK_H
#define HPS_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"

enum hps_lock_class {
    HPS_LOCK_NONE, /* zeroed memory: not initialised, or destroyed */
#define LOCK(name, rank, may, label, protects, takers) HPS_LOCK_##name,
#include "base/lock_table.def"
#undef LOCK
    HPS_LOCK_CLASSES
};

struct hps_lock {
    pthread_mutex_t mutex;
#ifdef HPS_DEBUG
    enum hps_lock_class lock_class;
#endif
};

/* Many readers or one writer. New readers queue behind a waiting writer. */
struct hps_rwlock {
    pthread_rwlock_t rwlock;
#ifdef HPS_DEBUG
    enum hps_lock_class lock_class;
#endif
};

struct hps_cond {
    pthread_cond_t cond;
};

/* Initialiser of a static lock. */
#ifdef HPS_DEBUG
#define HPS_LOCK_STATIC(name)                                             \
    {                                                                     \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .lock_class = HPS_LOCK_##name \
    }
#else
#define HPS_LOCK_STATIC(name)              \
    {                                      \
        .mutex = PTHREAD_MUTEX_INITIALIZER \
    }
#endif

void hps_lock_init(struct hps_lock *lock, enum hps_lock_class lock_class);
void hps_lock_fini(struct hps_lock *lock); /* must not be held or used again */
void hps_rwlock_init(struct hps_rwlock *lock, enum hps_lock_class lock_class);
void hps_rwlock_fini(struct hps_rwlock *lock);
void hps_cond_init(struct hps_cond *cond);
void hps_cond_fini(struct hps_cond *cond); /* must have no waiters */

/* ---- assertions of debug builds about the calling thread ------------------------------------- */

#ifdef HPS_DEBUG
/* Assert that the lock order allows the calling thread to wait for a lock of this class. */
void hps_lock_debug_order(enum hps_lock_class lock_class);
void hps_lock_debug_taken(enum hps_lock_class lock_class, const void *lock);
void hps_lock_debug_released(const void *lock);
bool hps_lock_debug_is_held(const void *lock);
/* Assert that the calling thread may wait now. `own` is the lock of the condition that the thread
 * waits for; NULL if it does not wait for a condition. */
void hps_lock_debug_waits(const void *own);
#define HPS_LOCK_DEBUG(call) (call)
#else
#define HPS_LOCK_DEBUG(call) ((void)0)
#endif

/* Assert that the calling thread holds the lock; a reader-writer lock for reading or writing. */
#define hps_lock_assert_held(lock) HPS_LOCK_DEBUG(HPS_ASSERT(hps_lock_debug_is_held(lock)))
/* Assert that the calling thread may wait for a store or another thread: it holds only locks that
 * lock_table.def allows it to hold while it waits. */
#define hps_lock_assert_may_wait() HPS_LOCK_DEBUG(hps_lock_debug_waits(NULL))

/* ---- mutexes --------------------------------------------------------------------------------- */

static inline void hps_lock_acquire(struct hps_lock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_order(lock->lock_class));
    int failed = pthread_mutex_lock(&lock->mutex);
    HPS_DEBUG_ASSERT(failed == 0);
    HPS_LOCK_DEBUG(hps_lock_debug_taken(lock->lock_class, lock));
}

static inline void hps_lock_release(struct hps_lock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_released(lock));
    int failed = pthread_mutex_unlock(&lock->mutex);
    HPS_DEBUG_ASSERT(failed == 0);
}

/* Take the lock if it is free. False: another thread holds it. Never waits, so the lock order does
 * not apply. */
static inline bool hps_lock_try(struct hps_lock *lock)
{
    bool taken = pthread_mutex_trylock(&lock->mutex) == 0;

    if (taken) {
        HPS_LOCK_DEBUG(hps_lock_debug_taken(lock->lock_class, lock));
    }
    return taken;
}

/* ---- reader-writer locks --------------------------------------------------------------------- */

static inline void hps_rwlock_read(struct hps_rwlock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_order(lock->lock_class));
    int failed = pthread_rwlock_rdlock(&lock->rwlock);
    HPS_ASSERT(failed == 0); /* fails only with too many readers */
    HPS_LOCK_DEBUG(hps_lock_debug_taken(lock->lock_class, lock));
}

static inline void hps_rwlock_write(struct hps_rwlock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_order(lock->lock_class));
    int failed = pthread_rwlock_wrlock(&lock->rwlock);
    HPS_DEBUG_ASSERT(failed == 0);
    HPS_LOCK_DEBUG(hps_lock_debug_taken(lock->lock_class, lock));
}

/* Release a read or write lock. */
static inline void hps_rwlock_release(struct hps_rwlock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_released(lock));
    int failed = pthread_rwlock_unlock(&lock->rwlock);
    HPS_DEBUG_ASSERT(failed == 0);
}

/* ---- conditions ------------------------------------------------------------------------------ */

/* Release the lock, wait for a signal, and take the lock again. Wakeups may be spurious: check the
 * condition again. */
static inline void hps_cond_wait(struct hps_cond *cond, struct hps_lock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_waits(lock));
    int failed = pthread_cond_wait(&cond->cond, &lock->mutex);
    HPS_DEBUG_ASSERT(failed == 0);
}

/* Like hps_cond_wait, but wait until deadline_us of hps_clock_us at most. False: the deadline has
 * passed. The remaining time is measured with the kernel's clock, so the wait ends even if a test
 * has frozen hps_clock_us. */
bool hps_cond_wait_until(struct hps_cond *cond, struct hps_lock *lock, uint64_t deadline_us);

static inline void hps_cond_signal(struct hps_cond *cond)
{
    int failed = pthread_cond_signal(&cond->cond);
    HPS_DEBUG_ASSERT(failed == 0);
}

static inline void hps_cond_broadcast(struct hps_cond *cond)
{
    int failed = pthread_cond_broadcast(&cond->cond);
    HPS_DEBUG_ASSERT(failed == 0);
}

#endif
