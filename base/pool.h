/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of threads that run tasks. Clients share the threads fairly (base/fair.h): the next task
 * belongs to the client that has used least thread time. A task is *quick* if its estimated time is
 * at most HPS_POOL_QUICK. The pool may have extra threads that run only quick tasks. So however
 * many long tasks run, a quick task waits only for other quick ones.
 *
 * One thread, the owner, creates and frees the pool. Any thread may use it between these calls.
 */
#ifndef HPS_BASE_POOL_H
#define HPS_BASE_POOL_H

#include <stdint.h>

#include "base/mailbox.h"

struct hps_pool;

/* Estimated times of tasks, in nanoseconds. QUICK: a lookup of about 30,000 keys. */
enum { HPS_POOL_QUICK = 2000000, HPS_POOL_LONG = HPS_POOL_QUICK + 1 };

struct hps_pool_options {
    const char *name;   /* the threads are named "name-0", "name-1", … */
    unsigned n_threads; /* for any task; at least 1 */
    unsigned n_quick;   /* further threads, for quick tasks */
    size_t queue_max;   /* most queued tasks; 0: no limit */
    bool is_background; /* the threads have low priority (hps_thread_background) */
    /* For a pool that only splits work and takes no tasks: threads that are busy when a split
     * begins help it later. A split queues once for each thread that can help it. A thread runs one
     * piece and takes the next of the queue, so large splits delay small ones little. */
    bool helps_late;
};
/* Start a pool. NO_MEMORY: no memory; EXHAUSTED: a thread cannot be started. */
hps_status hps_pool_start(const struct hps_pool_options *options, struct hps_pool **out_pool)
    HPS_MUST_CHECK;
/* hps_pool_start with these options and defaults for the rest. */
hps_status hps_pool_new(const char *name, unsigned n_threads, size_t queue_max,
                        struct hps_pool **out_pool) HPS_MUST_CHECK;
/* How much of the queue one client may use: at most the part that is free, divided by `share`. 0,
 * the default: no limit. */
void hps_pool_share_set(struct hps_pool *pool, double share);
/* Queue a task that belongs to no client, and is not quick. On OK the pool owns the task, else the
 * caller. EXHAUSTED: queue_max tasks are queued; CLOSED: the pool is being freed. Any thread. */
hps_status hps_pool_post(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Queue a task of a client. Tasks of one client run in their order; quick and slow ones are
 * queued separately. If a task takes longer than its estimated cost, the client gets less
 * afterwards.
 *
 * client   a number that tells clients apart. Clients with the same hash of the number share
 * error    as hps_pool_post, also EXHAUSTED: the client has its share of the queue. Sets *err
 */
hps_status hps_pool_post_for(struct hps_pool *pool, struct hps_task *task, uint64_t client,
                             uint64_t cost, struct hps_error *err) HPS_MUST_CHECK;
/* Queue a task with low priority: it runs when no other task is queued. Such tasks do not count
 * towards queue_max and the depth. On OK the pool owns the task, else the caller. CLOSED: the pool
 * is being freed. Any thread. */
hps_status hps_pool_post_low(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Remove a task that was queued by hps_pool_post or hps_pool_post_for. True: the caller owns it
 * again. False: a thread has begun to run it. Constant time. Any thread. */
bool hps_pool_withdraw(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Run all queued tasks, join all threads and free the pool. No effect if NULL. */
void hps_pool_free(struct hps_pool *pool);
/* Run fn(ctx, i) for every i below n_pieces, on the calling thread and on free threads of the pool,
 * which may be NULL.
 * Returns when all calls have returned. The calling thread may belong to the pool, because it makes
 * all calls that no free thread makes. Other threads stop helping when a task is queued. See also
 * helps_late. */
void hps_pool_split(struct hps_pool *pool, uint32_t n_pieces, void (*fn)(void *ctx, uint32_t i),
                    void *ctx);
/* Number of threads for any task. */
unsigned hps_pool_threads(const struct hps_pool *pool);
/* Number of queued tasks. Low-priority tasks do not count. */
size_t hps_pool_depth(const struct hps_pool *pool);

#endif
