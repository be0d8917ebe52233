/* SPDX-License-Identifier: Apache-2.0
 *
 * What each tier of a version has of one key, for an operator who wants to know where its row comes
 * from: every tier is asked by itself, also those below one that has the key. A thread that may
 * block.
 */
#ifndef HPS_CACHE_LOOKUP_EXPLAIN_H
#define HPS_CACHE_LOOKUP_EXPLAIN_H

#include "base/arena.h"
#include "base/block.h"
#include "cache/version/tier.h"

struct hps_key_answer {
    enum hps_tier_kind tier;
    bool found;
    const char *error;    /* static text: why it could not answer; NULL: it did */
    uint64_t duration_us; /* 0: it was not asked */
    uint8_t *row;         /* [table->row_bytes] of the arena; only where found */
};

/* Ask every tier. Nothing is inserted, counted or remembered; a store whose breaker is open is not
 * asked.
 *
 * blocks       whose slab a device can write to
 * out_answers  [HPS_TIERS_MAX] of the out_n tiers of the version, top to bottom
 * thread       one that may block; of a device until it counts as lost at most
 * owner        the caller holds a pin of the version
 * error        EXHAUSTED: arena
 */
hps_status hps_explain_key(struct hps_version *version, const struct hps_table *table, hps_key key,
                           struct hps_block_pool *blocks, struct hps_arena *arena,
                           struct hps_key_answer *out_answers, uint32_t *out_n) HPS_MUST_CHECK;

#endif
