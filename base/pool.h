/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of threads that run the tasks of one bounded mailbox. The owner creates and frees it; no
 * other thread may use it at that time. Other calls: any thread.
 */
#ifndef HPS_BASE_POOL_H
#define HPS_BASE_POOL_H

#include <stdint.h>

#include "base/mailbox.h"

struct hps_pool;

/* Start n_threads named "name-N". */
hps_status hps_pool_new(const char *name, unsigned n_threads, size_t queue_max,
                        struct hps_pool **out_pool) HPS_MUST_CHECK;
/* A pool with low-priority threads (hps_thread_background). */
hps_status hps_pool_new_background(const char *name, unsigned n_threads, size_t queue_max,
                                   struct hps_pool **out_pool) HPS_MUST_CHECK;
/* takes `task`. EXHAUSTED: queue_max tasks wait; the caller still owns it. Any thread. */
hps_status hps_pool_post(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* takes `task`, which runs when no task of hps_pool_post waits. It does not count towards the
 * depth. CLOSED: the pool is being freed; the caller still owns the task. Any thread. */
hps_status hps_pool_post_low(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Take back a task of hps_pool_post. False: a thread has begun it. Takes constant time. Any thread.
 */
bool hps_pool_withdraw(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Run all queued tasks, join all threads, free. No effect if NULL. */
void hps_pool_free(struct hps_pool *pool);
/* Run fn(ctx, i) for every i below n_pieces, on this thread and on free threads of the pool.
 * Returns when all have run. This thread runs all pieces that no other takes, so it may belong to
 * the pool. */
void hps_pool_split(struct hps_pool *pool, uint32_t n_pieces, void (*fn)(void *ctx, uint32_t i),
                    void *ctx);
unsigned hps_pool_threads(const struct hps_pool *pool);
size_t hps_pool_depth(const struct hps_pool *pool);

#endif
