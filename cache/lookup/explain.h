/* SPDX-License-Identifier: Apache-2.0
 *
 * Shows what each tier of a version has for one key. An operator can see where the row of a key
 * comes from. Every tier is queried separately, also tiers below one that has the key.
 */
#ifndef HPS_CACHE_LOOKUP_EXPLAIN_H
#define HPS_CACHE_LOOKUP_EXPLAIN_H

#include "base/arena.h"
#include "base/block.h"
#include "cache/version/tier.h"

struct hps_key_answer {
    enum hps_tier_kind tier;
    bool found;
    const char *error;    /* static text: why there is no answer; NULL: there is one */
    uint64_t duration_us; /* 0: it was not queried */
    uint8_t *row;         /* [table->row_bytes] in the arena; valid if found */
};

/* Query every tier. Nothing is inserted, counted or remembered. A store with an open breaker is not
 * queried.
 *
 * blocks       a pool with a slab that a device can write to
 * out_answers  [HPS_TIERS_MAX], set for the out_n tiers of the version, top to bottom
 * thread       one that may block; it waits for a device until that counts as lost
 * owner        the caller holds a pin of the version
 * error        EXHAUSTED: arena
 */
hps_status hps_explain_key(struct hps_version *version, const struct hps_table *table, hps_key key,
                           struct hps_block_pool *blocks, struct hps_arena *arena,
                           struct hps_key_answer *out_answers, uint32_t *out_n) HPS_MUST_CHECK;

#endif
