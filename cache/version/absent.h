/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of one version that are proven to be in no tier, so that unknown traffic does not reach the
 * stores that block again and again. A bounded 4-way cache of whole keys: it forgets, and never
 * takes one key for another. Any thread; looking takes no lock.
 */
#ifndef HPS_CACHE_VERSION_ABSENT_H
#define HPS_CACHE_VERSION_ABSENT_H

#include "backends/store.h"

struct hps_absent;

/* Memory for keys is taken when the first one is added. NULL: no memory. */
struct hps_absent *hps_absent_new(void);
void hps_absent_free(struct hps_absent *absent); /* NULL is legal */

bool hps_absent_has(const struct hps_absent *absent, uint32_t table_id, hps_key key);

/* Remember keys that no tier had. One that is not fresh by `guard` (NULL: all are) is left out; the
 * guard is asked under the lock that hps_absent_remove takes. Without memory nothing is kept. */
void hps_absent_add(struct hps_absent *absent, uint32_t table_id, const hps_key *keys, uint32_t n,
                    const struct hps_insert_guard *guard);

/* The keys exist from now on. Whoever writes rows calls this for their keys while their stamps are
 * odd: before, a walk that began earlier could still add one of them. */
void hps_absent_remove(struct hps_absent *absent, uint32_t table_id, const hps_key *keys,
                       uint32_t n);

#endif
