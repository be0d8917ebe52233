/* SPDX-License-Identifier: Apache-2.0
 *
 * A named thread that works until its owner stops it. The owner provides its work, a condition that
 * wakes it, and a flag that stops it, both under a lock of the owner.
 *
 * Start, join and stop: threads of the owner, one at a time. The worker never joins itself.
 */
#ifndef HPS_BASE_WORKER_H
#define HPS_BASE_WORKER_H

#include "base/lock.h"
#include "base/thread.h"

/* Zeroed before its first use. */
struct hps_worker {
    pthread_t thread;
    bool running; /* started and not yet joined */
};

/* Start run(arg) unless it is running. `name` is shown by tools, cut after 15 bytes. stack_bytes 0:
 * the system's default. EXHAUSTED: it cannot be started now */
hps_status hps_worker_start(struct hps_worker *worker, const char *name, size_t stack_bytes,
                            void *(*run)(void *arg), void *arg) HPS_MUST_CHECK;
/* Wait until run() has returned. No effect on a worker that was not started or has been joined. */
void hps_worker_join(struct hps_worker *worker);
/* Set *stopping under `lock`, wake all waiters of `wake`, and join. */
void hps_worker_stop(struct hps_worker *worker, struct hps_lock *lock, struct hps_cond *wake,
                     bool *stopping);

#endif
