/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that run the tasks of one mailbox. They take no signals: the main thread handles those.
 * Any thread may post; the owner frees.
 */
#include "base/pool.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/worker.h"

enum { THREAD_NAME_MAX = 15 }; /* the kernel's limit, without the NUL */

struct worker {
    struct hps_worker thread;
    struct hps_pool *pool;
};

struct hps_pool {
    struct hps_mailbox *mailbox;
    unsigned n_threads; /* started */
    atomic_uint n_busy; /* threads that run a task */
    bool background;
    char name[THREAD_NAME_MAX + 1];
    struct worker workers[];
};

static void *worker_run(void *arg)
{
    struct worker *worker = arg;
    if (worker->pool->background) {
        hps_thread_background();
    }
    struct hps_task *task;
    while ((task = hps_mailbox_wait(worker->pool->mailbox)) != NULL) {
        atomic_fetch_add(&worker->pool->n_busy, 1);
        task->run(task);
        hps_lock_assert_may_wait(); /* no lock is held between tasks */
        atomic_fetch_sub(&worker->pool->n_busy, 1);
    }
    return NULL;
}

static hps_status workers_start(struct hps_pool *pool, unsigned n_threads)
{
    hps_status status = HPS_OK;
    for (unsigned i = 0; i < n_threads && status == HPS_OK; i++) {
        struct worker *worker = &pool->workers[i];
        char number[12];
        char name[THREAD_NAME_MAX + 1];
        int length = snprintf(number, sizeof(number), "-%u", i);
        snprintf(name, sizeof(name), "%.*s%s", THREAD_NAME_MAX - length, pool->name, number);
        worker->pool = pool;
        status = hps_worker_start(&worker->thread, name, 0, worker_run, worker);
        pool->n_threads += status == HPS_OK;
    }
    return status;
}

