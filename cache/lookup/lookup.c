/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of one lookup, in order: see lookup.h. internal.h lists the other files. On the thread
 * that owns the lookup.
 */
#include "cache/lookup/lookup.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "cache/lookup/internal.h"
#include "cache/update/update.h"

void hps_lookup_again(struct hps_lookup *lookup)
{
    HPS_ASSERT(!lookup->gpu.asked);
    hps_lookup_release(lookup);
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        lookup_reset_part(&lookup->parts[i]);
    }
    memset(lookup->tier_us, 0, sizeof(lookup->tier_us));
    lookup->others_us = 0;
    lookup->begun = false;
    lookup->ahead = false;
    lookup->torn = false;
}

/* ---- running --------------------------------------------------------------------------------- */

struct hps_walk_call lookup_walk_call(const struct hps_lookup *lookup, uint64_t deadline_us)
{
    return (struct hps_walk_call){.purpose = HPS_WALK_ANSWER,
                                  .scratch = lookup->scratch,
                                  .deadline_us = deadline_us,
                                  .cancelled = lookup->cancelled,
                                  .cancelled_ctx = lookup->cancelled_ctx,
                                  .insertion = lookup->insertion,
                                  .exact = lookup->unit};
}

/* Once per try of a lookup, whatever its result. helpers: see lookup_add_bags */
static hps_status conclude(struct hps_lookup *lookup, hps_status status, struct hps_pool *helpers,
                           struct hps_error *err)
{
    bool tier_asked[HPS_TIER_COUNT] = {false};

    status = lookup_check_unit(lookup, status, err);
    if (status == HPS_OK && lookup->n_pooled > 0) {
        status = lookup_add_bags(lookup, helpers, err);
    }
    if (!lookup->torn) { /* else its rows may be read again before they are added */
        hps_lookup_release(lookup);
    }
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        if (lookup->parts[i].rows != NULL) { /* it was started */
            lookup_count_part(lookup, &lookup->parts[i], tier_asked);
            hps_walk_note_capacity(&lookup->parts[i].walk, lookup->version, HPS_WALK_ANSWER);
        }
    }
    if (lookup->metrics != NULL) {
        lookup_observe_tiers(lookup->metrics, lookup->tier_us, tier_asked);
    }
    if (status != HPS_ABORTED && !lookup->rereads) { /* else it is tried again, or is a reread */
        lookup_count_end(lookup, status == HPS_OK);
    }
    return status;
}

/* Link the walks of the parts that are not answered yet. */
static struct hps_walk *link_walks(struct hps_lookup *lookup)
{
    struct hps_walk *first = NULL;

    for (uint32_t i = lookup->n_parts; i-- > 0;) {
        if (!lookup->parts[i].finished) {
            lookup->parts[i].walk.next = first;
            first = &lookup->parts[i].walk;
        }
    }
    return first;
}

/* Find the unique keys of every part. */
static hps_status start_parts(struct hps_lookup *lookup, struct hps_error *err)
{
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        if (part->n_rows == 0) {
            part->finished = true;
            continue;
        }
        hps_status status = lookup_start_part(lookup, part);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "table '%s': no memory for %u keys",
                                 part->table->name, part->n_keys);
        }
    }
    return HPS_OK;
}

void lookup_begin(struct hps_lookup *lookup)
{
    if (!lookup->begun) {
        lookup->begun = true;
        lookup->wait_deadline_us = hps_clock_us() + lookup->wait_us_max;
        lookup->gpu_deadline_us = lookup_gpu_deadline_us(lookup);
        lookup->event_time_ms = hps_update_event_time_ms(lookup->version);
        lookup->update_sequence = hps_update_sequence(lookup->version);
        lookup->since = hps_stamps_now(lookup->version->stamps);
    }
}

