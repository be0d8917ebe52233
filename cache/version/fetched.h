/* SPDX-License-Identifier: Apache-2.0
 *
 * Remembers the keys of one version whose rows insertion jobs (cache/lookup/insertion.h) have
 * fetched. Such a job fetches a row after a lookup has returned the default row instead. If a later
 * lookup misses a remembered key, the memory tiers did not store its row, or have evicted it. This
 * lookup then waits for the row, so that clients do not get the default row twice in succession. It
 * also forgets the key, because a row that no memory tier keeps must not make every lookup wait.
 *
 * Up to HPS_FETCHED_KEYS keys are remembered; new ones overwrite old ones. Thread-safe; takes a
 * lock only while it allocates its memory.
 */
#ifndef HPS_CACHE_VERSION_FETCHED_H
#define HPS_CACHE_VERSION_FETCHED_H

#include <stdbool.h>

#include "base/types.h"

/* HPS_FETCHED_OFTEN: once jobs have fetched a row this many times, a lookup that misses it waits
 * for the row. HPS_FETCHED_KEYS: maximum number of remembered keys. */
enum { HPS_FETCHED_OFTEN = 1, HPS_FETCHED_KEYS = 65536 };

struct hps_fetched;

/* Returns NULL if there is no memory. The first hps_fetched_note allocates the memory for keys. */
struct hps_fetched *hps_fetched_new(void);
void hps_fetched_free(struct hps_fetched *fetched); /* no effect if NULL */
/* Remember that a job has fetched the rows of these keys. If there is no memory for keys, nothing
 * is remembered. */
void hps_fetched_note(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                      uint32_t n);
/* Forget the keys of rows that a lookup has waited for. */
void hps_fetched_forget(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                        uint32_t n);
/* Whether jobs have fetched the row of the key at least HPS_FETCHED_OFTEN times. */
bool hps_fetched_often(const struct hps_fetched *fetched, uint32_t table_id, hps_key key);

#endif
