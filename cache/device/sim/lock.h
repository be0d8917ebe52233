/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks and wake-ups of the simulated device, on futexes: those of pthreads would order the host
 * and the streams in ThreadSanitizer's eyes, which is for events alone. Only for files that are
 * compiled without it. Any thread; who waits uses no time.
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
    uint32_t state; /* 0: free; 1: taken; 2: taken, and somebody may wait */
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

/* ---- a pulse: something has changed, whoever waits should look again ------------------------- */

struct hps_sim_pulse {
    uint32_t beats;
    uint32_t n_waiting;
};

/* Before looking. */
static inline uint32_t hps_sim_pulse(struct hps_sim_pulse *pulse)
{
    return __atomic_load_n(&pulse->beats, __ATOMIC_SEQ_CST);
}

/* Until it beats; at once if it has since `seen`. */
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
