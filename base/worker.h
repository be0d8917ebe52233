/* SPDX-License-Identifier: Apache-2.0
 *
 * A named thread that works until its owner stops it. The owner provides a function to run, a lock,
 * a condition that wakes the thread, and a flag that stops it. The lock protects the flag and is
 * used with the condition.
 *
 * Only one thread at a time may start, join or stop a worker, and never the worker's own thread.
 */
#ifndef HPS_BASE_WORKER_H
#define HPS_BASE_WORKER_H

#include "base/lock.h"
#include "base/thread.h"

/* To be zeroed before its first use. */
struct hps_worker {
    pthread_t thread;
    bool running; /* started and not yet joined */
};

/* Start a thread that calls run(arg), unless the worker is running. `name` is the name of the
 * thread in tools, cut after 15 bytes. stack_bytes 0: the system's default. EXHAUSTED: the thread
 * cannot be started. */
hps_status hps_worker_start(struct hps_worker *worker, const char *name, size_t stack_bytes,
                            void *(*run)(void *arg), void *arg) HPS_MUST_CHECK;
/* Wait until run() has returned. No effect on a worker that was not started or has been joined. */
void hps_worker_join(struct hps_worker *worker);
/* Set *stopping under `lock`, wake all waiters of `wake`, and join. */
void hps_worker_stop(struct hps_worker *worker, struct hps_lock *lock, struct hps_cond *wake,
                     bool *stopping);

#endif
