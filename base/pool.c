/* SPDX-License-Identifier: Apache-2.0
 *
 * Worker threads over one mailbox. Workers take no signals: those are the main thread's. Any thread
 * may post; the creator frees.
 */
#include "base/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/heap.h"

enum { THREAD_NAME_MAX = 15 }; /* the kernel's limit, without the NUL */

struct worker {
    pthread_t thread;
    struct hps_pool *pool;
    unsigned index;
};

struct hps_pool {
    struct hps_mailbox *mailbox;
    unsigned n_threads; /* started */
    char name[THREAD_NAME_MAX + 1];
    struct worker workers[];
};

static void worker_set_name(const struct worker *worker)
{
    char number[12];
    char name[THREAD_NAME_MAX + 1];
    int length = snprintf(number, sizeof(number), "-%u", worker->index);
    snprintf(name, sizeof(name), "%.*s%s", THREAD_NAME_MAX - length, worker->pool->name, number);
    pthread_setname_np(pthread_self(), name);
}

static void *worker_run(void *arg)
{
    struct worker *worker = arg;
    worker_set_name(worker);
    struct hps_task *task;
    while ((task = hps_mailbox_wait(worker->pool->mailbox)) != NULL) {
        task->run(task);
    }
    return NULL;
}

static hps_status workers_start(struct hps_pool *pool, unsigned n_threads)
{
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    hps_status status = HPS_OK;
    for (unsigned i = 0; i < n_threads; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        if (pthread_create(&worker->thread, NULL, worker_run, worker) != 0) {
            status = HPS_EXHAUSTED;
            break;
        }
        pool->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

hps_status hps_pool_new(const char *name, unsigned n_threads, size_t queue_max,
                        struct hps_pool **out_pool)
{
    HPS_ASSERT(n_threads > 0);
    struct hps_pool *pool = hps_calloc(1, sizeof(*pool) + n_threads * sizeof(pool->workers[0]));
    if (pool == NULL) {
        return HPS_NO_MEMORY;
    }
    snprintf(pool->name, sizeof(pool->name), "%s", name);
    pool->mailbox = hps_mailbox_new(queue_max);
    if (pool->mailbox == NULL) {
        hps_free(pool);
        return HPS_NO_MEMORY;
    }
    hps_status status = workers_start(pool, n_threads);
    if (status != HPS_OK) {
        hps_pool_free(pool);
        return status;
    }
    *out_pool = pool;
    return HPS_OK;
}

hps_status hps_pool_post(struct hps_pool *pool, struct hps_task *task)
{
    return hps_mailbox_post(pool->mailbox, task);
}

void hps_pool_free(struct hps_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    hps_mailbox_close(pool->mailbox);
    for (unsigned i = 0; i < pool->n_threads; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    hps_mailbox_free(pool->mailbox);
    hps_free(pool);
}

unsigned hps_pool_threads(const struct hps_pool *pool)
{
    return pool->n_threads;
}

size_t hps_pool_depth(const struct hps_pool *pool)
{
    return hps_mailbox_depth(pool->mailbox);
}
