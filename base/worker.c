/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that an owner starts and stops: see worker.h.
 */
#include "base/worker.h"

#include <stdio.h>

enum { NAME_BYTES = 16 }; /* the kernel's limit */

hps_status hps_worker_start(struct hps_worker *worker, const char *name, size_t stack_bytes,
                            void *(*run)(void *arg), void *arg)
{
    char text[NAME_BYTES];
    if (worker->running) {
        return HPS_OK;
    }
    hps_status status = hps_thread_start(stack_bytes, run, arg, &worker->thread);
    if (status == HPS_OK) {
        worker->running = true;
        snprintf(text, sizeof(text), "%s", name);
        (void)pthread_setname_np(worker->thread, text);
    }
    return status;
}

void hps_worker_join(struct hps_worker *worker)
{
    if (worker->running) {
        int failed = pthread_join(worker->thread, NULL);
        HPS_ASSERT(failed == 0);
        worker->running = false;
    }
}

void hps_worker_stop(struct hps_worker *worker, struct hps_lock *lock, struct hps_cond *wake,
                     bool *stopping)
{
    hps_lock_acquire(lock);
    *stopping = true;
    hps_cond_broadcast(wake);
    hps_lock_release(lock);
    hps_worker_join(worker);
}
