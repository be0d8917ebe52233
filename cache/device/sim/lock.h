/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks and wake-ups of the simulated device, implemented with futexes. ThreadSanitizer would treat
 * pthread locks as ordering the memory accesses of the host and the streams, but only events may
 * order these accesses. Include this file only in files that are compiled without ThreadSanitizer.
 * Any thread. Waiting takes no CPU time.
 */
#ifndef HPS_CACHE_DEVICE_SIM_LOCK_H
#define HPS_CACHE_DEVICE_SIM_LOCK_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void hps_futex_wait(uint32_t *word, uint32_t seen)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static inline void hps_futex_wake(uint32_t *word, int n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* ---- a lock ---------------------------------------------------------------------------------- */

struct hps_sim_lock {
    uint32_t state; /* 0: free; 1: locked; 2: locked, and threads may wait for it */
};

static inline void hps_sim_lock(struct hps_sim_lock *lock)
{
    uint32_t state = 0;
    if (__atomic_compare_exchange_n(&lock->state, &state, 1, false, __ATOMIC_ACQUIRE,
                                    __ATOMIC_RELAXED)) {
        return;
    }
    while (__atomic_exchange_n(&lock->state, 2, __ATOMIC_ACQUIRE) != 0) {
        hps_futex_wait(&lock->state, 2);
    }
}

static inline void hps_sim_unlock(struct hps_sim_lock *lock)
{
    if (__atomic_exchange_n(&lock->state, 0, __ATOMIC_RELEASE) == 2) {
        hps_futex_wake(&lock->state, 1);
    }
}

/* ---- a pulse: wakes all waiting threads after a change --------------------------------------- */

/* Each call of hps_sim_pulse_beat is a *beat*, which wakes all waiting threads. To wait for a
 * condition, a thread calls hps_sim_pulse and checks the condition. If the condition is false, the
 * thread passes the result of hps_sim_pulse to hps_sim_pulse_wait, and then begins again. A thread
 * that makes the condition true must call hps_sim_pulse_beat afterwards. */
struct hps_sim_pulse {
    uint32_t beats;     /* number of beats so far */
    uint32_t n_waiting; /* threads in hps_sim_pulse_wait */
};

/* The number of beats so far. */
static inline uint32_t hps_sim_pulse(struct hps_sim_pulse *pulse)
{
    return __atomic_load_n(&pulse->beats, __ATOMIC_SEQ_CST);
}

/* Wait for the next beat. Returns at once if the number of beats is no longer `seen`. May also
 * return without a beat. */
static inline void hps_sim_pulse_wait(struct hps_sim_pulse *pulse, uint32_t seen)
{
    __atomic_fetch_add(&pulse->n_waiting, 1, __ATOMIC_SEQ_CST);
    hps_futex_wait(&pulse->beats, seen);
    __atomic_fetch_sub(&pulse->n_waiting, 1, __ATOMIC_SEQ_CST);
}

static inline void hps_sim_pulse_beat(struct hps_sim_pulse *pulse)
{
    __atomic_fetch_add(&pulse->beats, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pulse->n_waiting, __ATOMIC_SEQ_CST) != 0) {
        hps_futex_wake(&pulse->beats, INT_MAX);
    }
}

#endif
