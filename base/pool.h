/* SPDX-License-Identifier: Apache-2.0
 *
 * Worker threads over one bounded mailbox.
 */
#ifndef HPS_BASE_POOL_H
#define HPS_BASE_POOL_H

#include "base/mailbox.h"

struct hps_pool;

/* Start n_threads named "name-N". out_pool set only on success. */
hps_status hps_pool_new(const char *name, unsigned n_threads, size_t queue_max,
                        struct hps_pool **out_pool) HPS_MUST_CHECK;
/* takes `task`; EXHAUSTED when queue_max tasks wait (the caller still owns it). Any thread. */
hps_status hps_pool_post(struct hps_pool *pool, struct hps_task *task) HPS_MUST_CHECK;
/* Run what is queued, join all threads, free. NULL is legal. */
void hps_pool_free(struct hps_pool *pool);
unsigned hps_pool_threads(const struct hps_pool *pool);
size_t hps_pool_depth(const struct hps_pool *pool);

#endif
