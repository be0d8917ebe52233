/* SPDX-License-Identifier: Apache-2.0
 *
 * One lookup at a time may hold updates back, for a bounded time. A batch that waits for the end of
 * a hold runs before the next hold. Any thread.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/lock.h"
#include "cache/update/internal.h"

void update_turn_begin(struct hps_updates *updates)
{
    uint64_t until_us = hps_clock_us() + HPS_UPDATE_HOLD_US_MAX;
    hps_lock_acquire(&updates->lock);
    updates->batch_waits = true;
    while (updates->held && hps_cond_wait_until(&updates->changed, &updates->lock, until_us)) {
    }
    updates->batch_waits = false;
    updates->batch_runs = true;
    hps_lock_release(&updates->lock);
}

void update_turn_end(struct hps_updates *updates)
{
    hps_lock_acquire(&updates->lock);
    HPS_ASSERT(updates->batch_runs);
    updates->batch_runs = false;
    hps_cond_broadcast(&updates->changed);
    hps_lock_release(&updates->lock);
}

bool hps_update_hold(struct hps_version *version)
{
    struct hps_updates *updates = version->updates;
    uint64_t until_us = hps_clock_us() + HPS_UPDATE_HOLD_WAIT_US_MAX;
    if (updates == NULL) {
        return false;
    }
    hps_lock_acquire(&updates->lock);
    bool held = !updates->held && !updates->batch_waits;
    if (held) {
        updates->held = true; /* from here on, so that no other batch begins first */
        while (updates->batch_runs &&
               hps_cond_wait_until(&updates->changed, &updates->lock, until_us)) {
        }
        held = updates->held = !updates->batch_runs;
    }
    hps_lock_release(&updates->lock);
    return held;
}

void hps_update_release(struct hps_version *version)
{
    struct hps_updates *updates = version->updates;
    hps_lock_acquire(&updates->lock);
    HPS_ASSERT(updates->held);
    updates->held = false;
    hps_cond_broadcast(&updates->changed);
    hps_lock_release(&updates->lock);
}
