/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys that other lookups are fetching: the walk waits for them instead of fetching them again. On
 * the thread of the lookup, which may block. The other lookups run on threads of their own.
 */
#include <stdatomic.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "cache/lookup/tiers_internal.h"
#include "cache/version/flight.h"

enum { WAIT_SLICE_US = 5 * 1000 }; /* at most, between checks for interruption */

/* Whether the walk shares fetches. Walks that warm up or report share none. A walk that wants exact
 * rows shares none if the version has a shared tier, because others may fetch later rows. */
static bool shares(const struct walk_step *step)
{
    enum hps_walk_purpose purpose = step->call->purpose;
    uint32_t caps = 0; /* of all tiers */

    for (uint32_t i = 0; i < step->n_tiers; i++) {
        caps |= step->tiers[i].caps;
    }
    return step->version->flight != NULL &&
           (purpose == HPS_WALK_ANSWER || purpose == HPS_WALK_BEHIND) &&
           !(step->call->exact && (caps & HPS_CAP_SHARED) != 0);
}

void walk_join_others(struct walk_step *step, struct hps_walk *walk)
{
    struct hps_walk_fetch *fetch = &walk->fetch;
    struct hps_batch *batch = &walk->batch;
    uint32_t n = batch->n;

    HPS_ASSERT(fetch->flights == NULL);
    if (!shares(step) || n == 0 || n > step->n_share) {
        return;
    }
    fetch->flights = hps_alloc(n * sizeof(*fetch->flights));
    fetch->joined = hps_alloc(n * sizeof(struct hps_flight_key *));
    if (fetch->flights == NULL || fetch->joined == NULL) {
        return; /* no fetches are shared */
    }
    fetch->n_flights = n;
    step->n_share -= n;
    for (uint32_t i = 0; i < n; i++) {
        struct hps_flight_key *flight = &fetch->flights[i];
        *flight = (struct hps_flight_key){.key = batch->keys[i],
                                          .row = batch->rows +
                                                 (size_t)batch->slots[i] * walk->table->row_bytes,
                                          .row_bytes = walk->table->row_bytes,
                                          .table_id = walk->table->id,
                                          .since = step->since};
        enum hps_flight_state state =
            hps_flight_join(step->version->flight, &step->caller, step->version->stamps, flight);
        fetch->n_led += state == HPS_FLIGHT_LEADS ? 1 : 0;
        if (state == HPS_FLIGHT_WAITS) {
            walk_swap(batch, i, fetch->n_joined);
            fetch->joined[fetch->n_joined++] = flight;
        }
    }
}

/* Move key i out of the waiting keys, to the front of the other missing keys. */
static void stop_waiting(struct hps_walk *walk, uint32_t i)
{
    struct hps_walk_fetch *fetch = &walk->fetch;

    HPS_ASSERT(i < fetch->n_joined);
    fetch->n_joined--;
    fetch->joined[i] = fetch->joined[fetch->n_joined];
    walk_swap(&walk->batch, i, fetch->n_joined);
}

/* Take the results of waiting keys. Returns how many of them became LEADS. */
static uint32_t collect(struct hps_walk *walk)
{
    struct hps_walk_fetch *fetch = &walk->fetch;
    uint32_t n_promoted = 0;

    for (uint32_t i = fetch->n_joined; i-- > 0;) {
        const struct hps_flight_key *flight = fetch->joined[i];
        unsigned state = atomic_load_explicit(&flight->state, memory_order_acquire);

        if (state == HPS_FLIGHT_WAITS) {
            continue;
        }
        stop_waiting(walk, i);
        walk_swap(&walk->batch, fetch->n_joined, walk->batch.n - 1);
        if (state == HPS_FLIGHT_FOUND) {
            walk_settle_found(walk, (enum hps_tier_kind)flight->tier, 1);
            walk->reports[flight->tier].n_shared++;
        } else if (state == HPS_FLIGHT_ABSENT) {
            walk_settle_absent(walk, 1);
            walk->n_shared_absent++;
        } else if (state == HPS_FLIGHT_LEADS) {
            fetch->n_led++;
            n_promoted++;
        }
    }
    return n_promoted;
}

/* Time until the next check for interruption. */
static uint32_t wait_us(const struct hps_walk_call *call)
{
    uint64_t now_us = hps_clock_us();

    if (call->deadline_us == 0 || call->deadline_us >= now_us + WAIT_SLICE_US) {
        return WAIT_SLICE_US;
    }
    return call->deadline_us > now_us ? (uint32_t)(call->deadline_us - now_us) : 0;
}

hps_status walk_await_others(struct walk_step *step, struct hps_error *err)
{
    uint32_t n_promoted = 0;
    uint64_t start_us = hps_clock_us();
    hps_status status = HPS_OK;

    while (status == HPS_OK && !hps_flight_wait(&step->caller, wait_us(step->call))) {
        status = hps_walk_check_interrupted(step->call);
    }
    step->first->wait_us += hps_clock_us() - start_us;
    if (status != HPS_OK) {
        return hps_error_set(err, status, "%s while another lookup fetches the same keys",
                             hps_status_text(status));
    }
    for (struct hps_walk *walk = step->first; walk != NULL; walk = walk->next) {
        n_promoted += collect(walk);
    }
    hps_flight_take_promoted(&step->caller, n_promoted);
    return HPS_OK;
}

void walk_leave_others(struct walk_step *step, struct hps_walk *walk)
{
    struct hps_walk_fetch *fetch = &walk->fetch;

    for (uint32_t i = 0; i < fetch->n_flights; i++) {
        hps_flight_leave(step->version->flight, &fetch->flights[i]);
    }
    (void)collect(walk);
    HPS_ASSERT(fetch->n_joined == 0 || fetch->flights != NULL);
    hps_free(fetch->flights);
    hps_free(fetch->joined);
    *fetch = (struct hps_walk_fetch){0};
}
