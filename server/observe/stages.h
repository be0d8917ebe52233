/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures how long a lookup is in each stage. A lookup is in exactly one stage at a time, from its
 * arrival to its end, so the times of the stages add up to its duration. The thread that owns the
 * lookup begins the next stage. One thread at a time.
 */
#ifndef HPS_SERVER_OBSERVE_STAGES_H
#define HPS_SERVER_OBSERVE_STAGES_H

#include <stdint.h>

#include "base/assert.h"
#include "base/clock.h"
#include "server/observe/metrics.h"

struct hps_stages {
    enum hps_stage now;           /* the current stage */
    uint64_t since_us;            /* hps_clock_us: the current stage began */
    uint64_t us[HPS_STAGE_COUNT]; /* time in each stage until since_us */
};

/* Begin to measure: the lookup has been in `stage` since since_us. */
static inline void hps_stages_begin(struct hps_stages *stages, enum hps_stage stage,
                                    uint64_t since_us)
{
    *stages = (struct hps_stages){.now = stage, .since_us = since_us};
}

/* The lookup entered `stage` at at_us. If the current stage began after at_us, no time is added to
 * it. */
static inline void hps_stages_enter_at(struct hps_stages *stages, enum hps_stage stage,
                                       uint64_t at_us)
{
    HPS_ASSERT((unsigned)stage < HPS_STAGE_COUNT);
    if (at_us > stages->since_us) {
        stages->us[stages->now] += at_us - stages->since_us;
        stages->since_us = at_us;
    }
    stages->now = stage;
}

/* The lookup enters `stage` now. */
static inline void hps_stages_enter(struct hps_stages *stages, enum hps_stage stage)
{
    hps_stages_enter_at(stages, stage, hps_clock_us());
}

/* Move `us` microseconds from the time of stage `from` to that of stage `to`. If `from` has less
 * time, move all of it. */
static inline void hps_stages_name(struct hps_stages *stages, enum hps_stage from,
                                   enum hps_stage to, uint64_t us)
{
    HPS_ASSERT(from != to);
    uint64_t moved = us < stages->us[from] ? us : stages->us[from];
    stages->us[from] -= moved;
    stages->us[to] += moved;
}

#endif
