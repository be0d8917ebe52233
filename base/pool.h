/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of threads that run the tasks of one bounded mailbox (base/mailbox.h). One thread, the
 * owner, creates and frees the pool. Any thread may use it between these calls.
 */
#ifndef HPS_BASE_POOL_H
#define HPS_BASE_POOL_H

#include <stdint.h>

#include "base/mailbox.h"

struct hps_pool;

/* Start n_threads threads named "name-0", "name-1", … At most queue_max tasks can be queued.
 * NO_MEMORY: no memory or no descriptor; EXHAUSTED: a thread cannot be started. */
hps_status hps_pool_new(const char *name, unsigned n_threads, size_t queue_max,
                        struct hps_pool **out_pool) HPS_MUST_CHECK;
/* Like hps_pool_new, with low-priority threads (hps_thread_background). */
hps_status hps_pool_new_background(const char *name, unsigned n_threads, size_t queue_max,
                                   struct hps_pool **out_pool) HPS_MUST_CHECK;
/* Queue a task. On OK the pool owns the task, else the caller. EXHAUSTED: queue_max tasks are
 * queued; CLOSED: the pool is being freed. Any thread. */
hps_status hps_pool_post(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Queue a task with low priority: it runs when no task of hps_pool_post is queued. Such tasks do
 * not count towards queue_max and the depth. On OK the pool owns the task, else the caller. CLOSED:
 * the pool is being freed. Any thread. */
hps_status hps_pool_post_low(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Remove a task that was queued by hps_pool_post. True: the caller owns it again. False: a thread
 * has begun to run it. Constant time. Any thread. */
bool hps_pool_withdraw(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Run all queued tasks, join all threads and free the pool. No effect if NULL. */
void hps_pool_free(struct hps_pool *pool);
/* Run fn(ctx, i) for every i below n_pieces, on the calling thread and on free threads of the pool.
 * Returns when all calls have returned. The calling thread may belong to the pool, because it makes
 * all calls that no free thread makes. */
void hps_pool_split(struct hps_pool *pool, uint32_t n_pieces, void (*fn)(void *ctx, uint32_t i),
                    void *ctx);
/* Number of threads. */
unsigned hps_pool_threads(const struct hps_pool *pool);
/* Number of queued tasks. Low-priority tasks do not count. */
size_t hps_pool_depth(const struct hps_pool *pool);

#endif
