/* SPDX-License-Identifier: Apache-2.0
 *
 * The locks of hpsd: mutexes, reader-writer locks, and conditions on the monotonic clock. Each lock
 * is of a class, a line of base/lock_table.def that says what it protects, who takes it, and its
 * rank: a thread takes a lock only if its rank is above those of all locks that the thread holds,
 * so that no two threads ever wait for each other. Debug and sanitizer builds (HPS_DEBUG) note what
 * each thread holds and assert that order; other builds do neither. Any thread.
 */
#ifndef HPS_BASE_LOCK_H
#define HPS_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"

enum hps_lock_class {
    HPS_LOCK_NONE, /* memory of zeros: not initialised, or gone */
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

/* Many readers or one writer. Readers that come while a writer waits go behind it. */
struct hps_rwlock {
    pthread_rwlock_t rwlock;
#ifdef HPS_DEBUG
    enum hps_lock_class lock_class;
#endif
};

struct hps_cond {
    pthread_cond_t cond;
};

/* The initialiser of a lock in static storage. */
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
void hps_lock_fini(struct hps_lock *lock); /* nobody holds it, nor will */
void hps_rwlock_init(struct hps_rwlock *lock, enum hps_lock_class lock_class);
void hps_rwlock_fini(struct hps_rwlock *lock);
void hps_cond_init(struct hps_cond *cond);
void hps_cond_fini(struct hps_cond *cond); /* nobody waits, nor will */

/* ---- what is asserted of the calling thread, in debug builds --------------------------------- */

#ifdef HPS_DEBUG
/* The thread is about to take a lock of that class, and may have to wait for it. */
void hps_lock_debug_order(enum hps_lock_class lock_class);
void hps_lock_debug_taken(enum hps_lock_class lock_class, const void *lock);
void hps_lock_debug_released(const void *lock);
bool hps_lock_debug_is_held(const void *lock);
/* The thread is about to wait. own: the lock of the condition that it waits for, or NULL */
void hps_lock_debug_waits(const void *own);
#define HPS_LOCK_DEBUG(call) (call)
#else
#define HPS_LOCK_DEBUG(call) ((void)0)
#endif

/* The thread holds the lock (of a reader-writer lock: in either way). */
#define hps_lock_assert_held(lock) HPS_LOCK_DEBUG(HPS_ASSERT(hps_lock_debug_is_held(lock)))
/* The thread may wait, for a store or another thread: it holds no lock but those whose line in the
 * table says that they may be held meanwhile. */
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

/* Take the lock unless somebody holds it. As this never waits, the order does not matter. */
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
    HPS_ASSERT(failed == 0); /* as many readers as threads: never too many */
    HPS_LOCK_DEBUG(hps_lock_debug_taken(lock->lock_class, lock));
}

static inline void hps_rwlock_write(struct hps_rwlock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_order(lock->lock_class));
    int failed = pthread_rwlock_wrlock(&lock->rwlock);
    HPS_DEBUG_ASSERT(failed == 0);
    HPS_LOCK_DEBUG(hps_lock_debug_taken(lock->lock_class, lock));
}

/* What the thread has of it, to read or to write. */
static inline void hps_rwlock_release(struct hps_rwlock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_released(lock));
    int failed = pthread_rwlock_unlock(&lock->rwlock);
    HPS_DEBUG_ASSERT(failed == 0);
}

/* ---- conditions ------------------------------------------------------------------------------ */

/* Wait, with the lock let go meanwhile, until somebody signals; or for no reason: ask again. */
static inline void hps_cond_wait(struct hps_cond *cond, struct hps_lock *lock)
{
    HPS_LOCK_DEBUG(hps_lock_debug_waits(lock));
    int failed = pthread_cond_wait(&cond->cond, &lock->mutex);
    HPS_DEBUG_ASSERT(failed == 0);
}

/* Wait until deadline_us of hps_clock_us at the latest; then false. While a test has frozen
 * that clock, what is left by it passes in real time. */
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
