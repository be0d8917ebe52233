/* SPDX-License-Identifier: Apache-2.0
 *
 * Shows which row each tier of a version has for one key, so that an operator can see where the row
 * comes from. Every tier is queried separately, also tiers below a tier that has the key.
 */
#ifndef HPS_CACHE_LOOKUP_EXPLAIN_H
#define HPS_CACHE_LOOKUP_EXPLAIN_H

#include "base/arena.h"
#include "base/block.h"
#include "cache/version/tier.h"

struct hps_key_answer {
    enum hps_tier_kind tier;
    bool found;
    const char *error;    /* static text: why the tier has not answered; NULL: it has answered */
    uint64_t duration_us; /* duration of the query; 0 if the tier was not queried */
    uint8_t *row;         /* [table->row_bytes] as stored, in the arena; valid if `found` */
};

/* Query every tier. Inserts no rows, and changes neither the metrics of lookups nor the keys
 * remembered as absent. A store with an open breaker is not queried.
 *
 * blocks       a pool with a slab to which a device can write; not used without a gpu tier
 * out_answers  [HPS_TIERS_MAX], set for the *out_n tiers of the version, from the top down
 * thread       one that may block; the call waits until a device has answered or counts as lost
 * owner        the caller holds a pin of the version
 * error        EXHAUSTED: the arena is full
 */
hps_status hps_explain_key(struct hps_version *version, const struct hps_table *table, hps_key key,
                           struct hps_block_pool *blocks, struct hps_arena *arena,
                           struct hps_key_answer *out_answers, uint32_t *out_n) HPS_MUST_CHECK;

#endif
