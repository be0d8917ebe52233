/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that run the tasks of one fair queue. They take no signals: the main thread handles
 * those. Any thread may post; the owner frees.
 */
#include "base/pool.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/worker.h"

enum {
    THREAD_NAME_MAX = 15, /* the kernel's limit, without the NUL */
    N_CLIENTS = 512,
    QUANTUM = 2 * HPS_POOL_QUICK
};

/* The flows of a client: its quick tasks, and its other ones. */
struct client {
    struct hps_fair_flow quick, slow;
};

/* Threads that wait for the same tasks. Each post wakes one more: n_woken of them have been woken
 * and do not run yet. */
struct crew {
    struct hps_cond filled;
    unsigned n_waiting, n_woken;
};

struct worker {
    struct hps_worker thread;
    struct hps_pool *pool;
    struct crew *crew;
};

/* The lock protects all fields, unless their comments say otherwise. */
struct hps_pool {
    struct hps_lock lock;
    struct crew any, quick;
    struct hps_fair tasks;         /* of clients, and helpers of splits */
    struct hps_fair low;           /* of low priority */
    struct hps_fair_flow low_flow; /* its only one */
    struct hps_fair_flow helpers;
    struct client clients[N_CLIENTS];
    atomic_size_t depth; /* tasks of clients; written under lock */
    double share;
    unsigned n_busy; /* threads that run a task */
    bool closed;
    struct hps_pool_options options; /* constant */
    unsigned n_started;              /* the owner's */
    struct worker workers[];         /* the owner's */
};

/* ---- threads --------------------------------------------------------------------------------- */

/* False: no thread of the crew waits. */
static bool wake(struct crew *crew)
{
    if (crew->n_waiting == crew->n_woken) {
        return false;
    }
    crew->n_woken++;
    hps_cond_signal(&crew->filled);
    return true;
}

static void wait_for_task(struct hps_pool *pool, struct crew *crew)
{
    crew->n_waiting++;
    hps_cond_wait(&crew->filled, &pool->lock);
    crew->n_waiting--;
    crew->n_woken -= crew->n_woken > 0;
}

/* lock is held. A task may be posted to another pool as soon as it is removed, under the lock of
 * that one. So under this lock only the answer "queued here" is reliable. */
static void set_in(struct hps_task *task, struct hps_pool *pool)
{
    atomic_store_explicit(&task->in, pool, memory_order_relaxed);
}

static void remove_task(struct hps_pool *pool, struct hps_task *task)
{
    set_in(task, NULL);
    hps_fair_remove(&pool->tasks, &task->item);
    size_t before = atomic_fetch_sub_explicit(&pool->depth, 1, memory_order_relaxed);
    HPS_ASSERT(before > 0);
}

static bool of_client(const struct hps_pool *pool, const struct hps_fair_flow *flow)
{
    return flow != &pool->helpers && flow != &pool->low_flow;
}

/* The next task for a thread of the crew; NULL: none. */
static struct hps_task *take(struct hps_pool *pool, const struct crew *crew)
{
    struct hps_fair *fair = &pool->tasks;
    struct hps_fair_item *item = hps_fair_first(fair, crew == &pool->quick);

    if (item == NULL && crew == &pool->any) {
        fair = &pool->low;
        item = hps_fair_first(fair, false);
    }
    if (item == NULL) {
        return NULL;
    }
    struct hps_task *task = HPS_CONTAINER_OF(item, struct hps_task, item);
    if (of_client(pool, item->flow)) {
        remove_task(pool, task);
        hps_fair_spend(fair, item->flow, task->cost);
    } else {
        hps_fair_remove(fair, item);
    }
    return task;
}

/* Runs a task, and charges its flow for the time beyond its estimated cost. */
static void run_task(struct hps_pool *pool, struct hps_task *task)
{
    struct hps_fair_flow *flow = task->item.flow; /* running may free the task */
    uint64_t cost = task->cost;
    bool charged = of_client(pool, flow);

    pool->n_busy++;
    hps_lock_release(&pool->lock);
    uint64_t start_us = hps_clock_us();
    task->run(task);
    hps_lock_assert_may_wait(); /* no lock is held between tasks */
    uint64_t ns = (hps_clock_us() - start_us) * 1000;
    hps_lock_acquire(&pool->lock);
    pool->n_busy--;
    if (charged && ns > cost) {
        hps_fair_spend(&pool->tasks, flow, ns - cost);
    }
}

