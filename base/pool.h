/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of threads that run the tasks of one bounded mailbox. Made and freed by its owner, while
 * nobody else uses it; the rest is for any thread.
 */
#ifndef HPS_BASE_POOL_H
#define HPS_BASE_POOL_H

#include <stdint.h>

#include "base/mailbox.h"

struct hps_pool;

/* Start n_threads named "name-N". out_pool set only on success. */
hps_status hps_pool_new(const char *name, unsigned n_threads, size_t queue_max,
                        struct hps_pool **out_pool) HPS_MUST_CHECK;
/* A pool whose threads work in the background (hps_thread_background). */
hps_status hps_pool_new_background(const char *name, unsigned n_threads, size_t queue_max,
                                   struct hps_pool **out_pool) HPS_MUST_CHECK;
/* takes `task`; EXHAUSTED when queue_max tasks wait (the caller still owns it). Any thread. */
hps_status hps_pool_post(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* takes `task`, which is run when no task of hps_pool_post waits; not counted in the depth. CLOSED:
 * the pool is being freed (the caller still owns it). Any thread. */
hps_status hps_pool_post_low(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Take back a task of hps_pool_post that no thread has begun, as quickly however many wait; false:
 * one has. Any thread. */
bool hps_pool_withdraw(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Run what is queued, join all threads, free. NULL is legal. */
void hps_pool_free(struct hps_pool *pool);
/* Run fn(ctx, i) for every i below n_pieces, on this thread and on those of the pool that are free;
 * returns when all have been run. This thread does what nobody else takes, so it may be one of the
 * pool's own. */
void hps_pool_split(struct hps_pool *pool, uint32_t n_pieces, void (*fn)(void *ctx, uint32_t i),
                    void *ctx);
unsigned hps_pool_threads(const struct hps_pool *pool);
size_t hps_pool_depth(const struct hps_pool *pool);

#endif
