/* SPDX-License-Identifier: Apache-2.0
 *
 * Remembers keys of one version that are in no tier, so that lookups of these keys do not query the
 * stores that block. The keys are in a 4-way set-associative cache of 65,536 keys: it may forget a
 * key, but never reports a key that was not added. Thread-safe; hps_absent_has takes no lock.
 */
#ifndef HPS_CACHE_VERSION_ABSENT_H
#define HPS_CACHE_VERSION_ABSENT_H

#include "backends/store.h"

struct hps_absent;

/* Returns NULL if there is no memory. The first hps_absent_add allocates the memory for keys. */
struct hps_absent *hps_absent_new(void);
void hps_absent_free(struct hps_absent *absent); /* no effect if NULL */

/* Whether the key is remembered as absent. */
bool hps_absent_has(const struct hps_absent *absent, uint32_t table_id, hps_key key);

/* Remember keys that no tier has. Keys for which guard->fresh returns false are not added. If guard
 * is NULL, all keys are added. guard->fresh is called under the same lock that hps_absent_remove
 * takes. If there is no memory for keys, nothing is remembered. */
void hps_absent_add(struct hps_absent *absent, uint32_t table_id, const hps_key *keys, uint32_t n,
                    const struct hps_insert_guard *guard);

/* Forget keys that a batch of updates writes. Call it after hps_stamps_mark for these keys, and
 * before hps_stamps_end. Otherwise a lookup that began before the batch could add one of the keys
 * afterwards. */
void hps_absent_remove(struct hps_absent *absent, uint32_t table_id, const hps_key *keys,
                       uint32_t n);

#endif
