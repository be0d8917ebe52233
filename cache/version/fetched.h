/* SPDX-License-Identifier: Apache-2.0
 *
 * Remembers rows of one version that an insertion job fetched after a lookup had been answered
 * without them. If such a row is missing again, the cache did not take it or evicted it before it
 * was used. The next lookup then waits for the row, so that a key does not get the default row
 * twice in succession. That lookup also removes the note: one row that does not stay must not
 * disable asynchronous insertion permanently. The number of notes is bounded; new notes overwrite
 * old ones. Thread-safe; only the first note takes a lock.
 */
#ifndef HPS_CACHE_VERSION_FETCHED_H
#define HPS_CACHE_VERSION_FETCHED_H

#include <stdbool.h>

#include "base/types.h"

/* HPS_FETCHED_OFTEN: how often a row is fetched after answers before a lookup waits for it. */
enum { HPS_FETCHED_OFTEN = 1, HPS_FETCHED_KEYS = 65536 };

struct hps_fetched;

/* Memory is allocated with the first note. NULL: no memory. */
struct hps_fetched *hps_fetched_new(void);
void hps_fetched_free(struct hps_fetched *fetched); /* may be NULL */
/* Note that these rows were fetched. No effect without memory. */
void hps_fetched_note(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                      uint32_t n);
/* A lookup has waited for these rows. */
void hps_fetched_forget(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                        uint32_t n);
bool hps_fetched_often(const struct hps_fetched *fetched, uint32_t table_id, hps_key key);

#endif
