/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows of one version were fetched behind answers of late. A row that was, and misses again
 * when it is asked for, has found no place in the cache, or lost it before anybody had the use of
 * it: whoever asks next waits for it, so that a key is never answered with the default row twice
 * in succession for want of a place. Then its note is removed, and the policy decides again: one
 * row without a place must not turn it off for good. Bounded: notes are overwritten. Any thread;
 * only the first note takes a lock.
 */
#ifndef HPS_CACHE_VERSION_FETCHED_H
#define HPS_CACHE_VERSION_FETCHED_H

#include <stdbool.h>

#include "base/types.h"

/* Times that a row is fetched behind answers, before one waits for it. */
enum { HPS_FETCHED_OFTEN = 1, HPS_FETCHED_KEYS = 65536 };

struct hps_fetched;

/* Memory for keys is taken when the first one is noted. NULL: no memory. */
struct hps_fetched *hps_fetched_new(void);
void hps_fetched_free(struct hps_fetched *fetched); /* NULL is legal */
/* Without memory nothing is noted. */
void hps_fetched_note(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                      uint32_t n);
/* Somebody has waited for these. */
void hps_fetched_forget(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                        uint32_t n);
bool hps_fetched_often(const struct hps_fetched *fetched, uint32_t table_id, hps_key key);

#endif
