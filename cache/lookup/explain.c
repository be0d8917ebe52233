/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks up one key in every tier: see explain.h. On the caller's thread, which waits for a device.
 */
#include "cache/lookup/explain.h"

#include <semaphore.h>
#include <stddef.h>
#include <string.h>

#include "base/assert.h"
#include "base/container.h"
#include "cache/gpu/tier.h"
#include "cache/lookup/tiers.h"

/* ---- stores ---------------------------------------------------------------------------------- */

/* A walk of one key through one tier. */
static void ask_store(struct hps_version *version, const struct hps_table *table, hps_key key,
                      struct hps_key_answer *answer)
{
    const struct hps_walk_call call = {.purpose = HPS_WALK_REPORT,
                                       .unasked = ~hps_tier_bit(answer->tier)};
    uint32_t slot = 0;
    const struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = answer->row, .n = 1};
    struct hps_error err;
    struct hps_walk walk;

    hps_walk_init(&walk, version, table, &batch);
    hps_ignore(hps_walk_rest(&walk, &call, &err)); /* the report has the result */
    const struct hps_tier_report *report = &walk.reports[answer->tier];
    answer->found = report->n_found > 0;
    answer->duration_us = report->duration_us;
    answer->error = report->status == HPS_OK ? NULL : hps_status_text(report->status);
}

/* ---- a device -------------------------------------------------------------------------------- */

/* One key, with a thread that waits for the answer. */
struct question {
    struct hps_gpu_lookup lookup;
    struct hps_gpu_part part;
    hps_key key;
    uint32_t hits;
    sem_t done;
};

static void on_answer(struct hps_gpu_lookup *lookup)
{
    struct question *question = HPS_CONTAINER_OF(lookup, struct question, lookup);

    sem_post(&question->done);
}

static hps_status ask_and_wait(struct question *question)
{
    int failed = sem_init(&question->done, 0, 0);

    HPS_ASSERT(failed == 0);
    hps_status status = hps_gpu_lookup(&question->lookup);
    while (status == HPS_OK && sem_wait(&question->done) != 0) { /* interrupted by a signal */
    }
    sem_destroy(&question->done);
    return status == HPS_OK ? question->lookup.status : status;
}

static void ask_device(struct hps_gpu_space *space, const struct hps_table *table, hps_key key,
                       struct hps_block_pool *blocks, struct hps_key_answer *answer)
{
    struct question question = {.key = key};

    if (!hps_gpu_space_caches(space, table->id)) {
        answer->error = "the device has no cache for this table now";
        return;
    }
    struct hps_block *block = hps_block_new_slab(blocks, table->row_bytes);
    if (block == NULL) {
        answer->error = hps_status_text(HPS_EXHAUSTED);
        return;
    }
    question.part = (struct hps_gpu_part){.table_id = table->id,
                                          .n = 1,
                                          .keys = (const uint8_t *)&question.key,
                                          .hits = &question.hits};
    question.lookup = (struct hps_gpu_lookup){
        .space = space, .block = block, .parts = &question.part, .n_parts = 1, .done = on_answer};
    hps_status status = ask_and_wait(&question);
    answer->duration_us = question.lookup.duration_us;
    answer->found = status == HPS_OK && (question.hits & 1) != 0;
    answer->error = status == HPS_OK ? NULL : hps_status_text(status);
    if (answer->found) {
        memcpy(answer->row, block->data, table->row_bytes);
    }
    hps_block_unref(block);
}

/* ---- all of them ----------------------------------------------------------------------------- */

hps_status hps_explain_key(struct hps_version *version, const struct hps_table *table, hps_key key,
                           struct hps_block_pool *blocks, struct hps_arena *arena,
                           struct hps_key_answer *out_answers, uint32_t *out_n)
{
    struct hps_tier tiers[HPS_TIERS_MAX];
    uint32_t n = hps_version_tiers(version, tiers);

    HPS_ASSERT(table->id < version->n_tables);
    for (uint32_t i = 0; i < n; i++) {
        out_answers[i] = (struct hps_key_answer){.tier = tiers[i].kind,
                                                 .row = hps_arena_alloc(arena, table->row_bytes)};
        if (out_answers[i].row == NULL) {
            return HPS_EXHAUSTED;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if ((tiers[i].caps & HPS_CAP_ON_DEVICE) != 0) {
            ask_device(version->gpu, table, key, blocks, &out_answers[i]);
        } else {
            ask_store(version, table, key, &out_answers[i]);
        }
    }
    *out_n = n;
    return HPS_OK;
}
