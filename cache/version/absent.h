/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of one version that are known to be in no tier. Lookups of unknown keys then do not reach
 * the stores that block. A bounded 4-way set-associative cache of whole keys: it may forget a key,
 * but never confuses two keys. Thread-safe; hps_absent_has takes no lock.
 */
#ifndef HPS_CACHE_VERSION_ABSENT_H
#define HPS_CACHE_VERSION_ABSENT_H

#include "backends/store.h"

struct hps_absent;

/* Memory for keys is allocated with the first key. NULL: no memory. */
struct hps_absent *hps_absent_new(void);
void hps_absent_free(struct hps_absent *absent); /* may be NULL */

bool hps_absent_has(const struct hps_absent *absent, uint32_t table_id, hps_key key);

/* Remember keys that no tier has, except keys that `guard` reports as not fresh; guard NULL: all
 * are fresh. It is called under the lock that hps_absent_remove takes. Without memory, nothing is
 * remembered. */
void hps_absent_add(struct hps_absent *absent, uint32_t table_id, const hps_key *keys, uint32_t n,
                    const struct hps_insert_guard *guard);

/* Forget keys that an update is about to write. Call it after marking their stamps and before the
 * batch ends, or a walk that began earlier could still add a key. */
void hps_absent_remove(struct hps_absent *absent, uint32_t table_id, const hps_key *keys,
                       uint32_t n);

#endif
