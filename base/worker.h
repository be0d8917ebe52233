/* SPDX-License-Identifier: Apache-2.0
 *
 * A named thread that works until its owner stops it. What it works on, the condition that wakes it
 * and the flag that stops it are the owner's, below a lock of the owner.
 *
 * Start, join and stop: the owner's threads, one at a time. The worker never joins itself.
 */
#ifndef HPS_BASE_WORKER_H
#define HPS_BASE_WORKER_H

#include "base/lock.h"
#include "base/thread.h"

/* Zeroed before its first use. */
struct hps_worker {
    pthread_t thread;
    bool running; /* to be joined */
};

/* Start run(arg) unless it runs already; `name` is what tools show, cut after 15 bytes. stack_bytes
 * 0: the system's. EXHAUSTED: it cannot be started, now */
hps_status hps_worker_start(struct hps_worker *worker, const char *name, size_t stack_bytes,
                            void *(*run)(void *arg), void *arg) HPS_MUST_CHECK;
/* Wait until run() has returned. A worker that was not started, or was joined, is none to wait for.
 */
void hps_worker_join(struct hps_worker *worker);
/* Set *stopping under `lock`, wake all that wait for `wake`, and join. */
void hps_worker_stop(struct hps_worker *worker, struct hps_lock *lock, struct hps_cond *wake,
                     bool *stopping);

#endif