static void *worker_run(void *arg)
{
    struct worker *worker = arg;
    struct hps_pool *pool = worker->pool;
    if (pool->options.is_background) {
        hps_thread_background();
    }
    hps_lock_acquire(&pool->lock);
    for (;;) {
        struct hps_task *task = take(pool, worker->crew);
        if (task != NULL) {
            if (!task->item.flow->is_quick && hps_fair_first(&pool->tasks, true) != NULL) {
                wake(&pool->quick); /* this thread was woken for a quick task */
            }
            run_task(pool, task);
        } else if (pool->closed) {
            break;
        } else {
            wait_for_task(pool, worker->crew);
        }
    }
    hps_lock_release(&pool->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static hps_status workers_start(struct hps_pool *pool)
{
    const struct hps_pool_options *options = &pool->options;
    hps_status status = HPS_OK;
    for (unsigned i = 0; i < options->n_threads + options->n_quick && status == HPS_OK; i++) {
        struct worker *worker = &pool->workers[i];
        char number[12];
        char name[THREAD_NAME_MAX + 1];
        int length = snprintf(number, sizeof(number), "-%u", i);
        snprintf(name, sizeof(name), "%.*s%s", THREAD_NAME_MAX - length, options->name, number);
        worker->pool = pool;
        worker->crew = i < options->n_threads ? &pool->any : &pool->quick;
        status = hps_worker_start(&worker->thread, name, 0, worker_run, worker);
        pool->n_started += status == HPS_OK;
    }
    return status;
}

hps_status hps_pool_start(const struct hps_pool_options *options, struct hps_pool **out_pool)
{
    HPS_ASSERT(options->n_threads > 0);
    unsigned n = options->n_threads + options->n_quick;
    struct hps_pool *pool = hps_calloc(1, sizeof(*pool) + n * sizeof(pool->workers[0]));
    if (pool == NULL) {
        return HPS_NO_MEMORY;
    }
    hps_lock_init(&pool->lock, HPS_LOCK_POOL);
    hps_cond_init(&pool->any.filled);
    hps_cond_init(&pool->quick.filled);
    hps_fair_init(&pool->tasks, QUANTUM);
    hps_fair_init(&pool->low, QUANTUM);
    pool->helpers.is_quick = true;
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        pool->clients[i].quick.is_quick = true;
    }
    pool->options = *options;
    hps_status status = workers_start(pool);
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
    const struct hps_pool_options options = {
        .name = name, .n_threads = n_threads, .queue_max = queue_max};

    return hps_pool_start(&options, out_pool);
}

void hps_pool_share_set(struct hps_pool *pool, double share)
{
    hps_lock_acquire(&pool->lock);
    pool->share = share;
    hps_lock_release(&pool->lock);
}

void hps_pool_free(struct hps_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    hps_lock_assert_may_wait();
    hps_lock_acquire(&pool->lock);
    pool->closed = true;
    hps_cond_broadcast(&pool->any.filled);
    hps_cond_broadcast(&pool->quick.filled);
    hps_lock_release(&pool->lock);
    for (unsigned i = 0; i < pool->n_started; i++) {
        HPS_ASSERT(!pthread_equal(pool->workers[i].thread.thread, pthread_self()));
        hps_worker_join(&pool->workers[i].thread);
    }
    /* A sender may still be about to unlock after its task has run. */
    hps_lock_acquire(&pool->lock);
    HPS_ASSERT(pool->n_busy == 0 && pool->tasks.n_items == 0 && pool->low.n_items == 0);
    hps_lock_release(&pool->lock);
    hps_cond_fini(&pool->any.filled);
    hps_cond_fini(&pool->quick.filled);
    hps_lock_fini(&pool->lock);
    hps_free(pool);
}

/* ---- posting --------------------------------------------------------------------------------- */

static bool has_space(const struct hps_pool *pool, uint32_t n_own)
{
    size_t max = pool->options.queue_max;
    size_t depth = atomic_load_explicit(&pool->depth, memory_order_relaxed);

    if (max == 0) {
        return true;
    }
    /* One task of a client always has space, if there is any. */
    return depth < max && (n_own == 0 || pool->share == 0 ||
                           (n_own + 1) * pool->share <= (double)(max - depth - 1));
}

/* lock is held. */
static void add(struct hps_pool *pool, struct hps_fair *fair, struct hps_fair_flow *flow,
                struct hps_task *task, uint64_t cost)
{
    HPS_ASSERT(task->run != NULL);
    task->cost = cost;
    hps_fair_add(fair, flow, &task->item);
    if (!wake(&pool->any) && flow->is_quick) {
        wake(&pool->quick);
    }
}

/* *out_n_own: the queued tasks of the client, before. */
static hps_status post(struct hps_pool *pool, struct hps_task *task, struct client *client,
                       uint64_t cost, bool shares, uint32_t *out_n_own)
{
    struct hps_fair_flow *flow = cost <= HPS_POOL_QUICK ? &client->quick : &client->slow;
    hps_status status = HPS_OK;

    HPS_ASSERT(!pool->options.helps_late);
    hps_lock_acquire(&pool->lock);
    *out_n_own = client->quick.n_items + client->slow.n_items;
    if (pool->closed) {
        status = HPS_CLOSED;
    } else if (!has_space(pool, shares ? *out_n_own : 0)) {
        status = HPS_EXHAUSTED;
    } else {
        set_in(task, pool);
        atomic_fetch_add_explicit(&pool->depth, 1, memory_order_relaxed);
        add(pool, &pool->tasks, flow, task, cost);
    }
    hps_lock_release(&pool->lock);
    return status;
}

hps_status hps_pool_post(struct hps_pool *pool, struct hps_task *task)
{
    uint32_t n_own;

    return post(pool, task, &pool->clients[0], HPS_POOL_LONG, false, &n_own);
}

hps_status hps_pool_post_for(struct hps_pool *pool, struct hps_task *task, uint64_t client,
                             uint64_t cost, struct hps_error *err)
{
    uint64_t i = hps_mix64(client ^ hps_hash_secret()) % (N_CLIENTS - 1) + 1;
    uint32_t n_own;
    hps_status status = post(pool, task, &pool->clients[i], cost, true, &n_own);

    if (status != HPS_OK) {
        hps_ignore(hps_error_set(err, status,
                                 "call rejected: %zu calls wait for a thread of the pool '%s', %u "
                                 "of them of this client; retry later",
                                 hps_pool_depth(pool), pool->options.name, n_own));
    }
    return status;
}

hps_status hps_pool_post_low(struct hps_pool *pool, struct hps_task *task)
{
    HPS_ASSERT(!pool->options.helps_late);
    hps_lock_acquire(&pool->lock);
    hps_status status = pool->closed ? HPS_CLOSED : HPS_OK;
    if (status == HPS_OK) {
        set_in(task, NULL);
        add(pool, &pool->low, &pool->low_flow, task, 0);
    }
    hps_lock_release(&pool->lock);
    return status;
}

bool hps_pool_withdraw(struct hps_pool *pool, struct hps_task *task)
{
    hps_lock_acquire(&pool->lock);
    bool waits = atomic_load_explicit(&task->in, memory_order_relaxed) == pool;
    if (waits) {
        remove_task(pool, task);
    }
    hps_lock_release(&pool->lock);
    return waits;
}

/* ---- work in pieces -------------------------------------------------------------------------- */

struct split;

struct helper {
    struct hps_task task; /* first */
    struct split *split;
};

/* Freed with the last reference: a helper may start after all is done. */
struct split {
    struct hps_pool *pool;
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

/* helps: the caller is a thread that helps, which stops when a task is queued. */
static void split_work(struct split *split, bool helps)
{
    uint32_t n_done = 0;
    uint32_t n_most = helps && split->pool->options.helps_late ? 1 : UINT32_MAX;

    while (n_done < n_most && (!helps || hps_pool_depth(split->pool) == 0)) {
        uint32_t i = atomic_fetch_add(&split->next, 1);
        if (i >= split->n_pieces) {
            break;
        }
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
    struct hps_pool *pool = split->pool;

    split_work(split, true);
    if (pool->options.helps_late && atomic_load(&split->next) < split->n_pieces) {
        hps_lock_acquire(&pool->lock);
        hps_fair_add(&pool->tasks, &pool->helpers, &task->item); /* this thread takes one next */
        hps_lock_release(&pool->lock);
    } else {
        split_drop(split);
    }
}

/* NULL: no memory. */
static struct split *split_new(struct hps_pool *pool, uint32_t n_pieces, unsigned n_helpers,
                               void (*fn)(void *ctx, uint32_t i), void *ctx)
{
    struct split *split = hps_calloc(1, sizeof(*split) + n_helpers * sizeof(split->helpers[0]));

    if (split == NULL) {
        return NULL;
    }
    split->pool = pool;
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

/* Threads that can help a split. 0 while the pool is freed: its threads may have ended. */
static unsigned n_helping(struct hps_pool *pool)
{
    unsigned n = pool->options.n_threads;
    unsigned n_taken = 0;

    hps_lock_acquire(&pool->lock);
    if (pool->closed) {
        n_taken = n;
    } else if (!pool->options.helps_late) {
        n_taken = pool->n_busy + pool->tasks.n_items;
    }
    hps_lock_release(&pool->lock);

    return n_taken < n ? n - n_taken : 0;
}

void hps_pool_split(struct hps_pool *pool, uint32_t n_pieces, void (*fn)(void *ctx, uint32_t i),
                    void *ctx)
{
    unsigned n_helpers = pool != NULL ? n_helping(pool) : 0;

    HPS_ASSERT(fn != NULL);
    hps_lock_assert_may_wait();
    if (n_helpers >= n_pieces) {
        n_helpers = n_pieces > 0 ? n_pieces - 1 : 0;
    }
    struct split *split = n_helpers > 0 ? split_new(pool, n_pieces, n_helpers, fn, ctx) : NULL;
    if (split == NULL) {
        for (uint32_t i = 0; i < n_pieces; i++) {
            fn(ctx, i);
        }
        return;
    }
    hps_lock_acquire(&pool->lock);
    for (unsigned i = 0; i < n_helpers; i++) {
        add(pool, &pool->tasks, &pool->helpers, &split->helpers[i].task, 0);
    }
    hps_lock_release(&pool->lock);
    split_work(split, false);
    hps_lock_acquire(&split->lock);
    while (split->n_done < split->n_pieces) {
        hps_cond_wait(&split->all_done, &split->lock);
    }
    hps_lock_release(&split->lock);
    split_drop(split);
}

unsigned hps_pool_threads(const struct hps_pool *pool)
{
    return pool->options.n_threads;
}

size_t hps_pool_depth(const struct hps_pool *pool)
{
    return atomic_load_explicit(&pool->depth, memory_order_relaxed);
}
