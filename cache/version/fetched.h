/* SPDX-License-Identifier: Apache-2.0
 *
 * Remembers keys of one version. An insertion job has fetched their rows, after a lookup had been
 * answered without these rows. If the row of such a key is missing again, the memory tiers did not
 * take it or have evicted it. The next lookup of the key then waits for the row, so that the key
 * does not get the default row twice in succession. That lookup also removes the key here: a row
 * that no memory tier keeps must not make every lookup wait. Up to HPS_FETCHED_KEYS keys are
 * remembered; new ones overwrite old ones. Thread-safe; takes a lock only while it allocates its
 * memory.
 */
#ifndef HPS_CACHE_VERSION_FETCHED_H
#define HPS_CACHE_VERSION_FETCHED_H

#include <stdbool.h>

#include "base/types.h"

/* HPS_FETCHED_OFTEN: how often jobs fetch a row before a lookup waits for it. */
enum { HPS_FETCHED_OFTEN = 1, HPS_FETCHED_KEYS = 65536 };

struct hps_fetched;

/* The memory for keys is allocated by the first hps_fetched_note. NULL: no memory. */
struct hps_fetched *hps_fetched_new(void);
void hps_fetched_free(struct hps_fetched *fetched); /* may be NULL */
/* A job has fetched the rows of these keys. Without memory, nothing is remembered. */
void hps_fetched_note(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                      uint32_t n);
/* A lookup has waited for the rows of these keys: forget them. */
void hps_fetched_forget(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                        uint32_t n);
/* Whether jobs have fetched the row at least HPS_FETCHED_OFTEN times. */
bool hps_fetched_often(const struct hps_fetched *fetched, uint32_t table_id, hps_key key);

#endif