/* Finish the parts that wait for no tier. */
static hps_status finish_ready(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
{
    bool done = true;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        struct hps_lookup_part *part = &lookup->parts[i];
        bool ready = hps_walk_done(&part->walk) ||
                     (!part->waits_for_gpu && !lookup_waits_for_stores(lookup, part));
        if (!part->finished && ready) {
            hps_status status = lookup_finish_part(lookup, part, err);
            if (status != HPS_OK) {
                return status;
            }
        }
        done = done && part->finished;
    }
    *out_done = done;
    return HPS_OK;
}

/* End a step, and the lookup if that was the last one. helpers: see lookup_add_bags */
static hps_status end_step(struct hps_lookup *lookup, hps_status status, struct hps_pool *helpers,
                           bool *out_done, struct hps_error *err)
{
    bool done = false;

    if (status == HPS_OK) {
        status = finish_ready(lookup, &done, err);
    }
    if (status != HPS_OK || done) {
        status = conclude(lookup, status, helpers, err);
    }
    if (status == HPS_OK) {
        *out_done = done;
    }
    return status;
}

hps_status hps_lookup_run_memory(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
{
    struct hps_walk_call call = lookup_walk_call(lookup, lookup->deadline_us);
    struct hps_walk *first = NULL;

    HPS_ASSERT(lookup->rows != NULL || lookup->rows_bytes == 0);
    call.helpers = lookup->helpers;
    lookup_begin(lookup);
    hps_status status = lookup_gpu_block(lookup, err);
    if (status == HPS_OK) {
        status = lookup_gpu_hits(lookup, err);
    }
    if (status == HPS_OK && lookup->n_pooled > 0) {
        status = lookup_pool_bags(lookup, err);
    }
    if (status == HPS_OK) {
        status = start_parts(lookup, err);
    }
    if (status == HPS_OK) {
        lookup_gpu_take(lookup);
        lookup_report_pooled(lookup);
        first = link_walks(lookup);
        status = lookup_gather(lookup, false, err);
    }
    if (status == HPS_OK && first != NULL) {
        status = hps_walk_memory(first, &call, err);
    }
    if (status == HPS_OK) {
        lookup_gpu_offer(lookup);
    }
    return end_step(lookup, status, lookup->helpers, out_done, err);
}

hps_status hps_lookup_run_gpu(struct hps_lookup *lookup, bool *out_done, struct hps_error *err)
{
    lookup_gpu_take(lookup);
    return end_step(lookup, HPS_OK, NULL, out_done, err);
}

hps_status hps_lookup_run_defaults(struct hps_lookup *lookup, struct hps_error *err)
{
    hps_status status = HPS_OK;

    for (uint32_t i = 0; i < lookup->n_parts && status == HPS_OK; i++) {
        if (!lookup->parts[i].finished) {
            status = lookup_finish_part(lookup, &lookup->parts[i], err);
        }
    }
    return conclude(lookup, status, NULL, err);
}

void hps_lookup_abandon(struct hps_lookup *lookup)
{
    hps_ignore(conclude(lookup, HPS_CANCELLED, NULL, NULL));
    lookup_gpu_forget(lookup);
}

hps_status hps_lookup_run_rest(struct hps_lookup *lookup, struct hps_error *err)
{
    struct hps_walk *first = link_walks(lookup);
    uint64_t deadline_us = lookup->deadline_us;
    bool wait = lookup->miss_policy == HPS_MISS_WAIT;
    hps_status status = lookup_gather(lookup, true, err);

    if (wait && (deadline_us == 0 || lookup->wait_deadline_us < deadline_us)) {
        deadline_us = lookup->wait_deadline_us;
    } else {
        wait = false; /* the request's deadline is earlier, and then the request fails */
    }
    if (status == HPS_OK && first != NULL) {
        struct hps_walk_call call = lookup_walk_call(lookup, deadline_us);
        status = hps_walk_rest(first, &call, err);
        lookup->ahead = status == HPS_ABORTED;
    }
    if (status == HPS_DEADLINE && wait) {
        status = HPS_OK;
    }
    return status == HPS_OK ? hps_lookup_run_defaults(lookup, err)
                            : conclude(lookup, status, NULL, err);
}