static hps_status pool_new(const char *name, unsigned n_threads, size_t queue_max, bool background,
                           struct hps_pool **out_pool)
{
    HPS_ASSERT(n_threads > 0);
    struct hps_pool *pool = hps_calloc(1, sizeof(*pool) + n_threads * sizeof(pool->workers[0]));
    if (pool == NULL) {
        return HPS_NO_MEMORY;
    }
    snprintf(pool->name, sizeof(pool->name), "%s", name);
    pool->background = background;
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

hps_status hps_pool_new(const char *name, unsigned n_threads, size_t queue_max,
                        struct hps_pool **out_pool)
{
    return pool_new(name, n_threads, queue_max, false, out_pool);
}

hps_status hps_pool_new_background(const char *name, unsigned n_threads, size_t queue_max,
                                   struct hps_pool **out_pool)
{
    return pool_new(name, n_threads, queue_max, true, out_pool);
}

hps_status hps_pool_post(struct hps_pool *pool, struct hps_task *task)
{
    HPS_ASSERT(task->run != NULL);
    return hps_mailbox_post(pool->mailbox, task);
}

hps_status hps_pool_post_low(struct hps_pool *pool, struct hps_task *task)
{
    HPS_ASSERT(task->run != NULL);
    return hps_mailbox_post_low(pool->mailbox, task);
}

bool hps_pool_withdraw(struct hps_pool *pool, struct hps_task *task)
{
    return hps_mailbox_withdraw(pool->mailbox, task);
}

void hps_pool_free(struct hps_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    hps_lock_assert_may_wait();
    hps_mailbox_close(pool->mailbox);
    for (unsigned i = 0; i < pool->n_threads; i++) {
        HPS_ASSERT(!pthread_equal(pool->workers[i].thread.thread, pthread_self()));
        hps_worker_join(&pool->workers[i].thread);
    }
    HPS_ASSERT(atomic_load(&pool->n_busy) == 0);
    hps_mailbox_free(pool->mailbox);
    hps_free(pool);
}

/* ---- work in pieces -------------------------------------------------------------------------- */

struct split;

struct helper {
    struct hps_task task; /* first */
    struct split *split;
};

/* Freed with the last reference: a helper may start after all is done. */
struct split {
    void (*fn)(void *ctx, uint32_t i);
    void *ctx; /* valid only for a thread that has taken a piece */
    uint32_t n_pieces;
    atomic_uint next;
    atomic_uint n_holders;
    struct hps_lock lock;
    struct hps_cond all_done;
    uint32_t n_done;
    struct helper helpers[];
};

static void split_drop(struct split *split)
{
    unsigned n_holders = atomic_fetch_sub(&split->n_holders, 1);

    HPS_ASSERT(n_holders > 0);
    if (n_holders == 1) {
        hps_cond_fini(&split->all_done);
        hps_lock_fini(&split->lock);
        hps_free(split);
    }
}

static void split_work(struct split *split)
{
    uint32_t n_done = 0;
    uint32_t i = atomic_fetch_add(&split->next, 1);

    for (; i < split->n_pieces; i = atomic_fetch_add(&split->next, 1)) {
        split->fn(split->ctx, i);
        n_done++;
    }
    hps_lock_acquire(&split->lock);
    split->n_done += n_done;
    HPS_ASSERT(split->n_done <= split->n_pieces);
    if (split->n_done == split->n_pieces) {
        hps_cond_signal(&split->all_done);
    }
    hps_lock_release(&split->lock);
}

static void help(struct hps_task *task)
{
    struct split *split = ((struct helper *)task)->split;

    split_work(split);
    split_drop(split);
}

/* NULL: no memory. */
static struct split *split_new(uint32_t n_pieces, unsigned n_helpers,
                               void (*fn)(void *ctx, uint32_t i), void *ctx)
{
    struct split *split = hps_calloc(1, sizeof(*split) + n_helpers * sizeof(split->helpers[0]));

    if (split == NULL) {
        return NULL;
    }
    split->fn = fn;
    split->ctx = ctx;
    split->n_pieces = n_pieces;
    atomic_init(&split->n_holders, n_helpers + 1);
    hps_lock_init(&split->lock, HPS_LOCK_SPLIT);
    hps_cond_init(&split->all_done);
    for (unsigned i = 0; i < n_helpers; i++) {
        split->helpers[i] = (struct helper){.task = {.run = help}, .split = split};
    }
    return split;
}

/* An estimate: a thread may be taking or ending a task right now. */
static unsigned n_free(struct hps_pool *pool)
{
    size_t n_taken = atomic_load(&pool->n_busy) + hps_pool_depth(pool);

    return n_taken < pool->n_threads ? pool->n_threads - (unsigned)n_taken : 0;
}

void hps_pool_split(struct hps_pool *pool, uint32_t n_pieces, void (*fn)(void *ctx, uint32_t i),
                    void *ctx)
{
    unsigned n_helpers = n_free(pool);

    HPS_ASSERT(fn != NULL);
    hps_lock_assert_may_wait();
    if (n_helpers >= n_pieces) {
        n_helpers = n_pieces > 0 ? n_pieces - 1 : 0;
    }
    struct split *split = n_helpers > 0 ? split_new(n_pieces, n_helpers, fn, ctx) : NULL;
    if (split == NULL) {
        for (uint32_t i = 0; i < n_pieces; i++) {
            fn(ctx, i);
        }
        return;
    }
    for (unsigned i = 0; i < n_helpers; i++) {
        if (hps_pool_post(pool, &split->helpers[i].task) != HPS_OK) {
            split_drop(split);
        }
    }
    split_work(split);
    hps_lock_acquire(&split->lock);
    while (split->n_done < split->n_pieces) {
        hps_cond_wait(&split->all_done, &split->lock);
    }
    hps_lock_release(&split->lock);
    split_drop(split);
}

unsigned hps_pool_threads(const struct hps_pool *pool)
{
    return pool->n_threads;
}

size_t hps_pool_depth(const struct hps_pool *pool)
{
    return hps_mailbox_depth(pool->mailbox);
}
